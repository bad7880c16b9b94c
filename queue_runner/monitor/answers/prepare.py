"""Preparation of v_run rows for analysis.comparison: add the settings and versions that distinguish runs."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from queue_runner.analysis.comparison import Question
from queue_runner.analysis.grouping import LOG, MAIN, SUBJECT, round_of, taints
from queue_runner.analysis.reported_run import ReportedRun
from queue_runner.analysis.rounds import two_levels
from queue_runner.analysis.run_metrics import INTERNAL
from queue_runner.analysis.stats import by_key
from queue_runner.errors import UsageError
from queue_runner.host import redact
from queue_runner.model import OWN_NOTE, PREFLIGHT, Outcome
from queue_runner.monitor.answers import select_runs
from queue_runner.monitor.answers.run_query import Context
from queue_runner.spec import NO_CODE, Aim
from queue_runner.store import added_rounds, questions, read
from queue_runner.workloads import mps_switches

RUN = (
    f"{select_runs.ASKED}, "
    "run_id, run, job_id, number, group_id, name, workload, framework, framework_version, device, "
    "device_name, compile, dtype, config, seed, repeat, spec_hash, "
    "json_extract(spec_json, '$.params') AS params_json, json_extract(spec_json, '$.variables') AS variables_json, "
    "json_extract(spec_json, '$.env_name') AS env_name, "
    "json_extract(spec_json, '$.compile_mode') AS compile_mode, "
    "json_extract(spec_json, '$.seed_by_round') AS seed_by_round, "
    "json_extract(spec_json, '$.metrics') AS log_metrics_json, "
    f"{select_runs.GPUS} AS gpus, "
    "json_extract(spec_json, '$.cores') AS cores, json_extract(spec_json, '$.threads') AS threads, "
    "COALESCE(json_extract(spec_json, '$.warmup'), 0) AS warmup, "
    "COALESCE(json_extract(spec_json, '$.prepare'), '') AS prepare, "
    "json_extract(spec_json, '$.argv') AS argv_json, "
    "COALESCE(NULLIF(json_extract(spec_json, '$.code'), ''), json_extract(spec_json, '$.snapshot')) AS spec_code, "
    "outcome, exit_code, signal, reason, state, attempt, created_at, started_at, ended_at, "
    "machine_hash, software_hash, optimizer, data_name, data_sha256, compile_cache, taints, valid, flops_per_iter, "
    "tokens_per_iter, samples_per_iter, planned_iters, "
    "real_s, slept_s, user_s, sys_s, max_rss_bytes, n_iters, n_measure, "
    f"{select_runs.GPU_MEMORY}, "
    "median_s, mad_s, q1_s, q3_s, mean_s, first_iter_s, first_iter_excess_s, "
    "loss_first, loss_last, val_loss_last, setup_s, compile_s, warmup_s, "
    "measure_s, eval_s, checkpoint_s, other_s, projected_real_s, resumed_from"
)
"""Columns that a comparison needs; the rest of v_run, such as the whole specification, is not read."""
_NAMED = re.compile(r"\{(\w+)\}")
_MOST_PATTERNS = 16
"""Patterns of one command that are tried on every run of it."""
_POOLED = re.compile(r"--?(device|compile|dtype|seed)(=.*)?")
"""Arguments of commands that reports distinguish, or pool, by columns of their own."""
_OPTION = re.compile(r"--?(?!c$)[A-Za-z][^=]*")
"""An option whose value is the next argument, unless that is an option, too; the code after -c names itself."""
_FRAMEWORKS = frozenset({"torch", "mlx", "jax", "tinygrad"})
DETAILS = ("data_name", "device_name", "optimizer")
"""Factors that rarely differ for the same device, dtype and settings."""


_RECENT = 50
"""Submissions back to which earlier runs are read."""
_EARLIER = f"""
WITH selected AS MATERIALIZED (
    SELECT {questions.QUESTION} AS question, spec_hash, group_id - {_RECENT} AS oldest,
        json_extract(value, '$[1]') AS run
    FROM json_each(?) JOIN jobs ON jobs.id = json_extract(value, '$[0]')
)
SELECT b.spec_hash, r.machine_hash, COALESCE(s.median_s, e.real_s)
FROM selected JOIN jobs b ON {questions.QUESTION_OF.format(job="b.")} = selected.question
    AND b.id BETWEEN (SELECT min(+id) FROM jobs WHERE group_id >= ?) AND (SELECT max(job_id) FROM runs WHERE +id < ?)
    AND b.spec_hash = selected.spec_hash AND b.group_id >= selected.oldest
