"""mpsq show."""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queue_runner import tables, units
from queue_runner.cli.common import IdsOrLast, Json, Tags, chosen, home, new_app, print_json, say
from queue_runner.text import plain

if TYPE_CHECKING:
    from queue_runner.monitor.show import Details, Patch

app = new_app()


@app.command("show")
def show(
    ids: IdsOrLast = None,
    tag: Tags = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the patch of its code.")] = False,
    json: Json = False,
) -> None:
    """Show everything known about a job or a run."""
    from queue_runner.monitor import show as use_case
    from queue_runner.store.read import reading, select

    layout, selectors = home(), chosen(ids, tag, "@last")
    if diff:
        with reading(layout.db) as connection:
            patches = use_case.patches(connection, select(connection, selectors))
        _print_patches(patches, json)
        return
    with reading(layout.db) as connection:
        found = [use_case.details(layout, connection, row) for row in select(connection, selectors)]
    if json:
        print_json("mpsq.show/1", runs=[asdict(one) for one in found])
        return
    for before, one in zip([None, *found], found, strict=False):
        again = before is not None and before.run["job_id"] == one.run["job_id"]
        print(("\n" if before is not None else "") + _text(one, again))


def _print_patches(patches: Sequence[Patch], json: bool) -> None:
    """Print patches on stdout, as `git apply` takes them, and what each belongs to on stderr."""
    if json:
        print_json("mpsq.diff/1", patches=[asdict(one) for one in patches])
        return
    for one in patches:
        say(f"job {one.job}: {plain(one.about)}")
        if one.text is not None:
            sys.stdout.write(plain(one.text) if sys.stdout.isatty() else one.text)
            sys.stdout.flush()


