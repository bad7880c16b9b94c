"""The texts of statements.py. Do not edit: `python -m queue_runner.store.statements` writes this file."""

# fmt: off
# ruff: noqa: E501
ADD_GROUP = "INSERT INTO groups (created_at, title, seed) VALUES (:created_at, :title, :seed) RETURNING id"
ADD_SNAPSHOT = "INSERT INTO snapshots (hash, kind, created_at, git_commit, git_branch, git_dirty, diff, tree_hash, copied, left_out_json) VALUES (:hash, :kind, :created_at, :git_commit, :git_branch, :git_dirty, :diff, :tree_hash, :copied, :left_out_json) ON CONFLICT DO NOTHING"
ADD_JOB = "INSERT INTO jobs (id, group_id, created_at, name, kind, workload, framework, device, compile, dtype, config, spec_json, spec_hash, snapshot_hash, priority, lane, note, deadline_at, retries, backoff_s, retry_on, rerun_of, schedule_id) VALUES (:id, :group_id, :created_at, :name, :kind, :workload, :framework, :device, :compile, :dtype, :config, :spec_json, :spec_hash, :snapshot_hash, :priority, :lane, :note, :deadline_at, :retries, :backoff_s, :retry_on, :rerun_of, :schedule_id)"
ADD_TAG = "INSERT INTO job_tags (job_id, tag) VALUES (:job_id, :tag)"
ADD_DEPENDENCY = "INSERT INTO dependencies (job_id, on_job_id, condition) VALUES (:job_id, :on_job_id, :condition)"
ADD_EVENT = "INSERT INTO job_events (at, job_id, run_id, actor, verb, from_state, to_state, outcome, reason) VALUES (:at, :job_id, :run_id, :actor, :verb, :from_state, :to_state, :outcome, :reason)"
PLACES = """
SELECT (SELECT min(runs.position) AS min_1
FROM runs
WHERE runs.state != 'DONE') AS anon_1, (SELECT max(runs.position) AS max_1
FROM runs
WHERE runs.state != 'DONE') AS anon_2
"""
ADD_FIRST_RUN = """
INSERT INTO runs (job_id, number, repeat, attempt, lane, position, state, created_at, not_before_at, job_priority) VALUES (:job_id, :number, :repeat, :attempt, :lane, :position, :state, :created_at, :not_before_at, (SELECT jobs.priority
FROM jobs
WHERE jobs.id = :job_id))
"""
ADD_RUN = """
INSERT INTO runs (job_id, number, repeat, attempt, lane, position, state, outcome, exit_code, signal, reason, created_at, claimed_at, started_at, ended_at, cancel_requested_at, blocked_reason, paused_at, token, boot_id, machine_hash, software_hash, not_before_at, resumed_from, job_priority) VALUES (:job_id, :number, :repeat, :attempt, :lane, :position, :state, :outcome, :exit_code, :signal, :reason, :created_at, :claimed_at, :started_at, :ended_at, :cancel_requested_at, :blocked_reason, :paused_at, :token, :boot_id, :machine_hash, :software_hash, :not_before_at, :resumed_from, (SELECT jobs.priority
FROM jobs
WHERE jobs.id = :job_id)) RETURNING id
"""
CLAIM = "UPDATE runs SET lane=:lane, state='RUNNING', claimed_at=:claimed_at, blocked_reason=NULL, token=:token, boot_id=:boot_id WHERE runs.id = :run_id AND runs.state = 'QUEUED' RETURNING job_id, number, repeat"
SPEC_OF_JOB = """
SELECT jobs.spec_json
FROM jobs
WHERE jobs.id = :job_id
"""
NAME_OF_RUN = """
SELECT runs.job_id, runs.number
FROM runs
WHERE runs.id = :run_id
"""
RUNNING = """
SELECT runs.id, runs.job_id, runs.number, runs.token, runs.boot_id, jobs.spec_json
FROM runs JOIN jobs ON jobs.id = runs.job_id
WHERE runs.state = 'RUNNING' AND runs.lane = :this_lane
"""
LANES_IN_USE = """
SELECT runs.lane
FROM runs
WHERE runs.state = 'RUNNING' AND (runs.lane NOT GLOB '*-g[0-9]*-??????')
"""
LAST_EVENT = """
SELECT max(job_events.id) AS max_1
FROM job_events
"""
LANE_OF_RUN = """
SELECT runs.lane
FROM runs
WHERE runs.id = :run_id
"""
STARTED_AT = """
SELECT runs.started_at
FROM runs
WHERE runs.id = :run_id
"""
CANCEL_REQUESTED_AT = """
SELECT runs.cancel_requested_at
FROM runs
WHERE runs.id = :run_id
"""
PAUSED_AT = """
SELECT runs.paused_at
FROM runs
WHERE runs.id = :run_id
"""
RUN_TO_MOVE = """
SELECT runs.job_id, runs.state, runs.outcome, runs.exit_code, runs.signal, runs.reason, runs.ended_at, runs.cancel_requested_at, runs.blocked_reason, runs.lane, runs.claimed_at, runs.paused_at, runs.token, runs.boot_id
FROM runs
WHERE runs.id = :run_id
"""
MOVE = "UPDATE runs SET lane=:lane, state=:state, outcome=:outcome, exit_code=:exit_code, signal=:signal, reason=:reason, claimed_at=:claimed_at, ended_at=:ended_at, cancel_requested_at=:cancel_requested_at, blocked_reason=:blocked_reason, paused_at=:paused_at, token=:token, boot_id=:boot_id WHERE runs.id = :run_id AND runs.state = :source"
MOVE_ALL = """
UPDATE runs SET state=:state, outcome=:outcome, exit_code=:exit_code, signal=:signal, reason=:reason, ended_at=:ended_at, blocked_reason=:blocked_reason WHERE runs.id IN (SELECT anon_1.value
FROM json_each(:ids) AS anon_1) AND runs.state IN (SELECT anon_2.value
FROM json_each(:sources) AS anon_2)
"""
ADD_EVENTS = """
INSERT INTO job_events (job_id, run_id, from_state, at, actor, verb, to_state, outcome, reason) SELECT runs.job_id, runs.id, runs.state, :at AS at, :actor AS actor, :verb AS verb, :to_state AS to_state, :outcome AS outcome, :reason AS reason
FROM runs
WHERE runs.id IN (SELECT anon_1.value
FROM json_each(:ids) AS anon_1) AND runs.state IN (SELECT anon_2.value
FROM json_each(:sources) AS anon_2)
"""
UNENDED = """
SELECT runs.id, runs.job_id, runs.number, runs.state, runs.token
FROM runs
WHERE runs.id IN (SELECT anon_1.value
FROM json_each(:ids) AS anon_1) AND runs.state != 'DONE'
"""
REQUEST_CANCEL = "UPDATE runs SET cancel_requested_at=:now WHERE runs.id = :run_id AND runs.cancel_requested_at IS NULL"
TAKE_OVER_HOLD = "UPDATE runs SET blocked_reason=NULL WHERE runs.id = :run_id AND runs.state = 'HELD' AND runs.blocked_reason IS NOT NULL"
SUSPEND = "UPDATE runs SET paused_at=:now WHERE runs.id = :run_id AND runs.paused_at IS NULL AND runs.state = 'RUNNING'"
CONTINUE = "UPDATE runs SET paused_at=NULL WHERE runs.id = :run_id AND runs.paused_at IS NOT NULL AND runs.state != 'DONE'"
NEWEST_EVENT_OF_RUN = """
SELECT job_events.verb, job_events.at
FROM job_events
WHERE job_events.run_id = :run_id ORDER BY job_events.id DESC
LIMIT 1 OFFSET 0
"""
PUT_LANE = "INSERT INTO lanes (name, blocked_reason, blocked_at, paused_at, paused_reason, blocked_kind, blocked_for, next_try_at) VALUES (:name, :blocked_reason, :blocked_at, :paused_at, :paused_reason, :blocked_kind, :blocked_for, :next_try_at) ON CONFLICT (name) DO UPDATE SET blocked_reason = :blocked_reason, blocked_at = :blocked_at, paused_at = :paused_at, paused_reason = :paused_reason, blocked_kind = :blocked_kind, blocked_for = :blocked_for, next_try_at = :next_try_at"
PUT_INGEST_STATE = "INSERT INTO ingests (run_id, source, device, inode, \"offset\", tail_hash, parser_state, unknown, bad, forged, torn, rewritten) VALUES (:run_id, :source, :device, :inode, :offset, :tail_hash, :parser_state, :unknown, :bad, :forged, :torn, :rewritten) ON CONFLICT (run_id, source) DO UPDATE SET device = :device, inode = :inode, \"offset\" = :offset, tail_hash = :tail_hash, parser_state = :parser_state, unknown = :unknown, bad = :bad, forged = :forged, torn = :torn, rewritten = :rewritten"
ADD_ITERATION = "INSERT INTO iterations (run_id, \"offset\", i, dur_s, loss, phase, synced, allocated_bytes, reserved_bytes) VALUES (:run_id, :offset, :i, :dur_s, :loss, :phase, :synced, :allocated_bytes, :reserved_bytes)"
ADD_PHASE = "INSERT INTO phases (run_id, \"offset\", t_s, name, edge) VALUES (:run_id, :offset, :t_s, :name, :edge)"
ADD_EVAL = "INSERT INTO evals (run_id, \"offset\", metric, i, split, value, dur_s) VALUES (:run_id, :offset, :metric, :i, :split, :value, :dur_s)"
ADD_METRIC = "INSERT INTO metrics (run_id, \"offset\", name, i, value, unit) VALUES (:run_id, :offset, :name, :i, :value, :unit)"
ADD_METRIC_ONCE = "INSERT INTO metrics (run_id, \"offset\", name, i, value, unit) VALUES (:run_id, :offset, :name, :i, :value, :unit) ON CONFLICT DO NOTHING"
ADD_NOTE = "INSERT INTO notes (run_id, \"offset\", kind, text) VALUES (:run_id, :offset, :kind, :text)"
ADD_NOTE_ONCE = "INSERT INTO notes (run_id, \"offset\", kind, text) VALUES (:run_id, :offset, :kind, :text) ON CONFLICT DO NOTHING"
PUT_HELLO = "INSERT INTO hellos (run_id, workload, framework, framework_version, device, device_name, dtype, compile, config, params, flops_per_iter, tokens_per_iter, samples_per_iter, optimizer, seed, planned_iters, compile_cache, data_name, data_sha256, hello_json) VALUES (:run_id, :workload, :framework, :framework_version, :device, :device_name, :dtype, :compile, :config, :params, :flops_per_iter, :tokens_per_iter, :samples_per_iter, :optimizer, :seed, :planned_iters, :compile_cache, :data_name, :data_sha256, :hello_json) ON CONFLICT (run_id) DO UPDATE SET workload = :workload, framework = :framework, framework_version = :framework_version, device = :device, device_name = :device_name, dtype = :dtype, compile = :compile, config = :config, params = :params, flops_per_iter = :flops_per_iter, tokens_per_iter = :tokens_per_iter, samples_per_iter = :samples_per_iter, optimizer = :optimizer, seed = :seed, planned_iters = :planned_iters, compile_cache = :compile_cache, data_name = :data_name, data_sha256 = :data_sha256, hello_json = :hello_json"
ADD_EXIT = "INSERT INTO exits (run_id, real_s, slept_s, paused_s, user_s, sys_s, max_rss_bytes, exit_json) VALUES (:run_id, :real_s, :slept_s, :paused_s, :user_s, :sys_s, :max_rss_bytes, :exit_json) ON CONFLICT DO NOTHING"
PUT_SUMMARY = "INSERT INTO summaries (run_id, n_iters, n_measure, peak_allocated_bytes, peak_reserved_bytes, median_s, mad_s, q1_s, q3_s, mean_s, min_s, max_s, first_iter_s, first_iter_excess_s, first_third_median_s, last_third_median_s, drift_ratio, loss_first, loss_last, loss_min, val_loss_last, setup_s, compile_s, warmup_s, measure_s, eval_s, checkpoint_s, other_s, projected_real_s) VALUES (:run_id, :n_iters, :n_measure, :peak_allocated_bytes, :peak_reserved_bytes, :median_s, :mad_s, :q1_s, :q3_s, :mean_s, :min_s, :max_s, :first_iter_s, :first_iter_excess_s, :first_third_median_s, :last_third_median_s, :drift_ratio, :loss_first, :loss_last, :loss_min, :val_loss_last, :setup_s, :compile_s, :warmup_s, :measure_s, :eval_s, :checkpoint_s, :other_s, :projected_real_s) ON CONFLICT (run_id) DO UPDATE SET n_iters = :n_iters, n_measure = :n_measure, peak_allocated_bytes = :peak_allocated_bytes, peak_reserved_bytes = :peak_reserved_bytes, median_s = :median_s, mad_s = :mad_s, q1_s = :q1_s, q3_s = :q3_s, mean_s = :mean_s, min_s = :min_s, max_s = :max_s, first_iter_s = :first_iter_s, first_iter_excess_s = :first_iter_excess_s, first_third_median_s = :first_third_median_s, last_third_median_s = :last_third_median_s, drift_ratio = :drift_ratio, loss_first = :loss_first, loss_last = :loss_last, loss_min = :loss_min, val_loss_last = :val_loss_last, setup_s = :setup_s, compile_s = :compile_s, warmup_s = :warmup_s, measure_s = :measure_s, eval_s = :eval_s, checkpoint_s = :checkpoint_s, other_s = :other_s, projected_real_s = :projected_real_s"
ADD_TAINT = "INSERT INTO taints (run_id, kind, severity, detail) VALUES (:run_id, :kind, :severity, :detail) ON CONFLICT DO NOTHING"
ADD_CONDITION = "INSERT INTO conditions (run_id, at, data_json) VALUES (:run_id, :at, :data_json) ON CONFLICT DO NOTHING"
ADD_FINGERPRINT = "INSERT INTO fingerprints (hash, kind, data_json) VALUES (:hash, :kind, :data_json) ON CONFLICT DO NOTHING"
LAST_NUMBER = """
SELECT max(runs.number) AS max_1
FROM runs
WHERE runs.job_id = :job_id
"""
CHECKED_RUN = """
SELECT runs.id
FROM runs JOIN metrics ON metrics.run_id = runs.id
WHERE runs.job_id = :job_id AND runs.lane = :this_lane AND runs.outcome = 'SUCCEEDED' AND metrics.name = 'reference_loss_cpu' AND NOT (EXISTS (SELECT *
FROM notes
WHERE notes.run_id = runs.id AND notes.kind = 'wrong_loss'))
LIMIT 1 OFFSET 0
"""
TERMS_OF_JOB = """
SELECT jobs.group_id, jobs.priority, jobs.note, jobs.deadline_at, jobs.retries, jobs.backoff_s, jobs.retry_on, jobs.schedule_id
FROM jobs
WHERE jobs.id = :job_id
"""
TAGS_OF_JOB = """
SELECT job_tags.tag
FROM job_tags
WHERE job_tags.job_id = :job_id
"""