JOIN runs r ON r.job_id = b.id JOIN exits e ON e.run_id = r.id LEFT JOIN summaries s ON s.run_id = r.id
WHERE r.id < selected.run AND r.outcome = 'SUCCEEDED' AND r.number <> {PREFLIGHT}
AND COALESCE(s.median_s, e.real_s) > 0
AND NOT EXISTS (SELECT 1 FROM taints WHERE run_id = r.id AND severity = 'invalid')
"""
"""The times of runs of the same questions before the selected ones. The index of questions is read only between the
first job of the oldest submission and the last job that existed: the plus signs keep SQLite off the table itself."""


def prepare(stored: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Return the runs with machine, where (the machine as text, if there are several), subject, settings and factors,
    and in `compile` the mode of torch.compile by name, where it is not the default. `gpus` of a run on the CPU are the
    factor `processes`. Runs on a lane have its processors as the factor `cores`, and `threads` where these are others.

    The machine is the first one of its kind (`_kinds`). A run that ended before it reported its machine gets that of
    its round, else of the newest run that did. Imported logs have the machine None and count as runs of one machine.
    Merged runs have a machine of their own even where their bundle names this one: nobody has checked who wrote it.
    """
    runs = list(stored)
    parsed: dict[str, dict[str, Any]] = {}
    versions = _software(runs, context)
    arguments = _arguments(runs)
    kinds = _kinds(runs, context)
    known = [run for run in runs if run.machine_hash and not run.merged]
    newest = known[-1].machine_hash if known else None
    of_rounds = {round_of(run): run.machine_hash for run in known if round_of(run)}
    reported = [
        _machine(run) or (None if run.kind == "import" else of_rounds.get(round_of(run), newest)) for run in runs
    ]
    machines = [kinds.get(machine, machine) for machine in reported]
    environments = any(run.env_name for run in runs)
    several = len({*machines}) > 1
    on_cores = any(run.cores for run in runs)
    with_threads = any((run.cores or 0) != (run.threads or 0) for run in runs)
    warmed, before_runs = any(run.warmup for run in runs), _differ_before_runs(runs)
    planned = _planned(runs, context)
    metrics = _metrics(runs, context)
    levels = _earlier_levels(runs, context)
    aims = _aims(runs, context)
    without_rounds = added_rounds.instead_of_rounds(context.by_groups(added_rounds.JOBS, runs))
    logs = _unknown_logs(runs)
    prepared = []
    for run, machine in zip(runs, machines, strict=True):
        text = run.params_json
        if text not in parsed:
            parsed[text] = {name: _plain(value) for name, value in json.loads(text).items()}
        variables = dict(mps_switches.factor(*pair) for pair in json.loads(run.variables_json or "{}").items())
        factors = {**versions.get(run.run_id, {}), **variables, **arguments.get(run.run_id, {}), **parsed[text]}
        gpus = run.gpus
        if gpus > 1 and run.device == "cpu":
            factors["processes"], gpus = gpus, 1
        if on_cores:
            factors["cores"] = run.cores or "all"
        if with_threads:
            factors["threads"] = run.threads or None
        if warmed:
            factors["warmup"] = run.warmup
        if before_runs:
            factors["prepare"] = run.prepare or "none"
        if environments:
            factors["env"] = run.env_name or None
        if run.resumed_from:
            factors["resumed"] = True
        if run.run_id in logs:
            factors[LOG] = logs[run.run_id]
        diverged = run.loss_last is None and "diverged" in taints(run)
        prepared.append(
            run.changed(
                gpus=gpus,
                subject=select_runs.subject(run),
                loss_last=math.nan if diverged else run.loss_last,  # SQLite has no NaN, so the summary omits it
                machine=machine,
                compile=run.compile_mode or (None if run.compile is None else bool(run.compile)),
                planned_rows=planned.get(run.job_id, (0, 0))[0],
                planned_compiled=planned.get(run.job_id, (0, 0))[1],
                aim=aims.get(run.group_id, Aim()),
                instead_of_rounds=without_rounds.get(run.group_id or 0, ""),
                earlier_levels=levels.get((run.spec_hash, run.machine_hash), 0.0),
                where=where(machine) if several or run.merged else "",
                settings=parsed[text],
                factors=factors,
                metrics=metrics[run.run_id],
            )
        )
    return prepared


