"""Replacements: which repeat a run replaces, and that a replaced run neither counts nor fails its job.

Frozen as SQL: a migration says what was done on its day, whatever the code says later.
"""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = (
    "ALTER TABLE runs ADD COLUMN replaces INTEGER",
    "DROP VIEW v_run",
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
    r.not_before_at, r.resumed_from, r.replaces,
    EXISTS (SELECT 1 FROM runs n WHERE n.job_id = r.job_id AND n.replaces = r.repeat) AS replaced
FROM runs r
JOIN jobs j ON j.id = r.job_id
LEFT JOIN hellos h ON h.run_id = r.id
LEFT JOIN exits e ON e.run_id = r.id
LEFT JOIN summaries s ON s.run_id = r.id
    """,
    "DROP VIEW v_dependency",
    """
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
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
