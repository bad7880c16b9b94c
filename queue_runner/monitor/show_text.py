"""What is known about a run, in words: the facts that `mpsq show` and the page of a job show."""

from __future__ import annotations

import math
import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from queue_runner import tables, units
from queue_runner.model import DEFAULT_LANE, Row
from queue_runner.monitor import listing

OF_JOB = (
    *(
        "asks",
        "search",
        "command",
        "folder",
        "python",
        "environment",
        "code",
        "runs in",
        "rerun of",
        "tags",
        "priority",
    ),
    *("remark", "after", "deadline", "retries", "timeout", "parser", "schedule"),
)
"""Facts that all runs of a job share: shown once."""


PROSE = (
    *("state", "asks", "remark", "after", "start", "time", "phases", "said", "invalid", "caveat", "note", "lines"),
    *("evaluation", "MFU", "hook", "history", "segments", "tags"),
)
"""Facts wrapped to the width of the terminal: they are read, not copied."""


def styles(one: Row) -> dict[str, str]:
    """Return the colours of facts on a terminal by their names (tables.STYLES)."""
    return {"state": listing.style(one["run"]), "invalid": "bad", "caveat": "doubt"}


Fact = tuple[str, str | None]
"""The name and the value of a fact; it is not shown without a value."""


def facts(one: Row) -> list[tuple[str, str]]:
    """Return the names and values of what is known about a run, as `show.details` returns it, in the order in which
    they are shown. A name may be empty: the value belongs to the one before."""
    run = one["run"]
    found: list[Fact] = [
        ("run", f"{run['run']}  {run['name']}"),
        ("of", f"job {run['job_id']} in group g{run['group_id']}, repeat {run['repeat']}, attempt {run['attempt']}"),
        ("state", listing.ending(run) + (f": {run['reason']}" if run["reason"] else "")),
        ("asks", listing.question(run) or units.MISSING),
        ("search", one["search"]),
        ("command", shlex.join(one["argv"]) or units.MISSING),
        ("folder", one["cwd"] or units.MISSING),
        ("python", _python(one)),
        ("environment", _names(one["env"])),
        ("code", _code(one)),
        ("runs in", _place(one)),
        ("lane", _lane(one)),
        ("tags", ", ".join(run["tags"]) or units.MISSING),
        ("priority", str(run["priority"])),
        ("rerun of", _known(one["rerun_of"], "job {}".format)),
        *_terms(one),
        ("timeout", _known(one["timeout_s"], units.duration)),
        ("parser", one["parser"]),
        ("schedule", one["schedule"]),
        *((f"{name} at", _known(run[f"{name}_at"], _when)) for name in ("created", "started", "ended")),
        ("start", _start(one["start"])),
        *_measured(one),
        ("suspended", _known((one["exit"] or {}).get("paused_s") or None, units.duration)),
        ("segments", "\n".join(map(_segment, one["segments"]))),
        ("phases", ", ".join(f"{name} {units.duration(s)}" for name, s in one["phases_s"].items())),
        ("said", "\n".join(f"{k}: {v}" for k, v in sorted((one["hello"] or {}).items()))),
        *((t["severity"], f"{t['kind']}: {t['detail']}") for t in one["taints"]),
        *(("note", f"{n['kind']}: {n['text']}") for n in one["notes"]),
        ("lines", ", ".join(f"{count} {key}" for key, count in one["lines"].items() if count)),
        ("deleted", _known(one["deleted_at"], lambda at: f"{_when(at)}: its files are gone")),
        ("hook", "\n".join(map(_hook, one["hooks"]))),
        ("history", "\n".join(map(_event, one["history"]))),
        *(("files" if not n else "", path) for n, path in enumerate(one["files"].values())),
    ]
    return [(name, value) for name, value in found if value]


def _start(start: Row) -> str | None:
    """Return how the run was started, as far as something was done for it."""
    told = []
    if start.get("gate_waited_s"):
        told.append(f"after {units.duration(start['gate_waited_s'])} of waiting for a quiet machine")
    if "env_padding_bytes" in start:
        told.append(f"environment padded with {units.count(start['env_padding_bytes'])} bytes")
    if "hash_seed" in start:
        told.append(f"PYTHONHASHSEED {start['hash_seed']}")
    if "canary_s" in start:
        tries = f", at try {start['canary_tries']:.0f}" if start["canary_tries"] > 1 else ""
        level = f"level {units.ms(start['canary_level_s'])} ms"
        told.append(f"canary {units.ms(start['canary_s'])} ms ({level}{tries})")
    return "; ".join(told) or None


def _known(value: Any, words: Callable[[Any], str]) -> str | None:
    return None if value is None else words(value)


def _terms(one: Row) -> Iterator[Fact]:
    """Yield when it may run and how often it is tried, as far as that was given."""
    run = one["run"]
    yield "remark", run["note"]
    for dependency in one["after"]:
        wish = {"ok": "is ok", "any": "has ended", "fail": "is not ok"}[dependency["condition"]]
        yield "after", f"job {dependency['job']} {wish}: {dependency['verdict']}"
    yield "not before", _known(run["not_before_at"], _when)
    yield "deadline", _known(run["deadline_at"], lambda at: f"{_when(at)}: skipped if it has not started by then")
    if run["retries"]:
        waits = f", the first after {units.duration(one['backoff_s'])}" if one["backoff_s"] else ""
        yield "retries", f"{run['retries']} at most, of what is {one['retry_on'] or 'failed'}{waits}"


def _names(env: Sequence[str]) -> str:
    """Return the variables on two lines; --json has all."""
    if not env:
        return "none captured"
    words = f"{len(env)} variables: {', '.join(env)}"
    return textwrap.fill(words, 64, max_lines=2, placeholder=" … (--json has all)", break_on_hyphens=False)


