"""Indexes by which a step of the worker and a removal read no more of a long queue or history than they need."""

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    for index in (
        "jobs_deadline ON jobs (deadline_at) WHERE deadline_at IS NOT NULL",
        "jobs_prioritised ON jobs (priority) WHERE priority <> 0",
        "jobs_snapshot ON jobs (snapshot_hash)",
        "runs_unended ON runs (position) WHERE state <> 'DONE'",
        "runs_not_before ON runs (not_before_at) WHERE not_before_at IS NOT NULL",
        "job_events_run ON job_events (run_id, id)",
    ):
        op.get_bind().exec_driver_sql(f"CREATE INDEX {index}")
