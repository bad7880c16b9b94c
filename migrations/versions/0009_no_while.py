"""Remove what served `mpsq bench --neighbours`: the condition `while` and the field `pairing` of a specification.

A job that waited while another one is measured now waits for its end. A queued neighbour has no end of its own, so that
it is held. SQLite cannot change a CHECK: the table is made anew, as in 0003; no other table refers to it.
"""

import re
import time

from alembic import op

revision = "0009"
down_revision = "0008"

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
        WHEN (d.condition = 'ok') = NOT EXISTS (
            SELECT 1 FROM runs l WHERE l.job_id = d.on_job_id AND l.outcome <> 'SUCCEEDED' AND NOT EXISTS (
                SELECT 1 FROM runs WHERE job_id = l.job_id
                    AND ((repeat = l.repeat AND attempt > l.attempt) OR replaces = l.repeat)))
            THEN 'met'
        ELSE 'impossible'
    END AS verdict
FROM dependencies d
"""
REASON = "mpsq bench --neighbours was removed, and this neighbour has no end of its own"
NEIGHBOURS = (
    "FROM runs r JOIN jobs j ON j.id = r.job_id"
    " WHERE r.state = 'QUEUED' AND json_extract(j.spec_json, '$.pairing') = 'neighbour'"
)


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute(
        "INSERT INTO job_events (at, job_id, run_id, actor, verb, from_state, to_state, reason)"
        f" SELECT ?, r.job_id, r.id, 'worker', 'hold', 'QUEUED', 'HELD', ? {NEIGHBOURS}",
        (time.time(), REASON),
    )
    execute(f"UPDATE runs SET state = 'HELD', blocked_reason = ? WHERE id IN (SELECT r.id {NEIGHBOURS})", (REASON,))
    execute(
        "UPDATE jobs SET spec_json = json_remove(spec_json, '$.pairing')"
        " WHERE json_type(spec_json, '$.pairing') IS NOT NULL"
    )
    execute("DROP VIEW v_dependency")
    execute("UPDATE dependencies SET condition = 'any' WHERE condition = 'while'")
    (table,) = execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'dependencies'").scalars()
    (index,) = execute("SELECT sql FROM sqlite_master WHERE name = 'dependencies_on'").scalars()
    changed = table.replace("('ok', 'any', 'fail', 'while')", "('ok', 'any', 'fail')")
    execute(re.sub('^CREATE TABLE "?dependencies"?', "CREATE TABLE dependencies_new", changed))
    execute("INSERT INTO dependencies_new SELECT * FROM dependencies")
    execute("DROP TABLE dependencies")
    execute("ALTER TABLE dependencies_new RENAME TO dependencies")
    execute(index)
    execute(VIEW)
