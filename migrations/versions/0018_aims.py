"""Store what a submission asks about, for its reports too, and how far an open one is. A budget of ten minutes becomes
the default, which 0016 stored as if it had been given."""

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    for column in ("aim TEXT", "judged_rounds INTEGER", "more_rounds INTEGER"):
        execute(f"ALTER TABLE groups ADD COLUMN {column}")
    execute(
        "UPDATE groups SET aim = json_object('margins', json_object('', same_within)) WHERE same_within IS NOT NULL"
    )
    execute("UPDATE groups SET budget_s = NULL WHERE budget_s = 600")
    execute("ALTER TABLE groups DROP COLUMN same_within")