def _unknown_logs(runs: Sequence[ReportedRun]) -> dict[int, str]:
    """Return, by run, the names of the imported logs whose device or mode is unknown: without the suffix, and with the
    run where two have one name."""
    unknown = [run for run in runs if run.log_name and (run.device is None or run.compile is None)]
    stems = by_key(unknown, lambda run: PurePath(run.log_name or "").stem)
    return {
        run.run_id: stem if len(same) == 1 else f"{stem} ({run.run})" for stem, same in stems.items() for run in same
    }


def _differ_before_runs(runs: Iterable[ReportedRun]) -> bool:
    """Return whether one job was run with two commands of --prepare: where the rows differ otherwise, they may differ
    in this by what they are."""
    commands: dict[tuple[object, ...], str] = {}
    for run in runs:
        job = (
            run.workload,
            run.argv_json,
            run.params_json,
            run.config,
            run.device,
            run.compile,
            run.compile_mode,
            run.dtype,
        )
        if commands.setdefault(job, run.prepare) != run.prepare:
            return True
    return False


def _arguments(rows: Iterable[ReportedRun]) -> dict[int, dict[str, str | None]]:
    """Return by run the factor `arguments`: the arguments in which commands of the same name differ."""
    factors: dict[int, dict[str, str | None]] = {}
    secrets: dict[str, int] = {}

    def hidden(argv: Iterable[str]) -> list[str]:
        """Return the arguments with a number for each secret: arms that differ in one stay apart."""
        return redact.replaced(argv, lambda word: f"[hidden {secrets.setdefault(word, len(secrets) + 1)}]")

    for runs in by_key((row for row in rows if row.kind == "command"), lambda row: row.name).values():
        argvs = {text: hidden(json.loads(text)) for text in sorted({row.argv_json for row in runs})}
        common = set.intersection(*map(set, argvs.values()))
        patterns = _patterns([(row, _unnamed(argvs[row.argv_json], common, row)) for row in runs])
        if len({*patterns.values()}) > 1:
            factors |= {run_id: {"arguments": text or None} for run_id, text in patterns.items()}
    return factors


def _unnamed(argv: Sequence[str], common: set[str], row: ReportedRun) -> str:
    """Return the arguments that are neither in every command nor given by a column or setting of the run, a value with
    its option: "--n 2"."""
    values = {str(value) for value in json.loads(row.params_json).values()}
    known = common | values | {str(row.device), str(row.dtype), str(row.config)}
    distinct = []
    for option, argument in zip(["", *argv], argv, strict=False):
        if argument in known or _POOLED.fullmatch(argument) or argument.partition("=")[2] in values:
            continue
        is_value = option in common and _OPTION.fullmatch(option) and not _OPTION.match(argument)
        distinct += [option] if is_value else []
        distinct.append(argument)
    return " ".join(distinct)


