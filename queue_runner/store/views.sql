-- The views and triggers as they are at the newest migration; a test compares the two. The views are the public read
-- contract (docs/schema.md): anyone may query them.

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
LEFT JOIN summaries s ON s.run_id = r.id;

CREATE VIEW v_iteration AS
SELECT
    t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.dur_s, t.loss,
    CASE t.phase WHEN 0 THEN 'setup' WHEN 1 THEN 'compile' WHEN 2 THEN 'warmup' WHEN 3 THEN 'measure'
                 WHEN 4 THEN 'eval' WHEN 5 THEN 'checkpoint' ELSE 'eval_iter' END AS phase,
    NULLIF(t.synced, 2) AS synced, t.allocated_bytes, t.reserved_bytes
FROM iterations t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id;

CREATE VIEW v_eval AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.split, t.metric, t.value, t.dur_s
FROM evals t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id;

CREATE VIEW v_event AS
SELECT t.id, t.at, t.job_id, t.run_id, CASE WHEN r.id IS NULL THEN NULL ELSE t.job_id || '.' || r.number END AS run,
    t.actor, t.verb, t.from_state, t.to_state, t.outcome, t.reason
FROM job_events t LEFT JOIN runs r ON r.id = t.run_id;

CREATE VIEW v_metric AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.name, t.value, t.unit
FROM metrics t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id;

CREATE VIEW v_merged AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.merged_at, t.bundle_hash, t.content_hash, m.identity AS job_identity
FROM merged_runs t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id JOIN merged_jobs m ON m.job_id = j.id;

-- A job is ok when the last attempt of each of its repeats SUCCEEDED; it is decided when none of its runs is left,
-- and no further round may follow (--until).
CREATE VIEW v_dependency AS
SELECT d.job_id, d.on_job_id, d.condition,
    CASE
        WHEN EXISTS (SELECT 1 FROM runs WHERE job_id = d.on_job_id AND state <> 'DONE') THEN 'undecided'
        WHEN EXISTS (
            SELECT 1 FROM groups g JOIN jobs j ON j.group_id = g.id
            WHERE j.id = d.on_job_id AND g.until IS NOT NULL AND g.closed_at IS NULL) THEN 'undecided'
        WHEN d.condition = 'any' THEN 'met'
        WHEN (d.condition = 'ok') = NOT EXISTS (
            SELECT 1 FROM runs l WHERE l.job_id = d.on_job_id AND l.outcome <> 'SUCCEEDED' AND NOT EXISTS (
                SELECT 1 FROM runs WHERE job_id = l.job_id AND repeat = l.repeat AND attempt > l.attempt))
            THEN 'met'
        ELSE 'impossible'
    END AS verdict
FROM dependencies d;

CREATE TRIGGER job_events_are_final BEFORE UPDATE ON job_events
BEGIN SELECT RAISE(ABORT, 'job_events is append-only'); END;

CREATE TRIGGER runs_follow_their_job AFTER UPDATE OF priority ON jobs
BEGIN UPDATE runs SET job_priority = NEW.priority WHERE job_id = NEW.id AND state <> 'DONE'; END;

CREATE TRIGGER done_is_final BEFORE UPDATE OF state, outcome ON runs WHEN OLD.state = 'DONE'
BEGIN SELECT RAISE(ABORT, 'a run that is DONE stays as it is: a retry is a new run'); END;
