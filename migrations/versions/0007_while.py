"""The condition `while` of a dependency: the job starts while a run of the other one is being measured. An index of ends.

SQLite cannot change a CHECK, so the table is made anew, as in 0003; no other table refers to it.
"""

import re

from alembic import op

revision = "0007"
down_revision = "0006"

VIEW = """
CREATE VIEW v_dependency AS
SELECT d.job_id, d.on_job_id, d.condition,
    CASE
        WHEN EXISTS (SELECT 1 FROM runs WHERE job_id = d.on_job_id AND state <> 'DONE') THEN 'undecided'
        WHEN EXISTS (
            SELECT 1 FROM jobs o JOIN jobs w ON w.id = d.job_id JOIN jobs s ON s.group_id = o.group_id
            JOIN runs r ON r.job_id = s.id
            WHERE o.id = d.on_job_id AND w.group_id <> o.group_id AND r.state <> 'DONE'
            AND json_extract(o.spec_json, '$.until_valid')) THEN 'undecided'
        WHEN d.condition = 'any' THEN 'met'
        WHEN d.condition <> 'while' AND (d.condition = 'ok') = NOT EXISTS (
            SELECT 1 FROM runs l WHERE l.job_id = d.on_job_id AND l.outcome <> 'SUCCEEDED' AND NOT EXISTS (
                SELECT 1 FROM runs WHERE job_id = l.job_id
                    AND ((repeat = l.repeat AND attempt > l.attempt) OR replaces = l.repeat)))
            THEN 'met'
        ELSE 'impossible'
    END AS verdict
FROM dependencies d
"""


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute("DROP VIEW v_dependency")
    (table,) = execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'dependencies'").scalars()
    (index,) = execute("SELECT sql FROM sqlite_master WHERE name = 'dependencies_on'").scalars()
    changed = table.replace("('ok', 'any', 'fail')", "('ok', 'any', 'fail', 'while')")
    execute(re.sub('^CREATE TABLE "?dependencies"?', "CREATE TABLE dependencies_new", changed))
    execute("INSERT INTO dependencies_new SELECT * FROM dependencies")
    execute("DROP TABLE dependencies")
    execute("ALTER TABLE dependencies_new RENAME TO dependencies")
    execute(index)
    execute("CREATE INDEX runs_ended ON runs (ended_at)")
    execute(VIEW)
