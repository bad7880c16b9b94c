"""Remove --randomize and the drawn sizes of environments from specifications and schedules. What was drawn for the runs
so far stays among their conditions.

The hash of a merged job's question covered the fields: where one had a value, the hash becomes unknown (empty).
"""

import json
import shlex

from alembic import op

revision = "0017"
down_revision = "0016"

OPTION = "--randomize"
DREW = "json_extract(spec_json, '$.layout_seed') IS NOT NULL"


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute(f"UPDATE merged_jobs SET question_hash = '' WHERE job_id IN (SELECT id FROM jobs WHERE {DREW})")
    execute(
        "UPDATE jobs SET spec_json = json_remove(spec_json, '$.layout_seed', '$.randomize')"
        " WHERE json_type(spec_json, '$.layout_seed') IS NOT NULL OR json_type(spec_json, '$.randomize') IS NOT NULL"
    )
    for id, title, text in execute("SELECT id, title, command_json FROM schedules").fetchall():
        words = json.loads(text)
        end = words.index("--") if "--" in words else len(words)
        remaining = [word for word in words[:end] if word != OPTION] + words[end:]
        if remaining != words:
            new_title = shlex.join(remaining) if title == shlex.join(words) else title
            values = (json.dumps(remaining), new_title, id)
            execute("UPDATE schedules SET command_json = ?, title = ? WHERE id = ?", values)
