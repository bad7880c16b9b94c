"""Remove the calls of hooks: a hook is called at most once, and its output is in the worker's log."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.get_bind().exec_driver_sql("DROP TABLE IF EXISTS hook_runs")
