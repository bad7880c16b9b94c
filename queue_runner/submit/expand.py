"""Expansion of a request into JobSpecs, one per cell of its grid; all validation is done here."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from queue_runner import lanes
from queue_runner.errors import UsageError
from queue_runner.host import redact
from queue_runner.model import Dependency
from queue_runner.paths import expanded, jobs_dir
from queue_runner.spec import COMPILE_MODES, DEFAULT_SEED, JobSpec, Terms, Value, command_name
from queue_runner.submit import environment_axis, gpus, grid, interpreter, launchers, policy, trials
from queue_runner.submit.submit_options import Request

if TYPE_CHECKING:
    from queue_runner.workloads.manifest import Workload

T = TypeVar("T")


class Shared:
    """Values that the requests of one submission share, each computed once: terms, places, workloads and programs."""

    def __init__(self) -> None:
        self._values: dict[tuple[object, ...], Any] = {}
        self.interpreters: dict[tuple[object, ...], str | None] = {}

    def once(self, compute: Callable[[], T], *key: object) -> T:
        """Return the value of this key, computed at its first use."""
        key = tuple(tuple(part.items()) if isinstance(part, dict) else part for part in key)
        if key not in self._values:
            self._values[key] = compute()
        value: T = self._values[key]
        return value

    def terms(self, request: Request) -> tuple[Terms, tuple[Dependency, ...]]:
        """Return the terms of a request and its dependencies. Raises: UsageError."""
        return self.once(lambda: policy.of_request(request, time.time()), "terms", *_OF_TERMS(request))

    def common(self, request: Request) -> JobSpec:
        """Return what all cells of the request share: place, environment and limits. Raises: UsageError."""
        return self.once(lambda: _common(request), "cells", request.workload is None, *_OF_ALL_CELLS(request))

    def workload(self, request: Request, framework: str | None) -> Workload:
        """Return the workload of the request in this framework. Raises: UsageError."""
        from queue_runner.workloads import catalog

        name = str(request.workload)
        user_folder = self.once(lambda: environment_axis.home(request).workloads, "home", request.home)
        workload = self.once(
            lambda: catalog.find(jobs_dir(), name, framework, user_folder), "workload", name, framework, request.home
        )
        return self.once(lambda: workload, "workload", name, workload.framework, request.home)

    def trial(self, request: Request, framework: str | None) -> dict[str, Value]:
        """Return the settings of a preflight of the workload of the request in this framework."""
        workload = self.workload(request, framework)
        return self.once(lambda: trials.settings(workload), "trial", workload.name, workload.framework, request.home)

    def lanes(self, request: Request) -> tuple[str, ...]:
        """Return the lanes of this machine as the settings of the request's queue name them."""
        return self.once(lambda: gpus.lanes_here(request), "lanes", request.home)

    def check_program(self, program: str, common: JobSpec) -> None:
        """Raise UsageError when there is no such program."""
        path = common.env.get("PATH")
        self.once(
            lambda: environment_axis.check_program(program, common.cwd, path), "program", program, common.cwd, path
        )


_OF_ALL_CELLS = attrgetter(
    *("cwd", "env", "python", "timeout_s", "allow_daemons", "snapshot", "stall", "resume", "secrets"),
    *("home", "gpus", "find_max"),
)
_OF_TERMS = attrgetter(
    *("priority", "tags", "note", "hold", "at", "deadline", "retries", "backoff_s", "retry_on", "resume", "after")
)


def expand(request: Request, shared: Shared | None = None) -> list[JobSpec]:
    """Return one JobSpec for each cell of the grid.

    Raises: UsageError for an unknown workload, device, dtype, config, key or parser, a wrong type, a missing folder,
    interpreter or program.
    """
    for check in _CHECKS:
        check(request)
    shared = shared or Shared()
    cells = list(_workload_cells(request, shared) if request.workload else _command_cells(request, shared))
    cells = environment_axis.with_environments(request, cells)
    search = request.find_max
    if search is None:
        return cells
    from queue_runner.submit.find_max import first_probe

    return [first_probe.within_metal(spec, search) for spec in cells]


# -- checks of a whole request ----------------------------------------------------------------------------------------


