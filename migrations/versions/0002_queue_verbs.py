"""Everything a person does to a queue: dependencies, times, second tries, schedules, hooks.

Frozen as SQL: a migration says what was done on its day, whatever the code says later.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "ALTER TABLE snapshots ADD COLUMN tree_hash TEXT",
    "ALTER TABLE snapshots ADD COLUMN copied INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE snapshots ADD COLUMN left_out_json TEXT",
    "ALTER TABLE jobs ADD COLUMN note TEXT",
    "ALTER TABLE jobs ADD COLUMN deadline_at FLOAT",
    "ALTER TABLE jobs ADD COLUMN retries INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE jobs ADD COLUMN backoff_s FLOAT DEFAULT 0 NOT NULL",
    "ALTER TABLE jobs ADD COLUMN retry_on TEXT",
    "ALTER TABLE jobs ADD COLUMN rerun_of INTEGER",
    "ALTER TABLE jobs ADD COLUMN schedule_id INTEGER",
    "ALTER TABLE jobs ADD COLUMN deleted_at FLOAT",
    "ALTER TABLE runs ADD COLUMN not_before_at FLOAT",
    "ALTER TABLE runs ADD COLUMN resumed_from INTEGER",
    "ALTER TABLE lanes ADD COLUMN paused_reason TEXT",
    """
CREATE TABLE dependencies (
    job_id INTEGER NOT NULL,
    on_job_id INTEGER NOT NULL,
    condition TEXT NOT NULL,
    PRIMARY KEY (job_id, on_job_id),
    CONSTRAINT condition CHECK (condition IN ('ok', 'any', 'fail')),
    CONSTRAINT not_on_itself CHECK (job_id <> on_job_id),
    FOREIGN KEY(job_id) REFERENCES jobs (id),
    FOREIGN KEY(on_job_id) REFERENCES jobs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE INDEX dependencies_on ON dependencies (on_job_id)
    """,
    """
CREATE TABLE schedules (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    created_at FLOAT NOT NULL,
    name TEXT NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    title TEXT NOT NULL,
    request_json TEXT NOT NULL,
    next_at FLOAT,
    last_at FLOAT,
    last_group_id INTEGER,
    last_error TEXT,
    UNIQUE (name)
)
    """,
    """
CREATE TABLE hook_runs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at FLOAT NOT NULL,
    kind TEXT NOT NULL,
    run_id INTEGER,
    command TEXT NOT NULL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    dur_s FLOAT,
    output TEXT,
    CONSTRAINT kind CHECK (kind IN ('done', 'failed', 'idle', 'notify')),
    CONSTRAINT state CHECK (state IN ('pending', 'running', 'ok', 'failed', 'timed_out', 'lost')),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE INDEX hook_runs_run ON hook_runs (run_id)
    """,
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
    r.not_before_at, r.resumed_from
FROM runs r
JOIN jobs j ON j.id = r.job_id
LEFT JOIN hellos h ON h.run_id = r.id
LEFT JOIN exits e ON e.run_id = r.id
LEFT JOIN summaries s ON s.run_id = r.id
    """,
    """
CREATE VIEW v_metric AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.name, t.value, t.unit
FROM metrics t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id
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
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement.strip())
