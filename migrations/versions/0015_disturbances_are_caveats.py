"""A disturbance by other programs or by the service's priority is a caveat: such runs are valid."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "UPDATE taints SET severity = 'caveat' WHERE kind IN ('contended', 'gpu_contended', 'throttled_service')"
    )