def _refuse_both_or_none(request: Request) -> None:
    if bool(request.workload) == bool(request.argv):
        raise UsageError(
            "give either a workload or a command", "for example mpsq submit nanogpt, or mpsq submit -- python train.py"
        )


def _refuse_tokens(request: Request) -> None:
    if not request.allow_plain and any(map(redact.has_token, request.argv)):
        raise UsageError(
            "the command line contains a token or a password, which the database and `ps` would show",
            "--secret NAME passes it to the job as a variable; --allow-plain stores the command line as it is",
        )
    for key, values in request.sets.items():  # reports show settings
        for value in values:
            policy.no_token(f"--set {key}", value)


def _refuse_limits(request: Request) -> None:
    if request.timeout_s is not None:
        policy.check_timeout(request.timeout_s)
    if request.name is not None:
        policy.check_name(request.name)


def _refuse_parser(request: Request) -> None:
    if request.parser is None:
        return
    from queue_runner.ingest import parsers  # and the expressions of every log format

    parsers.find(request.parser)
    if request.workload is not None:
        raise UsageError("--parser is for commands: a workload reports its own iterations", "remove --parser")


def _refuse_warmup(request: Request) -> None:
    if request.warmup and request.workload is not None:
        raise UsageError(
            "--warmup is for commands: a workload warms up in each run", "--set warmup_iters=N says for how long"
        )
    if request.warmup < 0:
        raise UsageError(f"--warmup {request.warmup} is less than 0", "give 0 or more")
    policy.no_token("--prepare", request.prepare or "")


def _refuse_repeated_search(request: Request) -> None:
    if request.find_max is not None and request.repeats > 1:
        raise UsageError("--find-max tries each value once", "remove --repeats; mpsq rerun repeats what it found")


def _refuse_searched_preparation(request: Request) -> None:
    if request.find_max is not None and grid.uses(request.prepare or "", request.find_max.key):
        raise UsageError(
            f"--prepare cannot use {{{request.find_max.key}}}, the setting that --find-max searches",
            "give one --prepare that suits every value, or prepare in the command: -- sh -c '...'",
        )


_CHECKS = (
    *(_refuse_both_or_none, _refuse_tokens, _refuse_limits, _refuse_parser, _refuse_warmup),
    *(_refuse_repeated_search, _refuse_searched_preparation),
)


# -- cells ------------------------------------------------------------------------------------------------------------


def _workload_cells(request: Request, shared: Shared) -> Iterator[JobSpec]:
    from queue_runner.submit.find_max import first_probe
    from queue_runner.workloads import catalog

    common = shared.common(request)
    for framework in request.framework or (None,):
        workload = shared.workload(request, framework)
        axes: dict[str, Sequence[str | bool | Value]] = {
            "config": request.config or (next(iter(workload.configs), ""),),
            "device": grid.devices(request.device or ("auto",)),
            "compile": grid.compiles(request.compile or ("off",)),
            "dtype": grid.dtypes(request.dtype or ("fp32",), workload.dtypes),
        }
        _refuse_modes(axes["compile"], workload.framework)
        for name in request.config:
            catalog.config(workload, name)
        sets: Mapping[str, Sequence[Value]] = {
            key: [catalog.value(workload, key, text) for text in texts]
            for key, texts in catalog.by_own_names(workload, request.sets).items()
        }
        search = request.find_max
        given: Sequence[Value] = ()
        if search is not None:
            search = replace(search, key=workload.aliases.get(search.key, search.key))
            given = sets.get(search.key, ())
            sets = first_probe.settings(workload, sets, search)
        for cell in grid.product({**axes, **{f"set:{key}": values for key, values in sets.items()}}):
            spec = common.changed(
                name=request.name or workload.name,
                workload=workload.name,
                framework=workload.framework,
                script=workload.file.name,
                device=str(cell["device"]),
                compile=bool(cell["compile"]),
                compile_mode=_mode(cell["compile"]),
                dtype=str(cell["dtype"]),
                config=str(cell["config"]) or None,
                seed=DEFAULT_SEED if request.seed is None else request.seed,
                params={key: cell[f"set:{key}"] for key in sets},
                prepare=_prepare_of_workload(request, workload, cell),
            )
            launchers.refuse_several_on_mps((), spec.device, spec.env)
            gpus.refuse(spec, workload, here=request.on is None)
            yield first_probe.of_workload(workload, spec, search, given) if search else spec


