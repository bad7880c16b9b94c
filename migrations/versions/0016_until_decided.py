"""Let a submission ask for rounds until it is answered (--until). Jobs that wait for one of its jobs wait for that."""

from alembic import op

revision = "0016"
down_revision = "0015"

COLUMNS = ("until TEXT", "same_within FLOAT", "budget_s FLOAT", "closed_at FLOAT", "closed_why TEXT")
VIEW = """
CREATE VIEW v_dependency AS
SELECT d.job_id, d.on_job_id, d.condition,
    CASE
        WHEN EXISTS (SELECT 1 FROM runs WHERE job_id = d.on_job_id AND state <> 'DONE') THEN 'undecided'
        WHEN EXISTS (
            SELECT 1 FROM groups g JOIN jobs j ON j.group_id = g.id
            WHERE j.id = d.on_job_id AND g.until IS NOT NULL AND g.closed_at IS NULL) THEN 'undecided'
        WHEN d.condition = 'any' THEN 'met'
        WHEN (d.condition = 'ok') = NOT EXISTS (
            SELECT 1 FROM runs l WHERE l.job_id = d.on_job_id AND l.outcome <> 'SUCCEEDED' AND NOT EXISTS (
                SELECT 1 FROM runs WHERE job_id = l.job_id AND repeat = l.repeat AND attempt > l.attempt))
            THEN 'met'
        ELSE 'impossible'
    END AS verdict
FROM dependencies d
"""


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    for column in COLUMNS:
        execute(f"ALTER TABLE groups ADD COLUMN {column}")
    execute("CREATE INDEX groups_open ON groups (id) WHERE until IS NOT NULL AND closed_at IS NULL")
    execute("DROP VIEW v_dependency")
    execute(VIEW)
