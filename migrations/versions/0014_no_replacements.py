"""Remove the replacement of disturbed runs (--until-valid). A round that was replaced is an ordinary round again.

The content hash of a merged run covered the column: where it had a value, the hash becomes unknown (empty).
"""

import json
import shlex

from alembic import op

revision = "0014"
down_revision = "0013"

OPTIONS = ("--until-valid", "--no-until-valid")
VIEWS = (
    """
CREATE VIEW v_run AS
SELECT
    r.id AS run_id, j.id AS job_id, r.number, j.id || '.' || r.number AS run, j.group_id, j.name, j.kind,
    COALESCE(h.workload, j.workload) AS workload, COALESCE(h.framework, j.framework) AS framework,
    h.framework_version,
    COALESCE(h.device, j.device) AS device, j.device AS asked_device, h.device_name,
    COALESCE(h.compile, j.compile) AS compile, COALESCE(h.dtype, j.dtype) AS dtype,
    COALESCE(h.config, j.config) AS config,
    j.spec_hash, j.spec_json, j.snapshot_hash, j.priority,
    (SELECT group_concat(tag, ',') FROM (SELECT tag FROM job_tags WHERE job_id = j.id ORDER BY tag)) AS tags,
    r.repeat, r.attempt, r.lane, r.position, r.state, r.outcome, r.exit_code, r.signal, r.reason, r.blocked_reason,
    r.created_at, r.claimed_at, r.started_at, r.ended_at, r.cancel_requested_at, r.paused_at,
    r.machine_hash, r.software_hash,
    h.params, h.flops_per_iter, h.tokens_per_iter, h.samples_per_iter, h.optimizer, h.seed, h.planned_iters,
    h.compile_cache, h.data_name, h.data_sha256,
    e.real_s, e.slept_s, e.paused_s, e.user_s, e.sys_s, e.max_rss_bytes,
    s.n_iters, s.n_measure, s.median_s, s.mad_s, s.q1_s, s.q3_s, s.mean_s, s.min_s, s.max_s,
    s.first_iter_s, s.first_iter_excess_s, s.first_third_median_s, s.last_third_median_s, s.drift_ratio,
    s.loss_first, s.loss_last, s.loss_min, s.val_loss_last,
    s.setup_s, s.compile_s, s.warmup_s, s.measure_s, s.eval_s, s.checkpoint_s, s.other_s, s.projected_real_s,
    s.peak_allocated_bytes, s.peak_reserved_bytes,
    (SELECT group_concat(kind, ',') FROM (SELECT kind FROM taints WHERE run_id = r.id ORDER BY severity DESC, kind)) AS taints,
    NOT EXISTS (SELECT 1 FROM taints WHERE run_id = r.id AND severity = 'invalid') AS valid,
    j.note, j.deadline_at, j.retries, j.backoff_s, j.retry_on, j.rerun_of, j.schedule_id, j.deleted_at,
    r.not_before_at, r.resumed_from
FROM runs r
JOIN jobs j ON j.id = r.job_id
LEFT JOIN hellos h ON h.run_id = r.id
LEFT JOIN exits e ON e.run_id = r.id
LEFT JOIN summaries s ON s.run_id = r.id
""",
    """
CREATE VIEW v_dependency AS
SELECT d.job_id, d.on_job_id, d.condition,
    CASE
        WHEN EXISTS (SELECT 1 FROM runs WHERE job_id = d.on_job_id AND state <> 'DONE') THEN 'undecided'
        WHEN d.condition = 'any' THEN 'met'
        WHEN (d.condition = 'ok') = NOT EXISTS (
            SELECT 1 FROM runs l WHERE l.job_id = d.on_job_id AND l.outcome <> 'SUCCEEDED' AND NOT EXISTS (
                SELECT 1 FROM runs WHERE job_id = l.job_id AND repeat = l.repeat AND attempt > l.attempt))
            THEN 'met'
        ELSE 'impossible'
    END AS verdict
FROM dependencies d
""",
)


def upgrade() -> None:
    execute = op.get_bind().exec_driver_sql
    execute("UPDATE merged_runs SET content_hash = '' WHERE run_id IN (SELECT id FROM runs WHERE replaces IS NOT NULL)")
    for view in ("v_run", "v_dependency"):
        execute(f"DROP VIEW {view}")
    execute("ALTER TABLE runs DROP COLUMN replaces")
    for view in VIEWS:
        execute(view)
    execute(
        "UPDATE jobs SET spec_json = json_remove(spec_json, '$.until_valid')"
        " WHERE json_type(spec_json, '$.until_valid') IS NOT NULL"
    )
    for id, title, text in execute("SELECT id, title, command_json FROM schedules").fetchall():
        words = json.loads(text)
        end = words.index("--") if "--" in words else len(words)
        remaining = [word for word in words[:end] if word not in OPTIONS] + words[end:]
        if remaining != words:
            new_title = shlex.join(remaining) if title == shlex.join(words) else title
            values = (json.dumps(remaining), new_title, id)
            execute("UPDATE schedules SET command_json = ?, title = ? WHERE id = ?", values)