def _prepare_of_workload(request: Request, workload: Workload, cell: Mapping[str, Value]) -> str:
    """Return the command of --prepare with the given values of a cell. Raises: UsageError for the {KEY} of another
    option or setting of the workload."""
    if not request.prepare:
        return ""
    from queue_runner.workloads.command_line import as_text

    options = {**cell, "compile": _mode(cell["compile"]) or ("on" if cell["compile"] else "off")}
    values = {option: str(options[option]) for option in grid.OPTIONS if getattr(request, option)}
    for name in request.sets:
        key = workload.aliases.get(name, name)
        if (value := cell.get(f"set:{key}")) is not None:
            values |= dict.fromkeys((name, key), as_text(value))
    known = {*grid.OPTIONS, *workload.params, *workload.aliases}
    grid.refuse_unfilled((request.prepare,), {*values}, "--prepare", known)
    return grid.fill(request.prepare, values)


def _mode(cell: Value) -> str:
    """Return the mode of torch.compile of a cell; empty for its default and for none."""
    return str(cell) if cell in COMPILE_MODES else ""


def _refuse_modes(cells: Sequence[Value], framework: str) -> None:
    """Raise UsageError for a mode of torch.compile in another framework."""
    named = [mode for mode in map(_mode, cells) if mode]
    if named and framework != "torch":
        raise UsageError(
            f"{named[0]} is a mode of torch.compile, and {framework} has no modes",
            f"use --compile both for {framework}, and submit torch separately",
        )


def _command_cells(request: Request, shared: Shared) -> Iterator[JobSpec]:
    common = shared.common(request)
    axes = _axes_of_command(request)
    search = request.find_max
    given = axes.pop(search.key, ()) if search is not None else ()
    searched = {search.key} if search is not None else set()
    words = (*request.argv, request.prepare or "")
    has_values = bool(request.sets or searched or any(getattr(request, option) for option in grid.OPTIONS))
    keys = {*axes, *searched} if has_values else set()
    grid.refuse_unfilled(request.argv, keys)
    grid.refuse_unfilled((request.prepare or "",), keys, "--prepare")
    for axis, values in axes.items():
        if (len(values) > 1 or axis in request.sets) and not any(grid.uses(word, axis) for word in words):
            raise UsageError(
                f"the command does not use {{{axis}}}, which is set to {', '.join(values)}",
                f"write {{{axis}}} where the value belongs, as in: -- python train.py --{axis}={{{axis}}}",
            )

    def interpreter_of(argv: Sequence[str]) -> str:
        if request.python is not None:  # else it is not mpsq's own
            return common.python
        return interpreter.of_command(argv, common.cwd, common.env, shared.interpreters) or ""

    def fill(word: str, cell: Mapping[str, str]) -> str:
        return grid.fill(word, cell if has_values else {}, *searched)

    takes_gpus = request.gpus is not None and request.on is None  # where GPUs are lanes; else it may use any device
    has_lanes = takes_gpus and any(name == lanes.AUTO or lanes.kind(name) == "cuda" for name in shared.lanes(request))
    device = "cuda" if has_lanes else None
    cells = [
        common.changed(
            name=request.name or command_name(request.argv),
            device=cell.get("device", device),
            compile=None if "compile" not in cell else cell["compile"] not in ("off", "False"),
            compile_mode=_mode(cell.get("compile", "")),
            dtype=cell.get("dtype"),
            config=cell.get("config"),
            params={key: value for key, value in cell.items() if key not in grid.OPTIONS},
            argv=argv,
            warmup=request.warmup,
            prepare=grid.fill(request.prepare or "", cell),
            parser=request.parser,
            python=interpreter_of(argv),
        )
        for cell in grid.product(axes)
        for argv in [tuple(fill(word, cell) for word in request.argv)]
    ]
    for spec in cells:  # before the search for the launcher: where it is does not matter
        launchers.refuse_several_on_mps(spec.argv, spec.device, spec.env)
        gpus.refuse(spec, None, here=request.on is None)
    if not request.env_name:  # else the program may be in the environment
        shared.check_program(request.argv[0], common)
    if search is None:
        yield from cells
        return
    from queue_runner.submit.find_max import first_probe

    for spec in cells:
        yield first_probe.of_command(spec, search, given)