_OF_JOB = (
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


_PROSE = (
    *("state", "asks", "remark", "after", "time", "phases", "said", "invalid", "caveat", "note", "lines"),
    *("hook", "history", "segments", "tags"),
)
"""Facts wrapped to the width of the terminal: they are read, not copied."""


def _text(one: Details, again: bool) -> str:
    from queue_runner.monitor import listing

    run = one.run
    facts = [
        ("run", f"{run['run']}  {run['name']}"),
        ("of", f"job {run['job_id']} in group g{run['group_id']}, repeat {run['repeat']}, attempt {run['attempt']}"),
        ("state", listing.ending(run) + (f": {run['reason']}" if run["reason"] else "")),
        ("asks", listing.question(run) or units.MISSING),
        *([("search", one.search)] if one.search else []),
        ("command", shlex.join(one.argv) or units.MISSING),
        ("folder", one.cwd or units.MISSING),
        ("python", one.python or units.MISSING),
        ("environment", _names(one.env)),
        ("code", _code(one)),
        ("runs in", _place(one)),
        ("tags", ", ".join(run["tags"]) or units.MISSING),
        ("priority", str(run["priority"])),
    ]
    if one.rerun_of is not None:
        facts.append(("rerun of", f"job {one.rerun_of}"))
    facts += _terms(one)
    if one.timeout_s is not None:
        facts.append(("timeout", units.duration(one.timeout_s)))
    if one.parser:
        facts.append(("parser", one.parser))
    if one.schedule:
        facts.append(("schedule", one.schedule))
    facts += [(f"{name} at", _when(run[f"{name}_at"])) for name in ("created", "started", "ended") if run[f"{name}_at"]]
    facts += _measured(one)
    if paused_s := (one.exit or {}).get("paused_s"):
        facts.append(("suspended", units.duration(paused_s)))
    if one.segments:
        facts.append(("segments", "\n".join(map(_segment, one.segments))))
    if one.phases_s:
        facts.append(("phases", ", ".join(f"{name} {units.duration(s)}" for name, s in one.phases_s.items())))
    if one.hello:
        facts.append(("said", "\n".join(f"{k}: {v}" for k, v in sorted(one.hello.items()))))
    facts += [(t["severity"], f"{t['kind']}: {t['detail']}") for t in one.taints]
    facts += [("note", f"{n['kind']}: {n['text']}") for n in one.notes]
    lost = {key: count for key, count in one.lines.items() if count}
    if lost:
        facts.append(("lines", ", ".join(f"{count} {key}" for key, count in lost.items())))
    if one.deleted_at is not None:
        facts.append(("deleted", f"{_when(one.deleted_at)}: its files are gone"))
    if one.hooks:
        facts.append(("hook", "\n".join(map(_hook, one.hooks))))
    facts.append(("history", "\n".join(map(_event, one.history))))
    facts += [("files" if not n else "", path) for n, path in enumerate(one.files.values())]
    return tables.facts([fact for fact in facts if not (again and fact[0] in _OF_JOB)], prose=_PROSE)


def _terms(one: Details) -> list[tuple[str, str]]:
    """Return when it may run and how often it is tried, as far as that was given."""
    run, facts = one.run, []
    if run["note"]:
        facts.append(("remark", run["note"]))
    for dependency in one.after:
        wish = {"ok": "is ok", "any": "has ended", "fail": "is not ok"}[dependency["condition"]]
        facts.append(("after", f"job {dependency['job']} {wish}: {dependency['verdict']}"))
    if run["not_before_at"] is not None:
        facts.append(("not before", _when(run["not_before_at"])))
    if run["deadline_at"] is not None:
        facts.append(("deadline", f"{_when(run['deadline_at'])}: skipped if it has not started by then"))
    if run["retries"]:
        waits = f", the first after {units.duration(one.backoff_s)}" if one.backoff_s else ""
        facts.append(("retries", f"{run['retries']} at most, of what is {one.retry_on or 'failed'}{waits}"))
    return facts


def _names(env: Sequence[str]) -> str:
    """Return the variables on two lines; --json has all."""
    if not env:
        return "none captured"
    words = f"{len(env)} variables: {', '.join(env)}"
    return textwrap.fill(words, 64, max_lines=2, placeholder=" … (--json has all)", break_on_hyphens=False)


def _measured(one: Details) -> list[tuple[str, str]]:
    run: Any = one.run
    facts = []
    if run["median_s"] is not None:
        spread = units.ms_plus_minus(run["median_s"], run["mad_s"])
        facts.append(("per iteration", f"{spread} (median and MAD of {units.count(run['n_measure'])} measured)"))
    if (last := one.loss_last) is not None:
        facts.append(("loss", f"{units.loss(run['loss_first'])} first, {units.loss(last)} last"))
    if run["val_loss_last"] is not None:
        facts.append(("validation loss", units.loss(run["val_loss_last"])))
    if run["real_s"] is not None:
        times = [f"{units.seconds(run[f'{name}_s'])} {name}" for name in ("real", "user", "sys")]
        facts.append(("time", ", ".join(times) + " (s)"))
    if run["max_rss_bytes"] is not None:
        facts.append(("memory", f"{units.size(run['max_rss_bytes'])} at most"))
    if one.gpu_busy_share is not None:
        facts.append(("GPU busy", f"{units.percent(one.gpu_busy_share)} (median of the samples, all programs)"))
    return facts


def _code(one: Details) -> str:
    if one.code is None:
        return "outside of a repository"
    commit = one.code["git_commit"]
    if one.code["git_dirty"] is None:
        return f"outside of a repository; snapshot {one.code['hash'][:12]}{_left_out(one)}"
    changed = ", with changes" if one.code["git_dirty"] and commit else ""
    revision = f"commit {commit[:12]}{changed}" if commit else "no commit"
    branch = f" on {one.code['git_branch']}" if one.code["git_branch"] else ""
    return f"{revision}{branch}; snapshot {one.code['hash'][:12]}{_left_out(one)}"


def _left_out(one: Details) -> str:
    names = [f"{name} ({why})" for name, why in (one.code or {}).get("left_out", {}).items()]
    more = f"\n… and {len(names) - 5} more: --json has all" if len(names) > 5 else ""
    return "".join(f"\nleft out: {name}" for name in names[:5]) + more


def _place(one: Details) -> str:
    if one.run["kind"] == "workload":
        return "its folder, from its snapshot"
    if one.copy:
        return "a copy of the code as it was at submit"
    if one.code is None or not one.code["tree_hash"]:
        return "its folder; changes of the code are not detected"
    return "its folder; " + ("its code may change" if one.allow_changed else "not if its code has changed")


def _segment(part: Any) -> str:
    span = "no iteration" if part["first_i"] is None else f"iterations {part['first_i']} to {part['last_i']}"
    return f"{part['run']}: {span}" + (f", from a checkpoint of {part['resumed_from']}" if part["resumed_from"] else "")


def _hook(call: Any) -> str:
    from queue_runner.monitor import listing

    said = (call["output"] or "").splitlines()
    lines = [f"{call['event']}: {listing.hook_ending(call)}", *(said[-_HOOK_LINES:] if call["state"] != "ok" else [])]
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
