"""The first schema: jobs, runs, their history, results, views.

Frozen as SQL: a migration says what was done on its day, whatever the code says later.
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    """
CREATE TABLE fingerprints (
    hash TEXT NOT NULL,
    kind TEXT NOT NULL,
    data_json TEXT NOT NULL,
    PRIMARY KEY (hash),
    CONSTRAINT kind CHECK (kind IN ('machine', 'software'))
)
    """,
    """
CREATE TABLE groups (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    created_at FLOAT NOT NULL,
    title TEXT NOT NULL,
    seed INTEGER NOT NULL
)
    """,
    """
CREATE TABLE lanes (
    name TEXT NOT NULL,
    blocked_reason TEXT,
    blocked_at FLOAT,
    paused_at FLOAT,
    PRIMARY KEY (name)
)
    """,
    """
CREATE TABLE snapshots (
    hash TEXT NOT NULL,
    kind TEXT NOT NULL,
    created_at FLOAT NOT NULL,
    git_commit TEXT,
    git_branch TEXT,
    git_dirty INTEGER,
    diff TEXT,
    PRIMARY KEY (hash),
    CONSTRAINT kind CHECK (kind IN ('workload', 'tree'))
)
    """,
    """
CREATE TABLE jobs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    group_id INTEGER NOT NULL,
    created_at FLOAT NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    workload TEXT,
    framework TEXT,
    device TEXT,
    compile INTEGER,
    dtype TEXT,
    config TEXT,
    spec_json TEXT NOT NULL,
    spec_hash TEXT NOT NULL,
    snapshot_hash TEXT,
    priority INTEGER DEFAULT 0 NOT NULL,
    lane TEXT DEFAULT 'machine' NOT NULL,
    CONSTRAINT kind CHECK (kind IN ('workload', 'command', 'import')),
    CONSTRAINT compile CHECK (compile IN (0, 1)),
    FOREIGN KEY(group_id) REFERENCES groups (id),
    FOREIGN KEY(snapshot_hash) REFERENCES snapshots (hash)
)
    """,
    """
CREATE INDEX jobs_group ON jobs (group_id)
    """,
    """
CREATE TABLE job_tags (
    job_id INTEGER NOT NULL,
    tag TEXT NOT NULL,
    PRIMARY KEY (job_id, tag),
    FOREIGN KEY(job_id) REFERENCES jobs (id)
)
    """,
    """
CREATE TABLE runs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    repeat INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lane TEXT DEFAULT 'machine' NOT NULL,
    position INTEGER NOT NULL,
    state TEXT NOT NULL,
    outcome TEXT,
    exit_code INTEGER,
    signal INTEGER,
    reason TEXT,
    created_at FLOAT NOT NULL,
    claimed_at FLOAT,
    started_at FLOAT,
    ended_at FLOAT,
    cancel_requested_at FLOAT,
    blocked_reason TEXT,
    paused_at FLOAT,
    token TEXT,
    boot_id TEXT,
    machine_hash TEXT,
    software_hash TEXT,
    CONSTRAINT runs_number UNIQUE (job_id, number),
    CONSTRAINT state CHECK (state IN ('HELD', 'QUEUED', 'RUNNING', 'DONE')),
    CONSTRAINT outcome CHECK (outcome IN ('SUCCEEDED', 'FAILED', 'KILLED', 'SPAWN_FAILED', 'DEVICE_UNAVAILABLE', 'TIMED_OUT', 'STALLED', 'OUT_OF_MEMORY', 'OUTPUT_LIMIT', 'CODE_CHANGED', 'CANCELLED', 'SKIPPED', 'LOST')),
    CONSTRAINT outcome_exactly_when_done CHECK ((state = 'DONE') = (outcome IS NOT NULL)),
    CONSTRAINT killed_has_a_signal CHECK ((outcome IS 'KILLED') <= (signal IS NOT NULL)),
    CONSTRAINT failed_has_a_code CHECK ((outcome IS 'FAILED') <= (exit_code IS NOT NULL AND exit_code <> 0)),
    CONSTRAINT succeeded_is_zero CHECK ((outcome IS 'SUCCEEDED') <= (exit_code IS 0 OR exit_code IS NULL)),
    CONSTRAINT running_is_claimed CHECK ((state = 'RUNNING') <= (claimed_at IS NOT NULL AND token IS NOT NULL)),
    FOREIGN KEY(job_id) REFERENCES jobs (id),
    FOREIGN KEY(machine_hash) REFERENCES fingerprints (hash),
    FOREIGN KEY(software_hash) REFERENCES fingerprints (hash)
)
    """,
    """
