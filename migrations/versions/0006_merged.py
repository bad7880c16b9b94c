"""Runs of other machines, brought by bundles: who they are there, and what their content was."""

from alembic import op

revision = "0006"
down_revision = "0005"

STATEMENTS = (
    """
CREATE TABLE merged_jobs (
    job_id INTEGER NOT NULL,
    identity TEXT NOT NULL,
    question_hash TEXT NOT NULL,
    machine_hash TEXT NOT NULL,
    PRIMARY KEY (job_id),
    FOREIGN KEY(job_id) REFERENCES jobs (id),
    UNIQUE (identity)
)
    """,
    """
CREATE TABLE merged_runs (
    run_id INTEGER NOT NULL,
    merged_at FLOAT NOT NULL,
    bundle_hash TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    PRIMARY KEY (run_id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE VIEW v_merged AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.merged_at, t.bundle_hash, t.content_hash, m.identity AS job_identity
FROM merged_runs t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id JOIN merged_jobs m ON m.job_id = j.id
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
