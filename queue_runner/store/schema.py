"""The tables, as SQLAlchemy Core. docs/schema.md explains them; the views in views.sql are the public read contract.

Times of day are Unix seconds (`_at`), durations seconds (`_s`), sizes bytes. Migrations must end in exactly this
schema: a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from queue_runner.lanes import ELSEWHERE
from queue_runner.model import DEFAULT_LANE, Obstacle, Outcome, State
from queue_runner.store.questions import QUESTION

metadata = MetaData()


def _one_of(column: str, values: type[State] | type[Outcome] | type[Obstacle]) -> str:
    return f"{column} IN ({', '.join(repr(v.value) for v in values)})"


def _run_key() -> Column[int]:
    return Column("run_id", Integer, ForeignKey("runs.id"), primary_key=True)


groups = Table(
    "groups",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("title", Text, nullable=False),  # the command line that made it
    Column("seed", Integer, nullable=False),  # of the interleaving
    Column("until", Text),  # rounds follow until 'decided', or until intervals are as narrow as '1%'
    Column("budget_s", Float),  # once the first run started this long ago no round is added; NULL: the default
    Column("closed_at", Float),  # since then no round is added
    Column("closed_why", Text),
    Column("aim", Text),  # spec.Aim as JSON: what the submission asks about; NULL: the time
    Column("judged_rounds", Integer),  # of an open group: its rounds that count, and about how many more decide it
    Column("more_rounds", Integer),
    Index("groups_open", "id", sqlite_where=text("until IS NOT NULL AND closed_at IS NULL")),
    sqlite_autoincrement=True,
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("hash", Text, primary_key=True),  # sha256 of the content
    Column("kind", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("git_commit", Text),
    Column("git_branch", Text),
    Column("git_dirty", Integer),
    Column("diff", Text),  # patch of the tracked files, secrets left out
    Column("tree_hash", Text),  # of the tree's content; NULL: it was not stored
    Column("copied", Integer, nullable=False, server_default=text("0")),  # the tree is under snapshots/
    Column("left_out_json", Text),  # paths missing from the copy: {path: reason}
    CheckConstraint("kind IN ('workload', 'tree')", name="kind"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("group_id", Integer, ForeignKey("groups.id"), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("workload", Text),
    Column("framework", Text),
    Column("device", Text),
    Column("compile", Integer),
    Column("dtype", Text),
    Column("config", Text),
    Column("spec_json", Text, nullable=False),  # the whole spec: queue_runner.spec.JobSpec
    Column("spec_hash", Text, nullable=False),  # sha256 of the spec without where it is submitted from
    Column("snapshot_hash", Text, ForeignKey("snapshots.hash")),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("lane", Text, nullable=False, server_default=DEFAULT_LANE),
    Column("note", Text),
    Column("deadline_at", Float),  # a run that has not started by then is SKIPPED
    Column("retries", Integer, nullable=False, server_default=text("0")),  # automatic attempts after the first
    Column("backoff_s", Float, nullable=False, server_default=text("0")),  # before the first of them; doubled each time
    Column("retry_on", Text),  # words of model.RETRY_ON, comma-separated
    Column("rerun_of", Integer),  # the job that this one repeats
    Column("schedule_id", Integer),  # the schedule that submitted it
    Column("deleted_at", Float),  # its files are gone and lists leave it out; its numbers stay
    CheckConstraint("kind IN ('workload', 'command', 'import')", name="kind"),
    CheckConstraint("compile IN (0, 1)", name="compile"),
    Index("jobs_group", "group_id"),
    Index("jobs_question", text(QUESTION)),
    Index("jobs_snapshot", "snapshot_hash"),
    Index("jobs_deadline", "deadline_at", sqlite_where=text("deadline_at IS NOT NULL")),
    sqlite_autoincrement=True,
)

job_tags = Table(
    "job_tags",
    metadata,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True),
    Column("tag", Text, primary_key=True),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("job_id", Integer, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),  # the 3 of run 12.3
    Column("repeat", Integer, nullable=False),  # which repeat of the job it is
    Column("attempt", Integer, nullable=False),  # first try 1, a retry 2, ...
    Column("lane", Text, nullable=False, server_default=DEFAULT_LANE),
    Column("position", Integer, nullable=False),  # order within one priority
    Column("state", Text, nullable=False),
    Column("outcome", Text),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("reason", Text),
    Column("created_at", Float, nullable=False),
    Column("claimed_at", Float),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("cancel_requested_at", Float),
    Column("blocked_reason", Text),
    Column("paused_at", Float),
    Column("token", Text),  # the 128-bit tag in the environment of everything this run started
    Column("boot_id", Text),
    Column("machine_hash", Text, ForeignKey("fingerprints.hash")),
    Column("software_hash", Text, ForeignKey("fingerprints.hash")),
    Column("not_before_at", Float),  # --at, or the back-off of a retry
    Column("resumed_from", Integer),  # the run whose checkpoint it resumes from: a separate row of reports
    Column("job_priority", Integer, nullable=False, server_default=text("0")),  # until it is DONE
    UniqueConstraint("job_id", "number", name="runs_number"),
    CheckConstraint(_one_of("state", State), name="state"),
    CheckConstraint(_one_of("outcome", Outcome), name="outcome"),
    CheckConstraint("(state = 'DONE') = (outcome IS NOT NULL)", name="outcome_exactly_when_done"),
    CheckConstraint("(outcome IS 'KILLED') <= (signal IS NOT NULL)", name="killed_has_a_signal"),
    CheckConstraint("(outcome IS 'FAILED') <= (exit_code IS NOT NULL AND exit_code <> 0)", name="failed_has_a_code"),
    CheckConstraint("(outcome IS 'SUCCEEDED') <= (exit_code IS 0 OR exit_code IS NULL)", name="succeeded_is_zero"),
    CheckConstraint("(state = 'RUNNING') <= (claimed_at IS NOT NULL AND token IS NOT NULL)", name="running_is_claimed"),
    Index("runs_one_running_per_lane", "lane", unique=True, sqlite_where=text("state = 'RUNNING'")),
    Index("runs_ended", "ended_at"),
    Index("runs_queue", "lane", text("job_priority DESC"), "position", sqlite_where=text("state = 'QUEUED'")),
    Index("runs_unended", "position", sqlite_where=text("state <> 'DONE'")),
    Index("runs_elsewhere", "lane", sqlite_where=text(ELSEWHERE)),
    Index("runs_not_before", "not_before_at", sqlite_where=text("not_before_at IS NOT NULL")),
    sqlite_autoincrement=True,
)

merged_jobs = Table(
    "merged_jobs",
    metadata,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True),
    Column("identity", Text, nullable=False, unique=True),  # sha256 of what names the job in the queue that ran it
    Column("question_hash", Text, nullable=False),  # of the fields of its spec that travel: no bundle may change them
    Column("machine_hash", Text, nullable=False),  # of the first run of its submission to end
)

merged_runs = Table(
    "merged_runs",
    metadata,
    _run_key(),
    Column("merged_at", Float, nullable=False),
    Column("bundle_hash", Text, nullable=False),  # of the bundle that brought it
    Column("content_hash", Text, nullable=False),  # of everything that was measured: the same run must not change
)

merges = Table(
    "merges",
    metadata,
    Column("bundle_hash", Text, primary_key=True),
    Column("plan_hash", Text, nullable=False),  # of the runs that it brings
    Column("first_run_id", Integer, nullable=False),  # of the ids kept for its runs
    Column("n_runs", Integer, nullable=False),
    Column("n_stored", Integer, nullable=False),  # runs, in their order, whose measurements are stored
    Column("at", Float, nullable=False),  # of the last progress
)
"""Merges that have not ended. Their measurements are stored, and belong to no run until the last transaction."""

job_events = Table(
    "job_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("job_id", Integer, ForeignKey("jobs.id"), nullable=False),
    Column("run_id", Integer, ForeignKey("runs.id")),
    Column("actor", Text, nullable=False),  # submit, worker, user, ...
    Column("verb", Text, nullable=False),
    Column("from_state", Text),
    Column("to_state", Text),
    Column("outcome", Text),
    Column("reason", Text),
    Index("job_events_job", "job_id", "id"),
    Index("job_events_run", "run_id", "id"),
    sqlite_autoincrement=True,
)

lanes = Table(
    "lanes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("blocked_reason", Text),  # why nothing starts, in words for a person; blocked_kind has what a program reads
    Column("blocked_at", Float),
    Column("paused_at", Float),
    Column("paused_reason", Text),  # who paused it, and whether it drains
    Column("blocked_kind", Text, CheckConstraint(_one_of("blocked_kind", Obstacle), name="blocked_kind")),
    Column("blocked_for", Integer),  # the run for which lanes are kept free
    Column("next_try_at", Float),  # when a target that does not answer is asked again
)

dependencies = Table(
    "dependencies",
    metadata,
    Column("job_id", Integer, ForeignKey("jobs.id"), primary_key=True),
    Column("on_job_id", Integer, ForeignKey("jobs.id"), primary_key=True),
    Column("condition", Text, nullable=False),
    CheckConstraint("condition IN ('ok', 'any', 'fail')", name="condition"),
    CheckConstraint("job_id <> on_job_id", name="not_on_itself"),
    Index("dependencies_on", "on_job_id"),
    sqlite_with_rowid=False,
)

schedules = Table(
    "schedules",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("name", Text, nullable=False, unique=True),
    Column("cron", Text, nullable=False),  # five fields, as crontab(5) reads them
    Column("timezone", Text, nullable=False),  # IANA name
    Column("title", Text, nullable=False),  # the command line that it submits
    Column("next_at", Float),  # the earliest time not yet handled; None: never again
    Column("last_at", Float),  # when it last submitted
    Column("last_group_id", Integer),
    Column("last_error", Text),
    Column("env_file", Text),  # the file with the environment in which it submits
    Column("command_json", Text),  # the words after `mpsq submit`
    Column("cwd", Text),
    Column("python", Text),  # the interpreter of mpsq; None: that of the worker
    sqlite_autoincrement=True,
)

fingerprints = Table(
    "fingerprints",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("data_json", Text, nullable=False),
    CheckConstraint("kind IN ('machine', 'software')", name="kind"),
)

conditions = Table(
    "conditions",
    metadata,
    _run_key(),
    Column("at", Float, primary_key=True),
    Column("data_json", Text, nullable=False),
    sqlite_with_rowid=False,
)

hellos = Table(
    "hellos",
    metadata,
    _run_key(),
    Column("workload", Text),
    Column("framework", Text),
    Column("framework_version", Text),
    Column("device", Text),
    Column("device_name", Text),
    Column("dtype", Text),
    Column("compile", Integer),
    Column("config", Text),
    Column("params", Integer),
    Column("flops_per_iter", Float),
    Column("tokens_per_iter", Float),
    Column("samples_per_iter", Float),
    Column("optimizer", Text),
    Column("seed", Integer),
    Column("planned_iters", Integer),
    Column("compile_cache", Text),  # cold, warm or mixed
    Column("data_name", Text),
    Column("data_sha256", Text),
    Column("hello_json", Text, nullable=False),  # the whole hello event
)

exits = Table(
    "exits",
    metadata,
    _run_key(),
    Column("real_s", Float),
    Column("slept_s", Float),
    Column("paused_s", Float),
    Column("user_s", Float),
    Column("sys_s", Float),
    Column("max_rss_bytes", Integer),
    Column("exit_json", Text, nullable=False),  # the warden's exit.json, or what an imported log reports
)

iterations = Table(
    "iterations",
    metadata,
    _run_key(),
    Column("offset", Integer, primary_key=True),  # of the line in its file: a resumed job repeats numbers
    Column("i", Integer, nullable=False),
    Column("dur_s", Float, nullable=False),
    Column("loss", Float),
    Column("phase", Integer, nullable=False),  # index into model.PHASES
    Column("synced", Integer, nullable=False),  # 0, 1 or model.SYNC_UNKNOWN
    Column("allocated_bytes", Integer),
    Column("reserved_bytes", Integer),
    sqlite_with_rowid=False,
)

phases = Table(
    "phases",
    metadata,
    _run_key(),
    Column("offset", Integer, primary_key=True),
    Column("t_s", Float, nullable=False),
    Column("name", Text, nullable=False),
    Column("edge", Text, nullable=False),
    CheckConstraint("edge IN ('begin', 'end')", name="edge"),
    sqlite_with_rowid=False,
)

evals = Table(
    "evals",
    metadata,
    _run_key(),
    Column("offset", Integer, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("i", Integer, nullable=False),
    Column("split", Text, nullable=False),
    Column("value", Float),
    Column("dur_s", Float),
    sqlite_with_rowid=False,
)

metrics = Table(
    "metrics",
    metadata,
    _run_key(),
    Column("offset", Integer, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("i", Integer),
    Column("value", Float),
    Column("unit", Text),
    sqlite_with_rowid=False,
)

notes = Table(
    "notes",
    metadata,
    _run_key(),
    Column("offset", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    sqlite_with_rowid=False,
)

taints = Table(
    "taints",
    metadata,
    _run_key(),
    Column("kind", Text, primary_key=True),
    Column("severity", Text, nullable=False),
    Column("detail", Text, nullable=False),
    CheckConstraint("severity IN ('invalid', 'caveat')", name="severity"),
    sqlite_with_rowid=False,
)

ingests = Table(
    "ingests",
    metadata,
    _run_key(),
    Column("source", Text, primary_key=True),
    Column("device", Integer),
    Column("inode", Integer),
    Column("offset", Integer, nullable=False),  # past the last complete line
    Column("tail_hash", Text, nullable=False),  # of the 4 KiB before offset
    Column("parser_state", Text),  # JSON, of the parser or ingest.clock; stored with the events
    Column("unknown", Integer, nullable=False, server_default=text("0")),
    Column("bad", Integer, nullable=False, server_default=text("0")),
    Column("forged", Integer, nullable=False, server_default=text("0")),
    Column("torn", Integer, nullable=False, server_default=text("0")),
    Column("rewritten", Integer, nullable=False, server_default=text("0")),
    CheckConstraint("source IN ('events', 'stdout')", name="source"),
)

summaries = Table(
    "summaries",
    metadata,
    _run_key(),
    *(Column(name, Integer) for name in ("n_iters", "n_measure", "peak_allocated_bytes", "peak_reserved_bytes")),
    *(
        Column(name, Float)
        for name in (
            "median_s",
            "mad_s",
            "q1_s",
            "q3_s",
            "mean_s",
            "min_s",
            "max_s",
            "first_iter_s",
            "first_iter_excess_s",
            "first_third_median_s",
            "last_third_median_s",
            "drift_ratio",
            "loss_first",
            "loss_last",
            "loss_min",
            "val_loss_last",
            "setup_s",
            "compile_s",
            "warmup_s",
            "measure_s",
            "eval_s",
            "checkpoint_s",
            "other_s",
            "projected_real_s",
        )
    ),
)