def _axes_of_command(request: Request) -> dict[str, Sequence[str]]:
    """Return the values of each axis of a command's grid. Raises: UsageError."""
    labelled = labels(request.argv)
    axes: dict[str, Sequence[str]] = {}
    if device := request.device or labelled.get("device"):
        axes["device"] = grid.devices(device)
    if compiled := request.compile or labelled.get("compile"):
        modes = grid.compiles(compiled)
        words = _words_of_compile(compiled, request.parser)
        axes["compile"] = [mode if isinstance(mode, str) else words[mode] for mode in modes]
        if request.parser == "nanogpt" and (named := [mode for mode in modes if isinstance(mode, str)]):
            raise UsageError(
                f"--compile {named[0]}: nanoGPT's train.py has no compile modes", "use --compile on, off or both"
            )
    if request.dtype:
        axes["dtype"] = grid.dtypes(request.dtype)
    if request.config:
        axes["config"] = request.config
    for key, values in request.sets.items():
        if key in grid.OPTIONS:
            raise UsageError(
                f"{key} is an option, not a setting", f"use --{key} {values[0]}; in a command, {{{key}}} stands for it"
            )
        axes[key] = values
    return axes


def _words_of_compile(modes: Sequence[str], parser: str | None) -> tuple[str, str]:
    """Return the words for `{compile}` off and on: nanoGPT's train.py accepts only those of Python."""
    pythonic = parser == "nanogpt" or not {"True", "False"}.isdisjoint(modes)
    return ("False", "True") if pythonic else ("off", "on")


_LABEL = re.compile(r"--(device)=(cpu|mps|auto|cuda(?::\d+)?)|--(compile)=(True|False|on|off)")


def labels(argv: Sequence[str]) -> dict[str, tuple[str]]:
    """Return device and compile from a command line in nanoGPT's form, `--device=mps --compile=True`.

    Unknown values are omitted: these are labels for reports, the command itself is never changed.
    """
    return {match[1] or match[3]: (match[2] or match[4],) for word in argv if (match := _LABEL.fullmatch(word))}


def _common(request: Request) -> JobSpec:
    """Return what all cells of the request share: place, environment and limits."""
    cwd = folder(request)
    if not cwd.is_dir():
        raise UsageError(f"there is no folder {cwd}", "--cwd takes the folder in which the job runs")
    env = {**redact.inherited(os.environ), **request.env}
    python = sys.executable
    if request.python is not None:
        from queue_runner.host import torch_probe

        python = torch_probe.find_interpreter(request.python, env.get("PATH"))
    return JobSpec(
        kind="command" if request.workload is None else "workload",
        name="",
        cwd=str(cwd),
        env=env,
        variables=request.env,
        seed=request.seed,
        seed_by_round=request.seed is None,
        python=python,
        timeout_s=request.timeout_s,
        allow_daemons=request.allow_daemons,
        copy=request.snapshot == "copy",
        allow_changed=request.snapshot == "off",
        stall_s=request.stall,
        resume=request.resume,
        secrets=_secrets(request),
        gpus=gpus.requested(request),
        metrics=request.metrics,
    )


def _secrets(request: Request) -> tuple[str, ...]:
    if not request.secrets:
        return ()
    from queue_runner.host import job_secrets

    if both := sorted({*request.secrets} & request.env.keys()):
        raise UsageError(f"{both[0]} is given with both --env and --secret", "give one of them")
    return job_secrets.check_names(environment_axis.home(request), request.secrets)


def folder(request: Request) -> Path:
    """Return the absolute folder its jobs run in. Raises: UsageError if it is the current one and that is gone."""
    path = expanded(request.cwd or "")
    try:
        return path if path.is_absolute() else Path.cwd() / path
    except FileNotFoundError as error:
        raise UsageError("the current folder was deleted", "change to a folder that exists") from error