CREATE UNIQUE INDEX runs_one_running_per_lane ON runs (lane) WHERE state = 'RUNNING'
    """,
    """
CREATE INDEX runs_queue ON runs (lane, position) WHERE state = 'QUEUED'
    """,
    """
CREATE TABLE conditions (
    run_id INTEGER NOT NULL,
    at FLOAT NOT NULL,
    data_json TEXT NOT NULL,
    PRIMARY KEY (run_id, at),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE evals (
    run_id INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    metric TEXT NOT NULL,
    i INTEGER NOT NULL,
    split TEXT NOT NULL,
    value FLOAT,
    dur_s FLOAT,
    PRIMARY KEY (run_id, "offset", metric),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE exits (
    run_id INTEGER NOT NULL,
    real_s FLOAT,
    slept_s FLOAT,
    paused_s FLOAT,
    user_s FLOAT,
    sys_s FLOAT,
    max_rss_bytes INTEGER,
    exit_json TEXT NOT NULL,
    PRIMARY KEY (run_id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE TABLE hellos (
    run_id INTEGER NOT NULL,
    workload TEXT,
    framework TEXT,
    framework_version TEXT,
    device TEXT,
    device_name TEXT,
    dtype TEXT,
    compile INTEGER,
    config TEXT,
    params INTEGER,
    flops_per_iter FLOAT,
    tokens_per_iter FLOAT,
    samples_per_iter FLOAT,
    optimizer TEXT,
    seed INTEGER,
    planned_iters INTEGER,
    compile_cache TEXT,
    data_name TEXT,
    data_sha256 TEXT,
    hello_json TEXT NOT NULL,
    PRIMARY KEY (run_id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE TABLE ingests (
    run_id INTEGER NOT NULL,
    source TEXT NOT NULL,
    device INTEGER,
    inode INTEGER,
    "offset" INTEGER NOT NULL,
    tail_hash TEXT NOT NULL,
    parser_state TEXT,
    unknown INTEGER DEFAULT 0 NOT NULL,
    bad INTEGER DEFAULT 0 NOT NULL,
    forged INTEGER DEFAULT 0 NOT NULL,
    torn INTEGER DEFAULT 0 NOT NULL,
    rewritten INTEGER DEFAULT 0 NOT NULL,
    PRIMARY KEY (run_id, source),
    CONSTRAINT source CHECK (source IN ('events', 'stdout')),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE TABLE iterations (
    run_id INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    i INTEGER NOT NULL,
    dur_s FLOAT NOT NULL,
    loss FLOAT,
    phase INTEGER NOT NULL,
    synced INTEGER NOT NULL,
    allocated_bytes INTEGER,
    reserved_bytes INTEGER,
    PRIMARY KEY (run_id, "offset"),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE job_events (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at FLOAT NOT NULL,
    job_id INTEGER NOT NULL,
    run_id INTEGER,
    actor TEXT NOT NULL,
    verb TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT,
    outcome TEXT,
    reason TEXT,
    FOREIGN KEY(job_id) REFERENCES jobs (id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE INDEX job_events_job ON job_events (job_id, id)
    """,
    """
CREATE TABLE metrics (
    run_id INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    name TEXT NOT NULL,
    i INTEGER,
    value FLOAT,
    unit TEXT,
    PRIMARY KEY (run_id, "offset", name),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE notes (
    run_id INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (run_id, "offset"),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE phases (
    run_id INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    t_s FLOAT NOT NULL,
    name TEXT NOT NULL,
    edge TEXT NOT NULL,
    PRIMARY KEY (run_id, "offset"),
    CONSTRAINT edge CHECK (edge IN ('begin', 'end')),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
    """
CREATE TABLE summaries (
    run_id INTEGER NOT NULL,
    n_iters INTEGER,
    n_measure INTEGER,
    peak_allocated_bytes INTEGER,
    peak_reserved_bytes INTEGER,
    median_s FLOAT,
    mad_s FLOAT,
    q1_s FLOAT,
    q3_s FLOAT,
    mean_s FLOAT,
    min_s FLOAT,
    max_s FLOAT,
    first_iter_s FLOAT,
    first_iter_excess_s FLOAT,
    first_third_median_s FLOAT,
    last_third_median_s FLOAT,
    drift_ratio FLOAT,
    loss_first FLOAT,
    loss_last FLOAT,
    loss_min FLOAT,
    val_loss_last FLOAT,
    setup_s FLOAT,
    compile_s FLOAT,
    warmup_s FLOAT,
    measure_s FLOAT,
    eval_s FLOAT,
    checkpoint_s FLOAT,
    other_s FLOAT,
    projected_real_s FLOAT,
    PRIMARY KEY (run_id),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
    """,
    """
CREATE TABLE taints (
    run_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    severity TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (run_id, kind),
    CONSTRAINT severity CHECK (severity IN ('invalid', 'caveat')),
    FOREIGN KEY(run_id) REFERENCES runs (id)
)
 WITHOUT ROWID
    """,
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
    NOT EXISTS (SELECT 1 FROM taints WHERE run_id = r.id AND severity = 'invalid') AS valid
FROM runs r
JOIN jobs j ON j.id = r.job_id
LEFT JOIN hellos h ON h.run_id = r.id
LEFT JOIN exits e ON e.run_id = r.id
LEFT JOIN summaries s ON s.run_id = r.id
    """,
    """
CREATE VIEW v_iteration AS
SELECT
    t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.dur_s, t.loss,
    CASE t.phase WHEN 0 THEN 'setup' WHEN 1 THEN 'compile' WHEN 2 THEN 'warmup' WHEN 3 THEN 'measure'
                 WHEN 4 THEN 'eval' WHEN 5 THEN 'checkpoint' ELSE 'eval_iter' END AS phase,
    t.synced, t.allocated_bytes, t.reserved_bytes
FROM iterations t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id
    """,
    """
CREATE VIEW v_eval AS
SELECT t.run_id, j.id || '.' || r.number AS run, t.offset, t.i, t.split, t.metric, t.value, t.dur_s
FROM evals t JOIN runs r ON r.id = t.run_id JOIN jobs j ON j.id = r.job_id
    """,
    """
CREATE VIEW v_event AS
SELECT t.id, t.at, t.job_id, t.run_id, CASE WHEN r.id IS NULL THEN NULL ELSE t.job_id || '.' || r.number END AS run,
    t.actor, t.verb, t.from_state, t.to_state, t.outcome, t.reason
FROM job_events t LEFT JOIN runs r ON r.id = t.run_id
    """,
    """
CREATE TRIGGER job_events_are_final BEFORE UPDATE ON job_events
BEGIN SELECT RAISE(ABORT, 'job_events is append-only'); END
    """,
    """
CREATE TRIGGER done_is_final BEFORE UPDATE OF state, outcome ON runs WHEN OLD.state = 'DONE'
BEGIN SELECT RAISE(ABORT, 'a run that is DONE stays as it is: a retry is a new run'); END
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement.strip())