def _patterns(texts: Iterable[tuple[ReportedRun, str]]) -> dict[int, str]:
    """Return, by run, its text with names in place of the values of its settings: "out_{lr}" differs in nothing else.

    A value may be in the text by chance, too. So a run has the pattern of most runs that its settings make its text of.
    """
    runs = [(row.run_id, text, json.loads(row.params_json)) for row, text in texts]
    general = {run_id: _without_settings(text, params) for run_id, text, params in runs}
    patterns = [pattern for pattern, _ in Counter(general.values()).most_common(_MOST_PATTERNS)]
    if len(patterns) < 2:
        return general
    made = {
        pattern: {run_id for run_id, text, params in runs if _filled(pattern, params) == text} for pattern in patterns
    }
    patterns.sort(key=lambda pattern: -len(made[pattern]))
    return {run_id: next((p for p in patterns if run_id in made[p]), own) for run_id, own in general.items()}


def _filled(pattern: str, params: Mapping[str, Any]) -> str:
    return _NAMED.sub(lambda match: str(params.get(match[1], match[0])), pattern)


def _without_settings(text: str, params: Mapping[str, Any]) -> str:
    names = {str(value): name for name, value in params.items()}
    values = "|".join(map(re.escape, sorted(filter(None, names), key=len, reverse=True)))
    return re.sub(values, lambda match: f"{{{names[match[0]]}}}", text) if values else text


def _machine(run: ReportedRun) -> str | None:
    return select_runs.MERGED + run.machine_hash if run.machine_hash and run.merged else run.machine_hash


def _kinds(runs: Iterable[ReportedRun], context: Context) -> dict[str | None, str]:
    """Return, by its name, the first machine of the kind of each machine: they have the same hardware, share a
    question, and ran it with the same software and driver. Their runs answer it together, in rounds of one machine."""
    software: dict[str, dict[str, set[str | None]]] = {}
    for run in runs:
        if (machine := _machine(run)) is not None:
            of_question = software.setdefault(machine, {})
            of_question.setdefault(run.spec_hash, set()).add(run.software_hash)
    if len(software) < 2:
        return {}
    texts = dict(context.tuples("SELECT hash, data_json FROM fingerprints WHERE kind = 'machine'"))
    hardware = {}
    for machine in software:
        digest = machine.removeprefix(select_runs.MERGED)
        hardware[machine] = digest == machine, {**json.loads(texts.get(digest, "{}")), "id": None}
    firsts: dict[str | None, str] = {}
    for machine, of_question in software.items():
        equal = [other for other in dict.fromkeys(firsts.values()) if hardware[other] == hardware[machine]]
        first = next((other for other in equal if _agree(software[other], of_question)), machine)
        firsts[machine] = first
        for spec_hash, hashes in of_question.items():
            software[first].setdefault(spec_hash, set()).update(hashes)
    return firsts


def _agree(first: Mapping[str, set[str | None]], second: Mapping[str, set[str | None]]) -> bool:
    shared = first.keys() & second.keys()
    return bool(shared) and all(first[question] & second[question] for question in shared)


def _planned(rows: Sequence[ReportedRun], context: Context) -> dict[int, tuple[int, int]]:
    """Return, by job, how many jobs of the same workload its submission planned, chosen now or not, and how many of
    them are compiled: a verdict counts all pairs of the question, not those selected."""
    sql = (
        "SELECT id, count(*) OVER same, total(compile) OVER same FROM jobs"
        " WHERE group_id IN ({groups}) WINDOW same AS (PARTITION BY group_id, workload)"
    )
    return {job: (n_rows, round(n_compiled)) for job, n_rows, n_compiled in context.by_groups(sql, rows)}


def _aims(runs: Sequence[ReportedRun], context: Context) -> dict[int | None, Aim]:
    """Return, by group, what the submission asks about, if it says so."""
    stored = context.by_groups("SELECT id, aim FROM groups WHERE id IN ({groups}) AND aim IS NOT NULL", runs)
    return {group_id: Aim.from_json(aim) for group_id, aim in stored}


