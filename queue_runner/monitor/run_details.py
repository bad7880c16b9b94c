"""Everything known about a run: its question, its results, its files, its notes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields, replace

from queue_runner import config_file
from queue_runner.analysis import gpu_use, peaks, run_metrics, stats
from queue_runner.analysis.points import PhaseMark
from queue_runner.host import redact
from queue_runner.host.run_dir import RunDir
from queue_runner.machine_records import read_machine, read_samples
from queue_runner.model import OWN_NOTE, Taint
from queue_runner.monitor.run_view import RunView, flag
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.store import read, retries
from queue_runner.submit import interpreter
from queue_runner.submit.find_max import next_probe
from queue_runner.workloads import command_line

_PHASES = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "other")


class Code(Struct, frozen=True):
    """The snapshot of a job's code."""

    hash: str
    kind: str
    git_commit: str | None
    git_branch: str | None
    git_dirty: bool | None
    diff_chars: int | None
    tree_hash: str | None
    copied: bool
    left_out: Mapping[str, str]


class ChainLink(Struct, frozen=True):
    """A run of a chain of runs that continue one another."""

    run: str
    resumed_from: str | None
    first_i: int | None
    last_i: int | None


class TrainerNote(Struct, frozen=True):
    """A note of the trainer, or one of the queue, which has no offset."""

    offset: int | None
    kind: str
    text: str


class HistoryEvent(Struct, frozen=True):
    """An event in the history of a run."""

    at: float
    run: str | None
    actor: str
    verb: str
    from_state: str | None
    to_state: str | None
    outcome: str | None
    reason: str | None


class AwaitedJob(Struct, frozen=True):
    """A job that this one waits for, or waited for."""

    job: int
    condition: str
    verdict: str


class Evaluation(Struct, frozen=True):
    """The last evaluation, at step `i`; a loss is None if it was not evaluated. `last_i` is the last iteration."""

    i: int
    train: float | None
    val: float | None
    last_i: int | None


A100_BF16_FLOPS = 312e12
"""nanoGPT's train.py divides by this peak on every device ("A100 GPU bfloat16 peak flops is 312 TFLOPS", estimate_mfu
in github.com/karpathy/nanoGPT, model.py): its MFU is a rate in FLOP/s."""


class Mfu(Struct, frozen=True):
    """Shares of 1 and FLOP per second of a run, by the median of its measured iterations; None is unknown."""

    flops_per_s: float | None
    share: float | None
    peak_flops: float | None
    peak_source: str | None
    printed_share: float | None
    """the median of what the trainer printed, of A100_BF16_FLOPS"""
    printed_flops_per_s: float | None


class Details(Struct, frozen=True):
    """Everything known about one run. `argv` is redacted, `lines` counts event lines that were not stored as the events
    that they claim to be, `metrics` maps names to last values, `files` names to existing paths."""

    run: RunView
    spec: JobSpec
    argv: Sequence[str]
    torch: str | None
    schedule: str | None
    code: Code | None
    hello: Mapping[str, Any] | None
    exit: Mapping[str, Any] | None
    phases_s: Mapping[str, float]
    segments: Sequence[ChainLink]
    taints: Sequence[Taint]
    notes: Sequence[TrainerNote]
    lines: Mapping[str, int]
    history: Sequence[HistoryEvent]
    files: Mapping[str, str]
    after: Sequence[AwaitedJob]
    search: str | None
    evaluation: Evaluation | None
    metrics: Mapping[str, float | None]
    mfu: Mfu | None
    gpu_busy_share: float | None
    start: Mapping[str, float]

    @property
    def env(self) -> list[str]:
        """The names of the variables that it gets."""
        return sorted({*self.spec.env, *self.spec.secrets})

    def as_json(self) -> dict[str, Any]:
        """Return the object that docs/json.md describes."""
        run, spec = self.run, self.spec
        columns = {name: getattr(run, name) for name in _OF_RUN} | {name: getattr(spec, name) for name in _OF_SPEC}
        columns |= {"processors": spec.affinity or None, "env": self.env}
        details = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "spec"}
        return details | columns


_OF_RUN = ("lane", "spec_hash", "rerun_of", "deleted_at", "backoff_s", "retry_on")
_OF_SPEC = ("cwd", "python", "seed", "timeout_s", "parser", "copy", "allow_changed")


