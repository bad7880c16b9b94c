"""Find the runs for other machines by an index, however many wait here."""

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "CREATE INDEX runs_elsewhere ON runs (lane) WHERE state <> 'DONE' AND lane GLOB '*-g[0-9]*-??????'"
    )
