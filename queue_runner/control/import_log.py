"""Import: store a log written elsewhere as a finished run, with the caveats about its clock."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from sqlalchemy import select

from queue_runner import units
from queue_runner.errors import MpsqError, UsageError
from queue_runner.events import Eval, Hello, Iter, LogEvent, Metric, TimeUsage
from queue_runner.host.run_dir import read_regular
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest import last_words, parsers, summarize_run
from queue_runner.model import Ending, Outcome, RunId, State, Verb
from queue_runner.paths import Layout
from queue_runner.spec import DTYPES, JobSpec, NewJob, Terms, Value
from queue_runner.store import jobs, migrate, results, schema
from queue_runner.store.engine import Connection
from queue_runner.submit import grid, policy

MAX_LOG_BYTES = 64 << 20
"""Largest log: of nothing but iterations it holds 1.3 million of them, which take 2 GB of memory."""
UNKNOWN_STATUS = "imported: its exit status is not known"
_LABELS = ("name", "workload", "framework", "device", "compile", "dtype", "config", "compile_mode")


class Imported(Struct, frozen=True):
    """One imported log."""

    run: str
    file: str
    parser: str
    iterations: int
    real_s: float | None
    outcome: str = "SUCCEEDED"
    reason: str = ""
    """why it is not SUCCEEDED, or which fact is unknown"""


class _Log(Struct, frozen=True):
    path: Path
    sha256: str
    parser: str
    events: list[LogEvent]
    ending: Ending


def import_logs(
    layout: Layout, files: Sequence[Path], parser: str | None, labels: Mapping[str, str], tags: tuple[str, ...] = ()
) -> list[Imported]:
    """Store every file as a run, or none of them. Without a parser it is chosen by the log's content.

    Raises: UsageError (no such file or parser, a bad label, nothing in the log, one log twice), MpsqError (already
    imported, disk).
    """
    values = _labels(labels)
    tags = tuple(policy.check_tag(tag) for tag in tags)
    logs = [_read(path, parser, values) for path in files]
    _refuse_copies(logs)
    with migrate.writing_to(layout) as connection:
        for log in logs:
            _refuse_twice(connection, log)
        group = jobs.add_group(connection, _command(files, parser, labels, tags), 0)
        return [_store(connection, group, log, values, tags) for log in logs]


def _command(files: Sequence[Path], parser: str | None, labels: Mapping[str, str], tags: Sequence[str]) -> str:
    """Return the command line that imports these logs, the files by their names."""
    words = ["mpsq", "import", *(path.name for path in files), *(["--parser", parser] if parser else [])]
    for name, value in labels.items():
        words += ["--name", value] if name == "name" else ["--set", f"{name}={value}"]
    return shlex.join([*words, *(word for tag in tags for word in ("--tag", tag))])


def _labels(labels: Mapping[str, str]) -> dict[str, Value]:
    for name, text in labels.items():
        if not text.strip():
            option = "--name" if name == "name" else f"--set {name}"
            raise UsageError(f"{option} has an empty value", "give a value, or leave it out")
        policy.no_token(f"--set {name}", text)
    for name in labels.keys() & {*_LABELS}:
        policy.check_name(labels[name])
    if "compile_mode" in labels:
        raise UsageError("compile_mode cannot be set alone", f"use --set compile={labels['compile_mode']}")
    values: dict[str, Value] = dict(labels)
    if device := labels.get("device"):
        devices = grid.devices(grid.names(device, "device"))
        if len(devices) != 1:
            raise UsageError("a log comes from one device, not from several", "name one, as in --set device=mps")
        values["device"] = devices[0]
    if compiled := labels.get("compile"):
        modes = grid.compiles(grid.names(compiled, "compile"))
        if len(modes) != 1:
            raise UsageError(
                "a log comes from one compile mode, not from several", "name one: --set compile=on or --set compile=off"
            )
        values["compile"] = bool(modes[0])
        if isinstance(modes[0], str):
            values["compile_mode"] = modes[0]
    if (dtype := labels.get("dtype")) and dtype not in DTYPES:
        raise UsageError(f'unknown dtype "{dtype}"', f"use one of {', '.join(DTYPES)}")
    return values


def _read(path: Path, parser: str | None, values: Mapping[str, Value]) -> _Log:
    try:
        data = read_regular(path.resolve(), MAX_LOG_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "mpsq import takes the files of finished runs"
        ) from error
    if len(data) > MAX_LOG_BYTES:
        size = units.size(MAX_LOG_BYTES)
        raise UsageError(f"{path} is larger than {size}", "import only the part that contains the run")
    if not data.strip():
        raise UsageError(f"{path} is empty", "mpsq import takes the files of finished runs")
    name = parser or parsers.sniff(data.decode("utf-8", "replace"))
    events = parsers.read_log(name, data, {k: v for k, v in values.items() if k in ("compile", "device")})
    if not any(isinstance(event, Iter | TimeUsage | Eval | Metric) for event in events):
        known = ", ".join(other for other in parsers.names() if other != name)
        raise UsageError(
            f'the parser "{name}" finds no iterations and no times in {path}', f"use --parser with one of {known}"
        )
    ending = last_words.ending(data, events) or Ending(Outcome.SUCCEEDED, reason=UNKNOWN_STATUS)
    return _Log(path, hashlib.sha256(data).hexdigest(), name, events, ending)


def _refuse_copies(logs: Sequence[_Log]) -> None:
    """Refuse a log that one command names twice, or with a copy of it: it would be two runs."""
    paths: dict[str, Path] = {}
    for log in logs:
        if log.sha256 in paths:
            raise UsageError(f"{paths[log.sha256]} and {log.path} are the same log", "name it once")
        paths[log.sha256] = log.path


def _refuse_twice(connection: Connection, log: _Log) -> None:
    """Refuse a log that was imported before: it would count as two runs and produce a false spread."""
    row = connection.execute(
        select(schema.runs.c.job_id, schema.runs.c.number)
        .join(schema.hellos, schema.hellos.c.run_id == schema.runs.c.id)
        .where(schema.hellos.c.hello_json.contains(log.sha256))
    ).first()
    if row:
        run = RunId(row.job_id, row.number)
        raise MpsqError(f"{log.path.name} has already been imported, as run {run}", f"mpsq show {run} shows it")


def _store(
    connection: Connection, group: int, log: _Log, values: Mapping[str, Value], tags: tuple[str, ...]
) -> Imported:
    labels: dict[str, Any] = {name: values[name] for name in _LABELS[1:] if name in values}
    hello = Hello(0, None, extra={"log_sha256": log.sha256, "log_name": log.path.name, **labels})
    first = next((e for e in log.events if isinstance(e, Hello)), hello)
    spec = JobSpec(
        kind="import",
        name=str(values.get("name") or log.path.stem),
        parser=log.parser,
        params={key: value for key, value in values.items() if key not in _LABELS},
        **{
            "workload": first.workload,
            "framework": first.framework,
            "device": first.device,
            "compile": first.compile,
            "dtype": first.dtype,
            "config": first.config,
            **labels,
        },
    )
    job = jobs.add_job(connection, group, NewJob(spec, terms=Terms(tags=tags)))
    run_id = _add_run(connection, job, log.ending)
    # labels come last, and so override the log itself
    results.save_events(connection, run_id, [*(e for e in log.events if not isinstance(e, TimeUsage)), hello])
    rusage = next((e for e in reversed(log.events) if isinstance(e, TimeUsage)), None)
    end = RunEnd()
    if rusage is not None:
        end = RunEnd(real_s=rusage.real_s, user_s=rusage.user_s, sys_s=rusage.sys_s, max_rss_bytes=rusage.max_rss_bytes)
    results.save_exit(connection, run_id, end)
    points = summarize_run.read_points(connection, run_id)
    assessment = summarize_run.assess(points, spec, log.ending, end, unobserved_matters=False)
    summarize_run.save(connection, run_id, assessment)
    return Imported(
        str(RunId(job, 1)),
        str(log.path),
        log.parser,
        sum(isinstance(e, Iter) for e in log.events),
        end.real_s,
        str(log.ending.outcome),
        log.ending.reason,
    )


def _add_run(connection: Connection, job: int, ending: Ending) -> int:
    now, reason = time.time(), ending.reason
    ended = {"state": State.DONE, "outcome": ending.outcome, "reason": reason, "created_at": now, "ended_at": now}
    ended |= {"exit_code": ending.exit_code, "signal": ending.signal}
    run_id = jobs.add_run(connection, job, position=0, **ended)
    jobs.record(connection, job_id=job, run_id=run_id, actor="user", verb=Verb.IMPORT, target=State.DONE, reason=reason)
    return run_id