def _measured(one: Row) -> Iterator[Fact]:
    run: Any = one["run"]
    if run["median_s"] is not None:
        spread = units.ms_plus_minus(run["median_s"], run["mad_s"])
        yield "per iteration", f"{spread} (median and MAD of {units.count(run['n_measure'])} measured)"
    if (last := _loss_last(run)) is not None:
        yield "batch loss", f"{units.loss(run['loss_first'])} first, {units.loss(last)} last"
    yield "evaluation", _known(one["evaluation"], _evaluation)
    yield "MFU", _known(one["mfu"], _mfu)
    if run["real_s"] is not None:
        times = [f"{units.seconds(run[f'{name}_s'])} {name}" for name in ("real", "user", "sys")]
        yield "time", ", ".join(times) + " (s)"
    yield "memory", _known(run["max_rss_bytes"], lambda most: f"{units.size(most)} at most")
    if run["peak_reserved_bytes"] and run["device"] not in (None, "cpu"):
        held = run["peak_allocated_bytes"]
        yield (
            "GPU memory",
            f"{units.size(run['peak_reserved_bytes'])} at most"
            + (f", {units.size(held)} of it in tensors" if held else ""),
        )
    uses = [f"{use['phase']} {units.percent(use['busy_share'])} ({use['samples']})" for use in one["gpu_use"]]
    yield "GPU busy", f"{', '.join(uses)}: median by all programs (samples)" if uses else None


def _python(one: Row) -> str:
    torch = f" (torch {one['torch']} is there now)" if one["torch"] else ""
    unknown = units.MISSING if one["run"]["kind"] == "import" else "unknown: the command does not say which"
    return f"{one['python']}{torch}" if one["python"] else unknown


def _evaluation(found: Row) -> str:
    """Return the losses of the last evaluation, and that training went on after it, if it did."""
    losses = ", ".join(
        f"{split} loss {units.loss(found[split])}" for split in ("train", "val") if found[split] is not None
    )
    step, last = found["i"], found["last_i"]
    later = f"; not evaluated after it, up to iteration {units.count(last)}" if last is not None and last > step else ""
    return f"step {units.count(step)}: {losses or units.MISSING}{later}"


def _mfu(found: Row) -> str:
    """Return mpsq's MFU, and beside it the printed one, which is a share of an A100's peak on every device."""
    if found["share"] is not None:
        peak = f"{units.flops_per_s(found['peak_flops'])} ({found['peak_source']})"
        said = f"{units.percent(found['share'])}: {units.flops_per_s(found['flops_per_s'])} of {peak}"
    elif found["flops_per_s"] is not None:
        said = f"unknown: {units.flops_per_s(found['flops_per_s'])}, of a peak that is not known"
    else:
        said = "unknown: the FLOP of an iteration were not reported"
    if found["printed_share"] is None:
        return said
    rate = units.flops_per_s(found["printed_flops_per_s"])
    return f"{said}\nprinted by train.py: {found['printed_share'] * 100:.2f} % of an A100's 312 TFLOP/s, bf16: {rate}"


def _loss_last(run: Row) -> float | None:
    """Return the last loss; nan if the losses ended in a non-number: the store has none then, and `run` has null."""
    last: float | None = run["loss_last"]
    return math.nan if last is None and "diverged" in run["taints"] else last


def _code(one: Row) -> str:
    code = one["code"]
    if code is None:
        return "outside of a repository"
    if code["git_dirty"] is None:
        revision = "outside of a repository"
    else:
        changed = ", with changes" if code["git_dirty"] else ""
        revision = f"commit {code['git_commit'][:12]}{changed}" if code["git_commit"] else "no commit"
        revision += f" on {code['git_branch']}" if code["git_branch"] else ""
    return f"{revision}; snapshot {code['hash'][:12]}{_left_out(one)}"


def _left_out(one: Row) -> str:
    names = [f"{name} ({why})" for name, why in (one["code"] or {}).get("left_out", {}).items()]
    more = f"\n… and {len(names) - 5} more: --json has all" if len(names) > 5 else ""
    return "".join(f"\nleft out: {name}" for name in names[:5]) + more


def _lane(one: Row) -> str | None:
    if one["lane"] == DEFAULT_LANE and one["processors"] is None:
        return None
    return str(one["lane"]) + (f", on processors {one['processors']}" if one["processors"] else "")


def _place(one: Row) -> str:
    if one["run"]["kind"] == "workload":
        return "its folder, from its snapshot"
    if one["copy"]:
        return "a copy of the code as it was at submit"
    if one["code"] is None or not one["code"]["tree_hash"]:
        return "its folder; changes of the code are not detected"
    return "its folder; " + ("its code may change" if one["allow_changed"] else "not if its code has changed")


def _segment(part: Any) -> str:
    span = "no iteration" if part["first_i"] is None else f"iterations {part['first_i']} to {part['last_i']}"
    return f"{part['run']}: {span}" + (f", from a checkpoint of {part['resumed_from']}" if part["resumed_from"] else "")


def _hook(call: Any) -> str:
    said = (call["output"] or "").splitlines()
    lines = [listing.hook_ending(call), *(said[-_HOOK_LINES:] if call["state"] != "ok" else [])]
    return "\n  ".join(tables.shorten(line, 64) for line in lines)


_HOOK_LINES = 3
"""Lines shown of the output of a failed hook; --json has all that is kept."""


def _event(event: Any) -> str:
    to = f" -> {event['outcome'] or event['to_state']}" if event["to_state"] else ""
    return f"{_when(event['at'])}  {event['actor']}: {event['verb']}{to}" + (
        f": {event['reason']}" if event["reason"] else ""
    )


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
