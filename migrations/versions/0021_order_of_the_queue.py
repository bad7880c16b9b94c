"""Store the order of the queue with its runs, and read it by an index, whatever their priorities are."""

from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute("ALTER TABLE runs ADD COLUMN job_priority INTEGER DEFAULT 0 NOT NULL")
    execute("UPDATE runs SET job_priority = (SELECT priority FROM jobs WHERE id = job_id) WHERE state <> 'DONE'")
    execute("DROP INDEX jobs_prioritised")
    execute("DROP INDEX runs_queue")
    execute("CREATE INDEX runs_queue ON runs (lane, job_priority DESC, position) WHERE state = 'QUEUED'")
    execute(
        "CREATE TRIGGER runs_follow_their_job AFTER UPDATE OF priority ON jobs"
        " BEGIN UPDATE runs SET job_priority = NEW.priority WHERE job_id = NEW.id AND state <> 'DONE'; END"
    )
