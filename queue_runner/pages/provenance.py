"""Where the numbers come from: the machine, the software, the code, the commands that repeat it; without secrets."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.host import redact
from queue_runner.machine_records import Machine, known_fields
from queue_runner.pages.run_records import RunRecords
from queue_runner.paths import Layout
from queue_runner.spec import NO_CODE, JobSpec
from queue_runner.store.read import tuples
from queue_runner.workloads import command_line

MOST_SUBMISSIONS = 20
MOST_PROGRAMS = 20
MOST_CHARS = 400
"""Of one value of a fingerprint."""

Facts = list[tuple[str, str]]


class Fingerprint(Struct, frozen=True):
    """A machine or an environment of software: the first digits of its hash, how many runs had it, and its facts."""

    name: str
    runs: str
    facts: Facts
    packages: Facts


class Submission(Struct, frozen=True):
    """A submission: its command, when it was made, and how to get its code."""

    name: str
    when: str
    lines: Sequence[str]
    code: str


class Ran(Struct, frozen=True):
    """The program that the runs of a row ran, as the queue starts it."""

    label: str
    run: str
    lines: Sequence[str]


def fingerprints(evidence: RunRecords, kind: str) -> list[Fingerprint]:
    """Return the different fingerprints of the runs; `kind` is "machine" or "software"."""
    by_hash = by_key(evidence.runs, lambda row: row.machine_hash if kind == "machine" else row.software_hash)
    sql = "SELECT hash, data_json FROM fingerprints WHERE hash IN (SELECT value FROM json_each(?))"
    stored = tuples(evidence.context.connection, sql, [json.dumps([*by_hash])])
    known = {digest: json.loads(text) for digest, text in stored}
    prints = []
    for digest, rows in by_hash.items():
        if digest in known:
            data = known[digest]
            packages = data.pop("packages", None) or {}
            if kind == "machine":
                data["gpus"] = [str(gpu) for gpu in known_fields(data, Machine).gpus or ()] or None
            names = {name: re.sub("_gib$", ", GiB", name).replace("_", " ") for name in data}  # "memory_gib"
            facts = [pair for name, value in data.items() for pair in _flat(names[name], value)]
            prints.append(
                Fingerprint(
                    digest[:7],
                    units.counted(len(rows), "run"),
                    facts,
                    [(str(name), str(version)) for name, version in sorted(packages.items())],
                )
            )
    return prints


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    """Yield the facts of a value: those of a mapping one by one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}: {key}", item)
    elif isinstance(value, list):
        yield name, ", ".join(str(item) for item in value)[:MOST_CHARS] or units.MISSING
    elif value not in (None, NO_CODE):
        (text,) = redact.redact([str(value)])
        yield name, {"True": "yes", "False": "no", "": units.MISSING}.get(text, text)[:MOST_CHARS]


def submissions(evidence: RunRecords) -> tuple[list[Submission], int]:
    """Return the submissions of the runs, the newest first, and how many were left out."""
    by_group = by_key(evidence.runs, lambda row: row.group_id)
    newest = sorted((group for group in by_group if group is not None), reverse=True)
    shown = newest[:MOST_SUBMISSIONS]
    return [_submission(group, by_group[group], evidence) for group in shown], len(newest) - len(shown)


class CodeSnapshot(NamedTuple):
    hash: str
    commit: str | None
    branch: str | None
    dirty: bool
    job: int

    def __str__(self) -> str:
        if not self.commit:
            return f"snapshot {self.hash[:12]}, outside of a commit"
        branch = f" on {self.branch}" if self.branch else ""
        return f"commit {self.commit[:12]}{branch}" + (
            ", with changes (mpsq show --diff prints them)" * bool(self.dirty)
        )


def _submission(group: int, rows: Sequence[ReportedRun], evidence: RunRecords) -> Submission:
    connection = evidence.context.connection
    ((created_at, title),) = tuples(connection, "SELECT created_at, title FROM groups WHERE id = ?", [group])
    jobs = ", ".join(str(job) for job in {row.job_id for row in rows})
    sql = (
        "SELECT DISTINCT s.hash, s.git_commit, s.git_branch, s.git_dirty, min(j.id) AS job FROM jobs j"
        f" JOIN snapshots s ON s.hash = j.snapshot_hash WHERE j.id IN ({jobs}) GROUP BY s.hash ORDER BY job"
    )
    snapshots = [CodeSnapshot(*row) for row in tuples(connection, sql)]
    lines = []
    if snapshots and (commit := snapshots[0].commit):
        lines.append(shlex.join(["git", "checkout", commit[:12]]))
        lines += [f"mpsq show {snapshots[0].job} --diff | git apply"] if snapshots[0].dirty else []
    lines.append(hidden(title))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(created_at))
    return Submission(f"g{group}", when, lines, "; ".join(map(str, snapshots[:3])))


def hidden(command: str) -> str:
    """Return a command line without its secrets."""
    try:
        return shlex.join(redact.redact(shlex.split(command)))
    except ValueError:  # a quotation that does not end
        return " ".join(redact.redact(command.split()))


def programs(evidence: RunRecords, layout: Layout) -> tuple[list[Ran], int]:
    """Return the program of the newest run of each arm that has started, each command once, and the number of other
    arms."""
    arms = [arm for family in evidence.families for arm in family.arms]
    newest = [(arm, next((row for row in reversed(arm.runs) if row.started_at), None)) for arm in arms]
    started = [(arm, row) for arm, row in newest if row and row.kind != "import" and not row.merged]
    run_ids = ", ".join(str(row.run_id) for _, row in started[:MOST_PROGRAMS])
    sql = f"SELECT r.id, spec_json, repeat FROM runs r JOIN jobs j ON j.id = r.job_id WHERE r.id IN ({run_ids})"
    specs = {run_id: values for run_id, *values in tuples(evidence.context.connection, sql)}
    by_line: dict[str, Ran] = {}
    for arm, row in started[:MOST_PROGRAMS]:
        spec_json, repeat = specs[row.run_id]
        spec = JobSpec.from_json(spec_json).in_round(repeat)
        line = shlex.join(redact.redact(command_line.build_argv(spec, layout.snapshots)))
        by_line.setdefault(line, Ran(arm.label, row.run, [line]))
    return [*by_line.values()], len(started[MOST_PROGRAMS:])