def _earlier_levels(runs: Sequence[ReportedRun], context: Context) -> dict[tuple[str, str | None], float]:
    """Return, by question and machine, how far apart the speeds of the runs before the selected ones are, if two."""
    selected = [run for run in runs if run.kind != "import" and run.outcome == Outcome.SUCCEEDED]
    if not (selected and context.options.selectors):
        return {}
    first: dict[str, list[int]] = {}
    for run in selected:
        ids = first.setdefault(run.spec_hash, [run.job_id, run.run_id])
        ids[:] = map(min, ids, (run.job_id, run.run_id))
    bounds = min(run.group_id or 0 for run in selected) - _RECENT, max(run_id for _, run_id in first.values())
    earlier = context.tuples(_EARLIER, [json.dumps(list(first.values())), *bounds])
    by_question = by_key(earlier, lambda row: row[:2])
    return {key: two_levels([math.log(time_s) for *_, time_s in rows]) for key, rows in by_question.items()}


def _metrics(runs: Sequence[ReportedRun], context: Context) -> dict[int, dict[str, float]]:
    """Return, by run, the last value of each metric that its log or its program names. One of --metric is NaN where the
    log has none: what the program sends by that name may be another number."""
    stored = context.tuples_by_run(read.LAST_METRICS, runs)
    metrics: dict[int, dict[str, float]] = {}
    for run in runs:
        of_log = json.loads(run.log_metrics_json or "{}")
        metrics[run.run_id] = dict.fromkeys(of_log, math.nan) | {
            name: value
            for name, value, offset in stored.get(run.run_id, ())
            if name not in INTERNAL and value is not None and (name not in of_log or offset == OWN_NOTE)
        }
    return metrics


def where(machine: str | None) -> str:
    """Return the name of a machine in table titles, with the digits that `--where machine=a321505` accepts."""
    if machine is None:
        return "unnamed machine"
    name = f"machine {machine.removeprefix(select_runs.MERGED)[:7]}"
    return f"{name} (merged)" if machine.startswith(select_runs.MERGED) else name


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def question(rows: Sequence[ReportedRun], context: Context) -> Question:
    """Return how to group and compare the rows, by default or by --group-by and --vs.

    Raises: UsageError when no run has a name in --group-by or --vs, or a name in --vs does not distinguish rows.
    """
    options = context.options
    settings = sorted({name for row in rows for name in row.settings})
    named = {name for row in rows for name in row.factors} - set(settings)
    others = sorted(named, key=_rank)
    names: Sequence[str] = [*MAIN, *settings, *others, *DETAILS]
    if options.group_by:
        names = [_name(context, name, "--group-by", [*settings, *others]) for name in options.group_by]
        if "resumed" in others and "resumed" not in names:
            names = [*names, "resumed"]  # a partial training is never pooled with complete ones
    vs: dict[str, Any] = {_name(context, n, "--vs", [*settings, *others]): value for n, value in options.vs.items()}
    if "machine" in vs:
        raise UsageError(
            "--vs machine: mpsq never compares two machines, since processor, memory, cooling and system all differ",
            "compare each machine's MFU, or its speedup over its own CPU; --where machine=... selects one",
        )
    for name, given in zip(vs, options.vs, strict=True):
        if rows and name not in names and name not in SUBJECT:
            hint = f"use --group-by {','.join([*names[:3], given])}"
            raise UsageError(f"--vs: the rows are not grouped by {given}", hint)
    if "compile" in vs:
        vs["compile"] = {"1": True, "0": False}.get(vs["compile"], vs["compile"])
    fixed = [name for name in settings if name in names]
    return Question(
        names,
        fixed,
        vs,
        declared="name" in options.vs,
        include_invalid=options.include_invalid,
        aim=options.aim,
    )


def _rank(name: str) -> tuple[int, str]:
    """Return a sort key that puts requested factors before versions that follow from them."""
    return 0 if name == "env" else 1 if name.startswith("mps_") else 2 if name in _FRAMEWORKS else 3, name


