"""Durations of earlier runs of the same question, or of a similar one, on this machine."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from queue_runner.analysis import stats
from queue_runner.spec import JobSpec, Value
from queue_runner.store import read

SAME, ALIKE, PACE = "same", "alike", "pace"
"""Sources of an expected duration: runs of the same question; runs of a similar question; the run's own pace."""
NEWEST = 9
"""Number of runs of a question whose median is taken: older ones may be of older code."""

_MOST_RUNS = 5_000

_MOST_QUESTIONS = 1_000

_LENGTHS = ("max_iters", "max_steps", "steps", "epochs", "mode")
"""Settings that determine the amount or kind of work: runs that differ in one of these are not alike."""


_Took = tuple[float, float | None]
"""Seconds of a run, and of its start-up where it is known."""


class Expected(Struct, frozen=True):
    """Expected duration of a run in seconds, and its source; None and "" if nothing is known. `startup_s` is the part
    outside of iterations, evaluations and checkpoints: imports, data, compilation."""

    real_s: float | None = None
    basis: str = ""
    startup_s: float | None = None


class History:
    """Durations of runs that SUCCEEDED on this machine: the machine of the newest run that recorded one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, Expected] = {}

    def expected(self, spec: JobSpec, spec_hash: str | None = None) -> Expected:
        """Return the median of the newest runs of the same question; else of those that differ in only a few
        settings."""
        if not self._times:
            return Expected()
        digest = spec_hash or spec.content_hash()
        if digest not in self._known:
            if times := self._times.get(digest):
                self._known[digest] = _expected(times[:NEWEST], SAME)
            else:
                self._known[digest] = self._alike(spec)
        return self._known[digest]

    @cached_property
    def _times(self) -> dict[str, list[_Took]]:
        """Durations of each question in seconds awake and not paused, and its start-up, the newest first."""
        rows = read.tuples(
            self._connection,
            """SELECT j.spec_hash, e.real_s - COALESCE(e.slept_s, 0) - COALESCE(e.paused_s, 0) AS took_s,
                   CASE WHEN s.n_iters > 0 THEN e.real_s - COALESCE(e.slept_s, 0) - COALESCE(e.paused_s, 0)
                       - COALESCE(s.warmup_s, 0) - COALESCE(s.measure_s, 0) - COALESCE(s.eval_s, 0)
                       - COALESCE(s.checkpoint_s, 0) END AS startup_s
               FROM runs r JOIN exits e ON e.run_id = r.id JOIN jobs j ON j.id = r.job_id
                   LEFT JOIN summaries s ON s.run_id = r.id
               WHERE r.outcome = 'SUCCEEDED' AND r.resumed_from IS NULL AND j.kind <> 'import' AND e.real_s IS NOT NULL
                 AND r.number <> 0
                 AND r.machine_hash IS (SELECT machine_hash FROM runs WHERE machine_hash IS NOT NULL
                                        AND job_id NOT IN (SELECT job_id FROM merged_jobs) ORDER BY id DESC LIMIT 1)
               ORDER BY r.id DESC LIMIT ?""",
            [_MOST_RUNS],
        )
        times: dict[str, list[_Took]] = {}
        for digest, took_s, startup_s in rows:
            times.setdefault(digest, []).append((max(took_s, 0.0), None if startup_s is None else max(startup_s, 0.0)))
        return times

    @cached_property
    def _questions(self) -> dict[tuple[object, ...], list[tuple[dict[str, Value], _Took]]]:
        """(settings, durations) of every question that has a duration, by what must be equal."""
        rows = read.tuples(
            self._connection,
            """SELECT spec_hash, json_extract(spec_json, '$.params'), kind, COALESCE(workload, name),
                   json_extract(spec_json, '$.argv[0]'), framework, device, compile,
                   COALESCE(json_extract(spec_json, '$.compile_mode'), ''),
                   COALESCE(json_extract(spec_json, '$.gpus'), 1), dtype, config
               FROM jobs WHERE kind <> 'import' GROUP BY spec_hash ORDER BY max(id) DESC LIMIT ?""",
            [_MOST_QUESTIONS],
        )
        questions: dict[tuple[object, ...], list[tuple[dict[str, Value], _Took]]] = {}
        for digest, params, kind, *facts in rows:
            if times := self._times.get(digest):
                settings = json.loads(params)
                key = _kin(settings, kind, *facts)
                expected = _expected(times[:NEWEST], SAME)
                questions.setdefault(key, []).append((settings, (expected.real_s or 0.0, expected.startup_s)))
        return questions

    def _alike(self, spec: JobSpec) -> Expected:
        if spec.kind == "command" and not spec.params:
            return Expected()  # two commands of one program need not have anything in common
        program = spec.argv[0] if spec.argv else None
        mode = (spec.compile, spec.compile_mode, spec.gpus)
        facts = (spec.workload or spec.name, program, spec.framework, spec.device, *mode, spec.dtype, spec.config)
        kin = self._questions.get(_kin(spec.params, spec.kind, *facts), [])
        if not kin:
            return Expected()
        alike = [(sum(settings.get(k) == v for k, v in spec.params.items()), took) for settings, took in kin]
        most = max(same for same, _ in alike)
        return _expected([took for same, took in alike if same == most], ALIKE)


def _expected(times: Sequence[_Took], basis: str) -> Expected:
    startups = [startup_s for _, startup_s in times if startup_s is not None]
    return Expected(stats.median([took_s for took_s, _ in times]), basis, stats.median(startups) if startups else None)


def _kin(settings: Mapping[str, Value], kind: str, *facts: object) -> tuple[object, ...]:
    """Return what similar runs have in common: everything but the values of settings that do not change the work."""
    lengths = tuple(settings.get(name) for name in _LENGTHS)
    keys = tuple(sorted(settings)) if kind == "command" else ()
    return kind, *facts, lengths, keys