def details(layout: Layout, connection: sqlite3.Connection, run: RunView) -> Details:
    """Return everything about one run."""
    spec, run_id = run.spec.in_round(run.repeat), run.run_id
    samples = read.tuples(connection, "SELECT at, data_json FROM conditions WHERE run_id = ? ORDER BY at", [run_id])
    conditions = samples.fetchall()
    marks = read.tuples(connection, "SELECT t_s, name, edge FROM phases WHERE run_id = ? ORDER BY offset", [run_id])
    use = gpu_use.measured(read_samples(conditions), [PhaseMark(*row) for row in marks], run.started_at, run.real_s)
    metrics = read.tuples(connection, read.LAST_METRICS.replace("{runs}", str(run_id)))
    of_run = f"run_id = {run_id}"
    history = _rows(connection, HistoryEvent, f"v_event WHERE job_id = {run.job_id} ORDER BY id")
    return Details(
        run,
        spec,
        argv=redact.redact(command_line.build_argv(spec, layout.snapshots)),
        torch=interpreter.torch_of(spec.python) if spec.python else None,
        schedule=read.schedule_name(connection, run.schedule_id),
        code=_code(connection, run.snapshot_hash),
        hello=_json(read.value(connection, "SELECT hello_json FROM hellos WHERE run_id = ?", run_id)),
        exit=_json(read.value(connection, "SELECT exit_json FROM exits WHERE run_id = ?", run_id)),
        phases_s={name: s for name in _PHASES if (s := getattr(run, f"{name}_s")) is not None},
        segments=_segments(connection, run_id),
        taints=_rows(connection, Taint, f"taints WHERE {of_run} ORDER BY severity DESC, kind"),
        notes=_notes(connection, of_run),
        lines=_lost_lines(connection, run_id),
        history=[entry for entry in history if entry.run in (None, run.run)],
        files=_files(RunDir(layout.runs / run.run)),
        after=[AwaitedJob(*row) for row in read.tuples(connection, _AFTER, [run.job_id])],
        search=_search(connection, run.job_id, spec),
        evaluation=_last_evaluation(connection, run_id),
        metrics={name: value for _, name, value, _ in metrics if name not in run_metrics.INTERNAL},
        mfu=_mfu(layout, connection, run),
        gpu_busy_share=use.busy_share if use else None,
        start={
            key: data[key]
            for _, text in conditions
            for data in [json.loads(text)]
            for key in _START_FACTS & data.keys()
        },
    )


_AFTER = "SELECT on_job_id, condition, verdict FROM v_dependency WHERE job_id = ? ORDER BY on_job_id"

T = TypeVar("T", bound=Struct)


def _rows(connection: sqlite3.Connection, kind: type[T], source: str) -> list[T]:
    """Return rows as records, each with the columns of its fields. `source` is SQL after FROM."""
    names = ", ".join(kind.__struct_fields__)
    return [kind(*row) for row in read.tuples(connection, f"SELECT {names} FROM {source}")]


