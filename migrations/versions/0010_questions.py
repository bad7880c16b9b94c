"""An index of the questions that jobs ask, by which a report finds the newest ones."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        "CREATE INDEX jobs_question ON jobs"
        " (CASE WHEN kind = 'import' AND json_extract(spec_json, '$.merged.kind') IS NULL THEN 'import'"
        " ELSE name || char(10) || COALESCE(config, '') || char(10)"
        " || COALESCE(json_extract(spec_json, '$.params'), '') END)"
    )
