"""The outcome DISK_FULL. Runs that were stopped before for that reason keep OUTPUT_LIMIT: history is not rewritten.

SQLite cannot change a CHECK, so the table is made anew, as in "Making Other Kinds Of Table Schema Changes" of its manual
(lang_altertable.html). The connection does not enforce foreign keys meanwhile: queue_runner.store.migrate.create.
"""

import re

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    (table,) = execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'runs'").scalars()
    beside = execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'runs' AND type IN ('index', 'trigger') AND sql IS NOT NULL"
    )
    beside = list(beside.scalars())
    sequence = execute("SELECT seq FROM sqlite_sequence WHERE name = 'runs'").scalar()
    execute("PRAGMA legacy_alter_table=ON")  # else the views, which name the table, would have to be dropped
    changed = table.replace("'OUTPUT_LIMIT', 'CODE_CHANGED'", "'OUTPUT_LIMIT', 'DISK_FULL', 'CODE_CHANGED'")
    execute(re.sub('^CREATE TABLE "?runs"?', "CREATE TABLE runs_new", changed))
    execute("INSERT INTO runs_new SELECT * FROM runs")
    execute("DROP TABLE runs")
    execute("ALTER TABLE runs_new RENAME TO runs")
    for statement in beside:
        execute(statement)
    if sequence is not None:
        execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'runs'", (sequence,))
    execute("PRAGMA legacy_alter_table=OFF")
