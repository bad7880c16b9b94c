"""Machines side by side: what each took for the same question. There is no ratio and no verdict between them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from queue_runner import units
from queue_runner.analysis.grouping import Arm, by_key, group, is_mode, labelled, taints, word
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.reports._common import arm_tables, footnotes, prepare, select_runs, settings
from queue_runner.reports._common.columns import columns
from queue_runner.reports._common.document import Context, Result, Row, Section
from queue_runner.tables import Column

NAME = "gallery"
HELP = "machines side by side, this one and those of merged bundles: never a ratio between them"
SQL = f"SELECT {prepare.RUN} FROM v_run WHERE {{chosen}} ORDER BY job_id, number"
SENTENCE = f"each row is of its machine alone, and rows of two machines are {footnotes.NEVER_COMPARED}"

_MACHINE = Column("where", "machine", flexible=True)
_LABEL = Column("label", "", flexible=True)
_WITH = Column("with", "with", flexible=True)
_DATE = Column("date", "date (UTC)")
COLUMNS = columns(
    "workload config dtype compile",
    Column("settings", "settings", str),
    Column("machine", "machine"),
    Column("chip", "chip"),
    Column("memory_gib", "GiB", units.count, True),
    Column("os", "system"),
    Column("merged", "merged"),
    "label device device_name framework framework_version median_s spread_s spread_over tokens_per_s samples_per_s "
    "runs n_runs n_valid",
    Column("valid", "valid"),
    Column("ended_at", "last run ended", units.number, True),
    "taints",
)
_HIDDEN = re.compile(r"\[hidden[ -]\w+\]")
_QUESTION = ("subject", "config", "dtype", "compile")


def finish(stored: list[ReportedRun], context: Context) -> Result:
    """Make a table for each question, with the rows of each machine. Raises: UsageError for --vs and the like."""
    rows = settings.ignore_length(prepare.uncompared(stored, context, "the gallery takes"), context)
    asked = prepare.question(rows, context)
    arms = [arm for arm in group(rows, asked.names, context.options.include_invalid) if arm.shown]
    fixed = [*asked.settings, *(["arguments"] if "arguments" in asked.names else [])]
    known = _fingerprints(context)
    marks = footnotes.CaveatMarks(rows, (row for arm in arms for row in arm.shown), context)
    sections, raw = [], []
    for key, alike in by_key(arms, lambda arm: _key(arm, fixed)).items():
        table = [
            row for of in by_key(alike, lambda arm: arm.key["machine"]).values() for row in _rows(of, fixed, known)
        ]
        table.sort(key=lambda row: (row["merged"], row["where"], row["label"]))
        raw += table
        sections.append(Section(_title(key, fixed), _shown(table, marks), table))
    if not sections:
        return Result(COLUMNS, [], lines=[select_runs.nothing(context)])
    notes = [SENTENCE]
    if any(row["merged"] for row in raw):
        notes.append("(merged): as its bundle says; hashes show damage, not who wrote it")
    if len({row["machine"] for row in raw}) == 1:
        notes.append("one machine: mpsq import adds those of others, from mpsq export --bundle g4 > g4.mpsq")
    notes += [*marks.notes(), *marks.excluded((row for arm in arms for row in arm.left_out), False)]
    if any(not row["valid"] for row in raw):
        notes.append(f"a row marked {footnotes.EXCLUDED} without valid runs shows its invalid ones")
    return Result(COLUMNS, raw, sections, notes=notes)


def _key(arm: Arm, fixed: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_value(arm, name) for name in (*_QUESTION, *fixed))


def _value(arm: Arm, name: str) -> Any:
    """Return a factor of the question; of a command's arguments those that can be the same on two machines: no paths,
    and nothing hidden."""
    value = arm.key.get(name)
    if name != "arguments" or value is None:
        return value
    return " ".join(word for word in _HIDDEN.sub("", value).split() if "/" not in word) or None


def _title(key: Sequence[Any], fixed: Sequence[str]) -> str:
    subject, config, dtype, compiles, *rest = key
    sets = [word(name, value) for name, value in zip(fixed, rest, strict=True) if value is not None]
    first = " ".join(filter(None, [subject, config]))
    return ", ".join(filter(None, [first, word("compile", compiles), dtype, *sets]))


def _rows(arms: Sequence[Arm], fixed: Sequence[str], known: dict[str, dict[str, Any]]) -> Iterable[Row]:
    common = {name: arms[0].key.get(name) for name in ("machine", *_QUESTION, *fixed)}
    for arm in labelled(arms, common):
        last = max(arm.shown, key=lambda row: row.ended_at or 0.0)
        machine, system = known.get(last.machine_hash or "", {}), known.get(last.software_hash or "", {}).get("system")
        spread_s, over = arm.spread_s
        median_s, tokens, samples = arm.median_s, arm.median("tokens_per_iter"), arm.median("samples_per_iter")
        chip, memory = _said(machine, "cpu") or _said(machine, "model"), machine.get("memory_gib")
        release = filter(None, (_said(system, "os"), _said(system, "os_version")))
        os = " ".join(release) or _said(machine, "system")
        size = f"{memory} GiB" if isinstance(memory, int) else None
        version = " ".join(filter(None, [last.framework, last.framework_version]))
        yield {
            "workload": arm.key["subject"],
            "config": arm.key["config"],
            "dtype": arm.key.get("dtype"),
            "compile": arm.key.get("compile"),
            "settings": {name: value for name in fixed if (value := _value(arm, name)) is not None},
            "machine": last.machine_hash,
            "chip": chip,
            "memory_gib": memory if size else None,
            "os": os,
            "merged": bool(last.merged),
            "where": (", ".join(filter(None, [chip, size])) or prepare.where(last.machine_hash))
            + (" (merged)" if last.merged else ""),
            "label": " ".join(part for part in arm.label.split(" ") if not is_mode(part)),
            **{name: getattr(last, name) for name in ("device", "device_name", "framework", "framework_version")},
            "with": ", ".join(filter(None, [version, os])),
            "median_s": median_s,
            "spread_s": spread_s,
            "spread_over": over,
            "tokens_per_s": tokens / median_s if tokens and median_s else None,
            "samples_per_s": samples / median_s if samples and median_s else None,
            "runs": [row.run for row in arm.runs],
            "n_runs": len(arm.ended),
            "n_valid": len(arm.used),
            "valid": all(row.valid for row in arm.shown),
            "excluded": len(arm.used) < len(arm.ended),
            "ended_at": last.ended_at,
            "date": time.strftime("%Y-%m-%d", time.gmtime(last.ended_at)) if last.ended_at else "",
            "taints": sorted({kind for row in arm.shown for kind in taints(row)}),
        }


def _said(fingerprint: Any, name: str) -> str | None:
    """Return a text of a fingerprint; None for anything else, which bundles of others may have had."""
    value = fingerprint.get(name) if isinstance(fingerprint, dict) else None
    return value if isinstance(value, str) and value else None


def _shown(rows: Sequence[Row], marks: footnotes.CaveatMarks) -> Sequence[Column]:
    unit = "tokens_per_s" if any(row["tokens_per_s"] for row in rows) else "samples_per_s"
    rate = columns(unit) if any(row[unit] for row in rows) else ()
    return [_MACHINE, _LABEL, _WITH, arm_tables.RUNS, arm_tables.MS, *marks.columns(rows), *rate, _DATE]


def _fingerprints(context: Context) -> dict[str, dict[str, Any]]:
    return {
        row["hash"]: json.loads(row["data_json"]) for row in context.read("SELECT hash, data_json FROM fingerprints")
    }
