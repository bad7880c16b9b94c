"""`synced` of an iteration may be unknown: 2 in the table, which NOT NULL leaves as it is, and NULL in the view."""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    "DROP VIEW v_iteration",
    """
CREATE VIEW v_iteration AS
SELECT
    t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.dur_s, t.loss,
    CASE t.phase WHEN 0 THEN 'setup' WHEN 1 THEN 'compile' WHEN 2 THEN 'warmup' WHEN 3 THEN 'measure'
                 WHEN 4 THEN 'eval' WHEN 5 THEN 'checkpoint' ELSE 'eval_iter' END AS phase,
    NULLIF(t.synced, 2) AS synced, t.allocated_bytes, t.reserved_bytes
FROM iterations t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
