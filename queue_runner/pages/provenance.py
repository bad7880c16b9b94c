"""Where the numbers come from: the machine, the software, the code, the commands that repeat it; without secrets."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from queue_runner import redact, units
from queue_runner.analysis.grouping import by_key
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.pages.run_records import RunRecords
from queue_runner.paths import Layout
from queue_runner.spec import JobSpec
from queue_runner.workloads import command_line

MOST_SUBMISSIONS = 20
MOST_CHARS = 400
"""Of one value of a fingerprint."""

Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class Fingerprint:
    """A machine or an environment of software: its first digits, how many runs had it, and what is known of it."""

    name: str
    runs: str
    facts: Facts
    packages: Facts


@dataclass(frozen=True)
class Submission:
    """A submission: its command, when it was made, and how to get its code."""

    name: str
    when: str
    lines: Sequence[str]
    code: str


@dataclass(frozen=True)
class Ran:
    """The program that the runs of a row ran, as the queue starts it."""

    label: str
    run: str
    lines: Sequence[str]


def fingerprints(evidence: RunRecords, kind: str) -> list[Fingerprint]:
    """Return the different fingerprints of the runs; `kind` is "machine" or "software"."""
    by_hash = by_key(evidence.runs, lambda row: row.machine_hash if kind == "machine" else row.software_hash)
    known = {
        row["hash"]: json.loads(row["data_json"])
        for row in evidence.context.read("SELECT hash, data_json FROM fingerprints WHERE kind = ?", [kind])
        if row["hash"] in by_hash
    }
    prints = []
    for digest, rows in by_hash.items():
        if digest in known:
            data = dict(known[digest])
            packages = data.pop("packages", None) or {}
            facts = [pair for name, value in data.items() for pair in _flat(_words(str(name)), value)]
            prints.append(Fingerprint(digest[:7], units.counted(len(rows), "run"), facts, [*_pairs(packages)]))
    return prints


def _words(name: str) -> str:
    """Return the key of a fingerprint as text: "memory_gib" is "memory, GiB"."""
    return re.sub("_gib$", ", GiB", name).replace("_", " ")


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    """Yield the facts of a value: those of a mapping one by one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}: {key}", item)
    elif isinstance(value, list):
        yield name, ", ".join(str(item) for item in value)[:MOST_CHARS] or units.MISSING
    elif value is not None:
        (text,) = redact.redact([str(value)])
        yield name, {"True": "yes", "False": "no", "": units.MISSING}.get(text, text)[:MOST_CHARS]


def _pairs(packages: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    return ((str(name), str(version)) for name, version in sorted(packages.items()))


def submissions(evidence: RunRecords) -> tuple[list[Submission], int]:
    """Return the submissions of the runs, the newest first, and how many were left out."""
    by_group = by_key(evidence.runs, lambda row: row.group_id)
    newest = sorted((group for group in by_group if group is not None), reverse=True)
    return [_submission(group, by_group[group], evidence) for group in newest[:MOST_SUBMISSIONS]], len(
        newest[MOST_SUBMISSIONS:]
    )


def _submission(group: int, rows: Sequence[ReportedRun], evidence: RunRecords) -> Submission:
    (made,) = evidence.context.read("SELECT created_at, title FROM groups WHERE id = ?", [group])
    jobs = ", ".join(str(job) for job in {row.job_id for row in rows})
    snapshots = evidence.context.read(
        "SELECT DISTINCT s.hash, s.git_commit, s.git_branch, s.git_dirty, min(j.id) AS job FROM jobs j"
        f" JOIN snapshots s ON s.hash = j.snapshot_hash WHERE j.id IN ({jobs}) GROUP BY s.hash ORDER BY job"
    )
    lines = [line for snapshot in snapshots[:1] for line in _code(snapshot)]
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(made["created_at"]))
    imported = all(row.kind == "import" or row.merged for row in rows)
    lines += [hidden(made["title"])] + ([] if imported else ["mpsq worker --until-idle"])
    return Submission(f"g{group}", when, lines, "; ".join(map(_named, snapshots[:3])))


def hidden(command: str) -> str:
    """Return a command line without its secrets."""
    try:
        return shlex.join(redact.redact(shlex.split(command)))
    except ValueError:  # a quotation that does not end
        return " ".join(redact.redact(command.split()))


def _code(snapshot: Mapping[str, Any]) -> Iterable[str]:
    if snapshot["git_commit"]:
        yield shlex.join(["git", "checkout", snapshot["git_commit"][:12]])
        if snapshot["git_dirty"]:
            yield f"mpsq show {snapshot['job']} --diff | git apply"


def _named(snapshot: Mapping[str, Any]) -> str:
    if not snapshot["git_commit"]:
        return f"snapshot {snapshot['hash'][:12]}, outside of a commit"
    branch = f" on {snapshot['git_branch']}" if snapshot["git_branch"] else ""
    dirty = ", with changes (mpsq show --diff prints them)" if snapshot["git_dirty"] else ""
    return f"commit {snapshot['git_commit'][:12]}{branch}{dirty}"


def programs(evidence: RunRecords, layout: Layout) -> list[Ran]:
    """Return what the newest run of each arm ran, once for each command."""
    found: dict[str, Ran] = {}
    for family in evidence.families:
        for arm in family.arms:
            row = arm.runs[-1]
            if row.kind == "import" or row.merged:
                continue
            (stored,) = evidence.context.read("SELECT spec_json FROM v_run WHERE run_id = ?", [row.run_id])
            argv = command_line.build_argv(JobSpec.from_json(stored["spec_json"]), layout.snapshots)
            line = shlex.join(redact.redact(argv))
            found.setdefault(line, Ran(arm.label, row.run, [line]))
    return [*found.values()]
