"""The facts of a run in words, which `mpsq show` and the page of a job show."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from queue_runner import units
from queue_runner.model import DEFAULT_LANE, IN_COPY
from queue_runner.monitor.run_details import ChainLink, Details, Evaluation, HistoryEvent, Mfu
from queue_runner.times import stamp

OF_JOB = (
    *("settings", "search", "command", "folder", "python", "environment", "code", "rerun of"),
    *("tags", "priority"),
    *("note", "after", "deadline", "retries", "timeout", "parser", "schedule"),
)
"""Facts that all runs of a job share: shown once."""

COPIED = ("command", "folder", "python", "files", "")
"""Facts that are copied: they stay whole, while others are wrapped to the width of the terminal."""


def styles(details: Details) -> dict[str, str]:
    """Return the colours of facts on a terminal by their names (tables.STYLES)."""
    return {"state": details.run.style, "invalid": "bad", "caveat": "doubt"}


Fact = tuple[str, str | None]
"""The name and the value of a fact; it is not shown without a value."""


def facts(details: Details) -> list[tuple[str, str]]:
    """Return the names and values of the facts of a run, in the order in which they are shown. A name may be empty: the
    value belongs to the one before."""
    run, marks = details.run, {(taint.kind, taint.detail) for taint in details.taints}
    waited_s = details.start.get("gate_waited_s") or None
    pairs: list[Fact] = [
        ("run", f"{run.run}  {run.name}"),
        ("job", f"{run.job_id} in group g{run.group_id}, round {run.repeat}, attempt {run.attempt}"),
        ("state", run.fate()),
        ("settings", str(run.question) or units.MISSING),
        ("search", details.search),
        ("command", shlex.join(details.argv) or units.MISSING),
        ("folder", details.spec.cwd or units.MISSING),
        ("python", _python(details)),
        ("environment", _names(details.env)),
        ("code", _code(details)),
        ("runs in", _place(details)),
        ("lane", _lane(details)),
        ("tags", ", ".join(run.tags) or units.MISSING),
        ("priority", str(run.priority)),
        ("rerun of", _known(run.rerun_of, "job {}".format)),
        *_terms(details),
        ("timeout", _known(details.spec.timeout_s, units.duration)),
        ("parser", details.spec.parser),
        ("schedule", details.schedule),
        *((f"{name} at", _known(getattr(run, f"{name}_at"), stamp)) for name in ("created", "started", "ended")),
        ("start", _known(waited_s, lambda s: f"after waiting {units.duration(s)} for a quiet machine")),
        *_measured(details),
        ("suspended", _known((details.exit or {}).get("paused_s") or None, units.duration)),
        ("segments", "\n".join(map(_segment, details.segments))),
        ("phases", ", ".join(f"{name} {units.duration(s)}" for name, s in details.phases_s.items())),
        ("reported", "\n".join(map(_reported, sorted((details.hello or {}).items())))),
        *((taint.severity, str(taint)) for taint in details.taints),
        *(("run note", f"{note.kind}: {note.text}") for note in details.notes if (note.kind, note.text) not in marks),
        ("lines", ", ".join(f"{count} {key}" for key, count in details.lines.items() if count)),
        ("deleted", _known(run.deleted_at, lambda at: f"{stamp(at)}: its files are gone")),
        ("history", "\n".join(map(_event, details.history))),
        *(("files" if not n else "", path) for n, path in enumerate(details.files.values())),
    ]
    return [(name, value) for name, value in pairs if value]


def _reported(item: tuple[str, Any]) -> str:
    name, value = item
    if isinstance(value, Mapping):
        value = ", ".join(f"{k} {v}" for k, v in value.items() if v not in ("", None))
    return f"{name}: {value}"


def _known(value: Any, words: Callable[[Any], str]) -> str | None:
    return None if value is None else words(value)


def _terms(details: Details) -> Iterator[Fact]:
    """Yield when it may run and how often it is tried, as far as that was given."""
    run = details.run
    yield "note", run.note
    for dependency in details.after:
        wish = {"ok": "must succeed", "any": "must end", "fail": "must fail"}[dependency.condition]
        yield "after", f"job {dependency.job} {wish}: {dependency.verdict}"
    yield "not before", _known(run.not_before_at, stamp)
    yield "deadline", _known(run.deadline_at, lambda at: f"{stamp(at)}: skipped if it has not started by then")
    if run.retries:
        waits = f", the first after {units.duration(run.backoff_s)}" if run.backoff_s else ""
        yield "retries", f"{run.retries} at most, if {run.retry_on or 'failed'}{waits}"


def _names(env: Sequence[str]) -> str:
    """Return the variables on two lines; --json has all."""
    if not env:
        return "none captured"
    words = f"{len(env)} variables: {', '.join(env)}"
    return textwrap.fill(words, 64, max_lines=2, placeholder=" … (mpsq show --json prints all)", break_on_hyphens=False)


def _measured(details: Details) -> Iterator[Fact]:
    run = details.run
    if run.median_s is not None:
        spread = units.ms_plus_minus(run.median_s, run.mad_s)
        yield "per iteration", f"{spread} (median and MAD of {units.count(run.n_measure)} measured)"
    # the store has no number for a loss that is not one
    last = math.nan if run.loss_last is None and "diverged" in run.taints else run.loss_last
    if last is not None:
        yield "batch loss", f"{units.loss(run.loss_first)} first, {units.loss(last)} last"
    yield "evaluation", _known(details.evaluation, _evaluation)
    yield "metrics", ", ".join(f"{name}={units.measured(value)}" for name, value in details.metrics.items()) or None
    yield "MFU", _known(details.mfu, _mfu)
    if run.real_s is not None:
        times = [f"{units.seconds(getattr(run, f'{name}_s'))} {name}" for name in ("real", "user", "sys")]
        yield "time", ", ".join(times) + " (s)"
    yield "memory", _known(run.max_rss_bytes, lambda most: f"{units.size(most)} at peak")
    if run.peak_reserved_bytes and run.device not in (None, "cpu"):
        allocated = run.peak_allocated_bytes
        yield (
            "GPU memory",
            f"{units.size(run.peak_reserved_bytes)} at peak"
            + (f", {units.size(allocated)} of it in tensors" if allocated else ""),
        )
    yield "GPU busy", _known(details.gpu_busy_share, lambda share: f"{units.percent(share)} by all programs, median")


def _python(details: Details) -> str:
    torch = f"\n(which now has torch {details.torch})" if details.torch else ""
    unknown = units.MISSING if details.run.kind == "import" else "unknown: the command names no Python interpreter"
    return f"{details.spec.python}{torch}" if details.spec.python else unknown


def _evaluation(evaluation: Evaluation) -> str:
    """Return the losses of the last evaluation, and that training went on after it, if it did."""
    by_split = {"train": evaluation.train, "val": evaluation.val}
    losses = ", ".join(f"{split} loss {units.loss(loss)}" for split, loss in by_split.items() if loss is not None)
    step, last = evaluation.i, evaluation.last_i
    later = f"; training went on to iteration {units.count(last)}" if last is not None and last > step else ""
    return f"step {units.count(step)}: {losses or units.MISSING}{later}"


def _mfu(mfu: Mfu) -> str:
    """Return mpsq's MFU and the printed one, which is a share of an A100's peak on every device."""
    if mfu.share is not None:
        peak = f"{units.flops_per_s(mfu.peak_flops)} ({mfu.peak_source})"
        text = f"{units.percent(mfu.share)}: {units.flops_per_s(mfu.flops_per_s)} of {peak}"
    elif mfu.flops_per_s is not None:
        text = f"unknown: {units.flops_per_s(mfu.flops_per_s)}, but the peak is unknown"
    else:
        text = "unknown: the FLOP of an iteration were not reported"
    if mfu.printed_share is None:
        return text
    rate = units.flops_per_s(mfu.printed_flops_per_s)
    return f"{text}\nprinted by train.py: {mfu.printed_share * 100:.2f} % of an A100's 312 TFLOP/s, bf16: {rate}"


def _code(details: Details) -> str:
    code = details.code
    if code is None:
        return "outside of a repository"
    if code.git_dirty is None:
        revision = "outside of a repository"
    else:
        changed = ", with changes" if code.git_dirty else ""
        revision = f"commit {code.git_commit[:12]}{changed}" if code.git_commit else "no commit yet"
        revision += f" on branch {code.git_branch}" if code.git_branch else ""
    return f"{revision}; snapshot {code.hash[:12]}{_left_out(details)}"


def _left_out(details: Details) -> str:
    names = [f"{name} ({why})" for name, why in (details.code.left_out if details.code else {}).items()]
    more = f"\n… and {len(names) - 5} more: mpsq show --json prints all" if len(names) > 5 else ""
    return "".join(f"\nleft out: {name}" for name in names[:5]) + more


def _lane(details: Details) -> str | None:
    lane, processors = details.run.lane, details.spec.affinity
    if lane == DEFAULT_LANE and not processors:
        return None
    return lane + (f", on processors {processors}" if processors else "")


def _place(details: Details) -> str:
    if details.run.kind == "workload":
        return "its folder; the code is from its snapshot"
    if details.spec.copy or any(note.kind == IN_COPY for note in details.notes):
        written = f"; what it wrote there is in {details.files['tree']}" if "tree" in details.files else ""
        return f"a copy of the code as submitted{written}"
    if details.spec.allow_changed:
        return "its folder, whatever changes there (--snapshot off)"
    if not details.spec.tree:
        return "its folder; the code is not stored, and changes are not detected"
    if details.run.started_at is not None:
        return "its folder; the code had not changed when the run started"
    return "its folder, or a copy of the submitted code if the code changes before the start"


def _segment(part: ChainLink) -> str:
    span = "no iteration" if part.first_i is None else f"iterations {part.first_i} to {part.last_i}"
    return f"{part.run}: {span}" + (f", from a checkpoint of {part.resumed_from}" if part.resumed_from else "")


def _event(event: HistoryEvent) -> str:
    to = f" -> {event.outcome or event.to_state}" if event.to_state else ""
    return f"{stamp(event.at)}  {event.actor}: {event.verb}{to}" + (f": {event.reason}" if event.reason else "")