def _json(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else dict(json.loads(text))


_START_FACTS = frozenset({"gate_waited_s"})
"""Keys of the conditions of a run that say how it was started (docs/json.md)."""
_LOST_LINES = ("unknown", "bad", "forged", "torn", "rewritten")


def _notes(connection: sqlite3.Connection, of_run: str) -> list[TrainerNote]:
    notes = _rows(connection, TrainerNote, f"notes WHERE {of_run} ORDER BY offset")
    return [replace(note, offset=None) if (note.offset or 0) >= OWN_NOTE else note for note in notes]


def _lost_lines(connection: sqlite3.Connection, run_id: int) -> dict[str, int]:
    sums = ", ".join(f"total({name})" for name in _LOST_LINES)
    counts = read.tuples(connection, f"SELECT {sums} FROM ingests WHERE run_id = ?", [run_id]).fetchone()
    return dict(zip(_LOST_LINES, map(int, counts), strict=True))


def _last_evaluation(connection: sqlite3.Connection, run_id: int) -> Evaluation | None:
    last = read.tuples(connection, read.LAST_EVALUATIONS.replace("{runs}", str(run_id))).fetchone()
    if last is None:
        return None
    _, step, train, val = last
    last_i = read.value(connection, "SELECT i FROM iterations WHERE run_id = ? ORDER BY offset DESC LIMIT 1", run_id)
    return Evaluation(step, train, val, last_i)


def _mfu(layout: Layout, connection: sqlite3.Connection, run: RunView) -> Mfu | None:
    """Return the MFU of a run; None if neither rate is known."""
    sql = "SELECT value FROM metrics WHERE run_id = ? AND name = 'mfu_printed' AND value IS NOT NULL"
    printed = [percent / 100 for (percent,) in read.tuples(connection, sql, [run.run_id])]
    share = stats.median(printed) if printed else None
    median_s, flops = run.median_s, run.flops_per_iter
    rate = flops / median_s if flops is not None and median_s else None
    if rate is None and share is None:
        return None
    machine = read.value(connection, "SELECT data_json FROM fingerprints WHERE hash = ?", run.machine_hash)
    cores = read_machine(machine).gpu_cores
    peak = peaks.known(config_file.load(layout.config).peak_tflops, run.device, run.device_name, cores, run.dtype)
    peak = peaks.of_gpus(peak, run.spec.gpus)
    return Mfu(
        flops_per_s=rate,
        share=peaks.mfu(flops, median_s, peak),
        peak_flops=peak.flops if peak else None,
        peak_source=peak.source if peak else None,
        printed_share=share,
        printed_flops_per_s=None if share is None else share * A100_BF16_FLOPS,
    )


def _search(connection: sqlite3.Connection, job_id: int, spec: JobSpec) -> str | None:
    """Return the state of the search that the job is a probe of (--find-max)."""
    state = next_probe.state_of_job(connection, job_id)
    name = spec.find_max.partition("=")[0]
    return None if state is None else f"--find-max {spec.find_max}: {state.sentence(name)}"


class Patch(Struct, frozen=True):
    """The patch of one job's code. If there is none to show, `text` is None and `about` says why; else `about` says
    what it belongs to."""

    job: int
    about: str
    text: str | None


def patches(connection: sqlite3.Connection, runs: Iterable[RunView]) -> list[Patch]:
    """Return the patch of each job, once."""
    jobs = {run.job_id: run.snapshot_hash for run in runs}
    return [_patch(connection, job, digest) for job, digest in jobs.items()]


def _patch(connection: sqlite3.Connection, job: int, digest: str | None) -> Patch:
    code = _code(connection, digest)
    if code is None or code.git_commit is None:
        in_repository = code is not None and code.git_dirty is not None
        reason = "there was no commit" if in_repository else "its code was not in a repository"
        return Patch(job, f"{reason}, so there is no patch", None)
    where = f"commit {code.git_commit}" + (f" on {code.git_branch}" if code.git_branch else "")
    text = read.value(connection, "SELECT diff FROM snapshots WHERE hash = ?", digest)
    if text is None:
        return Patch(job, f"{where}, and a patch that was too large to be stored", None)
    return Patch(job, where, text) if text else Patch(job, f"{where}, without changes", None)


def _segments(connection: sqlite3.Connection, run_id: int) -> list[ChainLink]:
    """Return the chain of runs that continue one another, if there is one."""
    chain = retries.chain(connection, run_id)
    names = {part.run_id: part.run for part in chain}
    parts = chain if len(chain) > 1 else []
    return [ChainLink(part.run, names.get(part.resumed_from or 0), part.first_i, part.last_i) for part in parts]


def _code(connection: sqlite3.Connection, digest: str | None) -> Code | None:
    columns = "hash, kind, git_commit, git_branch, git_dirty, length(diff), tree_hash, copied, left_out_json"
    row = read.tuples(connection, f"SELECT {columns} FROM snapshots WHERE hash = ?", [digest]).fetchone()
    if row is None:
        return None
    digest, kind, commit, branch, dirty, diff_chars, tree, copied, left_out = row
    reasons = json.loads(left_out or "{}")
    return Code(digest, kind, commit, branch, flag(dirty), diff_chars, tree, bool(copied), reasons)


def _files(folder: RunDir) -> dict[str, str]:
    names = ("stdout", "stderr", "events", "out", "tree", "warden_log")
    files: dict[str, Path] = {"folder": folder.path, **{name: getattr(folder, name) for name in names}}
    return {name: str(path) for name, path in files.items() if path.exists()}