def _name(context: Context, name: str, option: str, factors: Sequence[str]) -> str:
    name = select_runs.spelled(name, factors)
    if name in factors or name in MAIN or name in DETAILS or name.removeprefix("mps_") in mps_switches.SWITCHES:
        return name
    if name == "tag":
        raise UsageError(f"{option}: tags select runs and cannot distinguish rows", "use --where tag=NAME")
    if name in ("workload", "name", "machine"):
        return "machine" if name == "machine" else "subject"
    column, setting = select_runs.resolve(context.connection, name, option)
    return column or setting


def _software(rows: Sequence[ReportedRun], context: Context) -> dict[int, dict[str, Any]]:
    """Return by run the versions and variables in which runs of the same framework differ; empty if none do. Of a run
    that has not started only its code is known."""
    commands = [row for row in rows if row.kind == "command" and row.outcome == Outcome.SUCCEEDED]
    timed = [*(row for row in rows if row.median_s), *commands]
    distinct = {(row.framework, row.framework_version, row.software_hash) for row in timed}
    if len(distinct) == len({framework for framework, *_ in distinct}):
        return {}
    texts = context.tuples("SELECT hash, data_json FROM fingerprints WHERE kind = 'software'")
    known = {hash: json.loads(text) for hash, text in texts}
    flat = {
        key: {**flatten(known.get(key[2], {})), **({key[0]: key[1]} if key[0] and key[1] else {})} for key in distinct
    }
    differ = {
        name
        for keys in by_key(distinct, lambda key: key[0]).values()
        for name in {name for key in keys for name in flat[key]}
        if len({str(flat[key].get(name)) for key in keys if flat[key]}) > 1
    }
    unstarted = {
        row.run_id: flatten({"code": row.spec_code}) for row in rows if "code" in differ and row.started_at is None
    }
    packages = {key: known[key[2]]["packages"] for key in distinct if "packages" in known.get(key[2], {})}
    installed = {name for versions in packages.values() for name in versions}
    uneven = {name for name in installed if len({versions.get(name) for versions in packages.values()}) > 1} - differ
    return unstarted | {
        row.run_id: {
            **{name: packages[key].get(name) for name in (uneven if key in packages else ())},
            **{name: data.get(name) for name in differ},
        }
        for row in rows
        if (data := flat.get(key := (row.framework, row.framework_version, row.software_hash))) is not None
    }


def flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a software fingerprint: versions and variables by name, without tokens, the code by its first digits."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if name == "packages":
            continue  # compared only among environments whose packages are known
        if isinstance(value, Mapping):
            texts = {key: redact.redact([item])[0] if isinstance(item, str) else item for key, item in value.items()}
            flat.update(mps_switches.factor(*pair) for pair in texts.items())
        elif name == "code":
            flat["code"] = str(value)[:8] if value and value != NO_CODE else None
        elif value is not None:
            flat[name] = value
    return flat


def windowed(rows: Iterable[ReportedRun], context: Context) -> list[ReportedRun]:
    """Prepare the rows, with iteration times recomputed over --iters, from `measure` iterations only.

    The centre is the median: over iterations 10 to 50 of the three logs in docs/recipes/metal-post.md it reproduces the
    published 8.99 x, 6.50 x and 1.38, whereas the mean gives 9.00 x.
    """
    prepared = prepare(rows, context)
    if context.options.iters is None:
        return prepared
    from queue_runner.analysis.summary import describe

    sql = (
        "SELECT run_id, dur_s FROM v_iteration WHERE phase = 'measure' AND i BETWEEN ? AND ?"
        " AND run_id IN ({runs}) ORDER BY run_id"
    )
    iterations = context.tuples_by_run(sql, prepared, context.options.iters)
    times = [[dur_s for (dur_s,) in iterations.get(row.run_id, [])] for row in prepared]
    spreads: list[dict[str, Any]] = [{"n_measure": len(xs), **describe(xs)} for xs in times]
    window = context.options.iters
    return [row.changed(**spread, window=window) for row, spread in zip(prepared, spreads, strict=True)]
