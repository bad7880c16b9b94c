"""The obstacle of a lane as a column beside its sentence, the run it is kept for, and the next try."""

from alembic import op

revision = "0008"
down_revision = "0007"

STATEMENTS = (
    "ALTER TABLE lanes ADD COLUMN blocked_kind TEXT"
    " CONSTRAINT blocked_kind CHECK (blocked_kind IN ('silent', 'disk', 'gate', 'reserved'))",
    "ALTER TABLE lanes ADD COLUMN blocked_for INTEGER",
    "ALTER TABLE lanes ADD COLUMN next_try_at FLOAT",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
