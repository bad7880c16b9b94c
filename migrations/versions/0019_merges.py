"""Let a bundle be merged in parts. The hash of a run's content has another form: stored ones become unknown."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute(
        "CREATE TABLE merges (bundle_hash TEXT NOT NULL, plan_hash TEXT NOT NULL, first_run_id INTEGER NOT NULL,"
        " n_runs INTEGER NOT NULL, n_stored INTEGER NOT NULL, at FLOAT NOT NULL, PRIMARY KEY (bundle_hash))"
    )
    execute("UPDATE merged_runs SET content_hash = ''")
