"""Machines side by side: what each took for the same question. There is no ratio and no verdict between them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.comparison import TIME, WALL
from queue_runner.analysis.grouping import Arm, group, is_mode, labelled, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.stats import by_key
from queue_runner.machine_records import read_machine, read_system
from queue_runner.monitor.answers import prepare, select_runs, sweeps
from queue_runner.monitor.answers.run_query import Context
from queue_runner.reports._common import arm_tables, footnotes, settings
from queue_runner.reports._common.arm_rows import ArmNumbers
from queue_runner.reports._common.columns import columns, shared, through
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

NAME = "gallery"
HELP = "machines side by side, this one and those of merged bundles: never a ratio between them"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"
SENTENCE = f"each row belongs to one machine alone, and rows of two machines are {footnotes.NEVER_COMPARED}"


class MachineRow(ArmNumbers, Struct, frozen=True, kw_only=True):
    """What one machine took for a question: its newest run tells what it ran on."""

    arm: Arm
    last: ReportedRun
    label: str
    settings: Mapping[str, Any]
    chip: str | None
    memory_gib: int | None
    os: str | None

    @property
    def where(self) -> str:
        """The machine in words."""
        parts = [self.chip, f"{self.memory_gib} GiB" if self.memory_gib is not None else None]
        name = ", ".join(filter(None, parts)) or prepare.where(self.last.machine_hash)
        return f"{name} (merged)" if self.last.merged else name


def _software(row: MachineRow) -> str:
    version = " ".join(filter(None, [row.last.framework, row.last.framework_version]))
    return ", ".join(filter(None, [version, row.os]))


def _date(row: MachineRow) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(row.last.ended_at)) if row.last.ended_at else ""


COLUMNS = columns(
    "workload config",
    shared("dtype", lambda row: row.arm.key.get("dtype")),
    shared("compile", lambda row: row.arm.key.get("compile")),
    "settings",
    Column("machine", "machine", value=attrgetter("last.machine_hash")),
    Column("chip", "chip"),
    Column("memory_gib", "GiB", units.count, True),
    Column("os", "system"),
    Column("merged", "merged", value=lambda row: bool(row.last.merged)),
    "label time_of",
    *through("last", "device device_name framework framework_version"),
    "median_s spread_s spread_over tokens_per_s samples_per_s runs n_runs n_valid valid",
    Column("ended_at", "last run ended", units.number, True, value=attrgetter("last.ended_at")),
    "taints",
)
_PRIVATE = re.compile(r"((?<!\S)--?[A-Za-z][\w-]* )?(\[hidden[ -]\w+\]|\S*/\S*)")
"""A secret or a path, with the option whose value it is."""
_QUESTION = ("subject", "config", "dtype", "compile", *TIME)


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Make a table for each question, with the rows of each machine."""
    rows = settings.ignore_length(prepare.prepare(stored, context), context)
    rows = sweeps.add(rows, context, declared=False)
    question = prepare.question(rows, context)
    every = group(rows, [*question.names, *TIME], context.options.include_invalid)
    arms = [arm for arm in every if arm.shown]
    fixed = [*question.settings, *(["arguments"] if "arguments" in question.names else [])]
    known = dict(context.tuples("SELECT hash, data_json FROM fingerprints"))
    marks = footnotes.CaveatMarks(rows, (row for arm in arms for row in arm.shown), context)
    sections, raw = [], []
    for key, same in by_key(arms, lambda arm: tuple(_value(arm, name) for name in (*_QUESTION, *fixed))).items():
        machines = by_key(same, lambda arm: arm.key["machine"]).values()
        table = [row for machine in machines for row in _rows(machine, fixed, known)]
        table.sort(key=lambda row: (row.last.merged, row.where, row.label))
        raw += table
        sections.append(Section(_title(key, fixed), _shown(table, marks), table))
    if not sections:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])
    notes = [SENTENCE]
    if any(row.last.merged for row in raw):
        notes.append("(merged): as its bundle says; its hashes detect damage, not forgery")
    if len({row.last.machine_hash for row in raw}) == 1:
        notes.append("to add another machine: there mpsq export --bundle g4 > g4.mpsq, here mpsq import g4.mpsq")
    used = {row.run_id for arm in every for row in arm.used}
    notes += [*marks.notes(), *marks.excluded((row for arm in every for row in arm.ended), used)]
    if any(not row.valid for row in raw):
        notes.append(f"a row marked {footnotes.EXCLUDED} without valid runs shows its invalid ones")
    return Result(COLUMNS, raw, sections, notes=notes)


def _value(arm: Arm, name: str) -> Any:
    """Return a factor of the question; of a command's arguments those that can be the same on two machines: no paths,
    and nothing hidden."""
    value = arm.key.get(name)
    if name != "arguments" or value is None:
        return value
    for argument in sorted(json.loads(arm.runs[0].argv_json), key=len, reverse=True):
        if "/" in argument:  # may have spaces
            value = value.replace(argument, "/")
    return " ".join(_PRIVATE.sub("", value).split()) or None


def _title(key: Sequence[Any], fixed: Sequence[str]) -> str:
    subject, config, dtype, compiles, _, *rest = key
    sets = [word(name, value) for name, value in zip(fixed, rest, strict=True) if value is not None]
    first = " ".join(filter(None, [subject, config]))
    return ", ".join(filter(None, [first, word("compile", compiles), dtype, *sets]))


def _rows(arms: Sequence[Arm], fixed: Sequence[str], known: Mapping[str, str]) -> Iterable[MachineRow]:
    common = {name: arms[0].key.get(name) for name in ("machine", *_QUESTION, *fixed)}
    for arm in labelled(arms, common):
        last = max(arm.shown, key=lambda row: row.ended_at or 0.0)
        machine = read_machine(known.get(last.machine_hash or ""))
        system = read_system(known.get(last.software_hash or ""))
        yield MachineRow(
            arm=arm,
            last=last,
            label=" ".join(part for part in arm.label.split(" ") if not is_mode(part)),
            settings={name: value for name in fixed if (value := _value(arm, name)) is not None},
            chip=machine.cpu or machine.model or None,
            memory_gib=machine.memory_gib,
            os=" ".join(filter(None, (system.os, system.os_version))) or machine.system or None,
        )


def _shown(rows: Sequence[MachineRow], marks: footnotes.CaveatMarks) -> Sequence[Column]:
    rates = (column for column in columns("tokens_per_s samples_per_s") if any(column.of(row) for row in rows))
    return [
        Column("where", "machine", flexible=True),
        arm_tables.LABEL,
        Column("with", "with", flexible=True, value=_software),
        arm_tables.RUNS,
        arm_tables.WALL_S if rows[0].time_of == WALL else arm_tables.MS,
        *marks.columns(rows),
        *islice(rates, 1),
        Column("date", "date (UTC)", value=_date),
    ]
