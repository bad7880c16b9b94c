"""Expansion of a request, given as texts, into JobSpecs, one per cell of its grid; all validation is done here."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from queue_runner import redact
from queue_runner.errors import UsageError
from queue_runner.model import PHASES, Dependency
from queue_runner.paths import Layout, jobs_dir
from queue_runner.spec import COMPILE_MODES, JobSpec, Terms, Value
from queue_runner.submit import environments, gpus, grid, interpreter, launchers, policy, preflight
from queue_runner.submit.find_max import first_probe, search
from queue_runner.submit.request import Request
from queue_runner.units import parse_duration
from queue_runner.workloads import catalog
from queue_runner.workloads.manifest import Workload

STALLING = PHASES[:6]
"""Phases of a run that can have their own limit."""


class Shared:
    """Values that the requests of one submission share, each once: terms, places, workloads and programs."""

    def __init__(self) -> None:
        self._agreed: dict[tuple[object, ...], tuple[Terms, tuple[Dependency, ...]]] = {}
        self._common: dict[tuple[object, ...], JobSpec] = {}
        self._homes: dict[str | None, Layout] = {}
        self._workloads: dict[tuple[object, ...], Workload] = {}
        self._preflights: dict[tuple[object, ...], dict[str, Value]] = {}
        self._programs: set[tuple[object, ...]] = set()
        self.interpreters: dict[tuple[object, ...], str | None] = {}

    def home(self, request: Request) -> Layout:
        """Return the queue whose environments and workloads the request refers to."""
        if request.home not in self._homes:
            self._homes[request.home] = environments.home(request)
        return self._homes[request.home]

    def agreed(self, request: Request) -> tuple[Terms, tuple[Dependency, ...]]:
        """Return the terms of a request and its dependencies. Raises: UsageError."""
        key = _OF_TERMS(request)
        if key not in self._agreed:
            self._agreed[key] = policy.of_request(request, time.time())
        return self._agreed[key]

    def common(self, request: Request) -> JobSpec:
        """Return what all cells of the request share: place, environment and limits. Raises: UsageError."""
        key = (request.workload is None, *_OF_ALL_CELLS(request))
        if key not in self._common:
            self._common[key] = _common(request)
        return self._common[key]

    def workload(self, request: Request, framework: str | None) -> Workload:
        """Return the workload of the request in this framework. Raises: UsageError."""
        key = (request.workload, framework, request.home)
        if key not in self._workloads:
            own = self.home(request).workloads
            workload = catalog.find(jobs_dir(), str(request.workload), framework, own=own)
            self._workloads[key] = self._workloads[request.workload, workload.framework, request.home] = workload
        return self._workloads[key]

    def preflight(self, request: Request, framework: str | None) -> dict[str, Value]:
        """Return the settings of a preflight of the workload of the request in this framework."""
        key = (request.workload, framework, request.home)
        if key not in self._preflights:
            self._preflights[key] = preflight.settings(self.workload(request, framework))
        return self._preflights[key]

    def check_program(self, program: str, common: JobSpec) -> None:
        """Raise UsageError when there is no such program."""
        key = (program, common.cwd, common.env.get("PATH"))
        if key not in self._programs:
            environments.check_program(program, common.cwd, common.env)
            self._programs.add(key)


_OF_ALL_CELLS = attrgetter(
    *("cwd", "env", "python", "timeout_s", "allow_daemons", "copy", "allow_changed", "stall", "resume", "secrets"),
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
    if bool(request.workload) == bool(request.argv):
        raise UsageError(
            "submit takes a workload or a command", "mpsq submit nanogpt, or mpsq submit -- python train.py"
        )
    if not request.allow_plain and any(map(redact.has_token, request.argv)):
        raise UsageError(
            "the command line contains a token or a password, which the database and `ps` would show",
            "--secret NAME passes it to the job as a variable; --allow-plain stores the command line as it is",
        )
    if request.timeout_s is not None and request.timeout_s <= 0:
        raise UsageError("--timeout must be longer than 0", "for example --timeout 2h")
    policy.check_name(request.name or "")
    if request.parser is not None:
        from queue_runner.ingest import parsers  # and the expressions of every log format

        parsers.find(request.parser)
    if request.find_max is not None and request.repeats > 1:
        raise UsageError("--find-max tries each value once", "remove --repeats; mpsq rerun repeats what it found")
    shared = shared or Shared()
    cells = list(_workload_cells(request, shared) if request.workload else _command_cells(request, shared))
    found = environments.with_environments(request, cells)
    if request.find_max is None:
        return found
    return [first_probe.within_metal(spec, search.parse(request.find_max)) for spec in found]


def _workload_cells(request: Request, shared: Shared) -> Iterator[JobSpec]:
    if request.parser is not None:
        raise UsageError("--parser is for commands: a workload reports its own iterations", "remove --parser")
    common = shared.common(request)
    frameworks = grid.names(request.framework, "--framework") if request.framework else [None]
    for framework in frameworks:
        workload = shared.workload(request, framework)
        axes: dict[str, Sequence[str | bool | Value]] = {
            "config": grid.names(request.config, "--config") if request.config else [next(iter(workload.configs), "")],
            "device": grid.devices(request.device or "auto"),
            "compile": grid.compiles(request.compile or "off"),
            "dtype": grid.dtypes(request.dtype or "fp32", workload.dtypes),
        }
        _refuse_modes(axes["compile"], workload.framework)
        for name in axes["config"]:
            if name:
                catalog.config(workload, str(name))
        sets: Mapping[str, Sequence[Value]]
        texts = catalog.by_own_names(workload, _settings(request))
        sets = {key: _sweep(workload, key, text) for key, text in texts.items()}
        asked = search.parse(request.find_max) if request.find_max is not None else None
        if asked:
            asked = replace(asked, key=workload.aliases.get(asked.key, asked.key))
        said = sets.get(asked.key, []) if asked else []
        if asked:
            sets = first_probe.settings(workload, sets, asked)
        for cell in grid.product({**axes, **{f"set:{k}": v for k, v in sets.items()}}):
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
                seed=request.seed,
                params={k: cell[f"set:{k}"] for k in sets},
            )
            launchers.refuse_several_on_mps((), spec.device, spec.env)
            gpus.refuse(spec, workload, here=request.on is None)
            yield first_probe.of_workload(workload, spec, asked, said) if asked else spec


def _mode(cell: Value) -> str:
    """Return the mode of torch.compile of a cell; empty for its default and for none."""
    return str(cell) if cell in COMPILE_MODES else ""


def _refuse_modes(cells: Sequence[Value], framework: str) -> None:
    """Raise UsageError for a mode of torch.compile in another framework."""
    named = [mode for mode in map(_mode, cells) if mode]
    if named and framework != "torch":
        raise UsageError(
            f"{named[0]} is a mode of torch.compile, and {framework} has no modes",
            f"--compile both for {framework}, and submit torch separately",
        )


def _settings(request: Request) -> dict[str, str]:
    """Return the settings as texts. Raises: UsageError for one with a token: reports show settings."""
    found = redact.assignments(request.sets, "--set")
    for key, text in found.items():
        policy.no_token(f"--set {key}", text)
    return found


def _sweep(workload: Workload, key: str, text: str) -> list[Value]:
    param = workload.params.get(key)
    if param is not None and isinstance(param.default, str):
        return [catalog.value(workload, key, word) for word in grid.names(text, f"--set {key}")]
    return [catalog.value(workload, key, word.strip()) for word in text.split(",")]


def _command_cells(request: Request, shared: Shared) -> Iterator[JobSpec]:
    common = shared.common(request)
    said = labels(request.argv)
    axes: dict[str, Sequence[str]] = {}
    if device := request.device or said.get("device"):
        axes["device"] = grid.devices(device)
    if compiled := request.compile or said.get("compile"):
        words = _words_of_compile(compiled, request.parser)
        modes = grid.compiles(compiled)
        axes["compile"] = [mode if isinstance(mode, str) else words[mode] for mode in modes]
        if request.parser == "nanogpt" and (named := [mode for mode in modes if isinstance(mode, str)]):
            raise UsageError(f"--compile {named[0]}: nanoGPT's train.py takes True or False", "--compile both")
    if dtype := request.dtype:
        axes["dtype"] = grid.dtypes(dtype)
    if request.config:
        axes["config"] = grid.names(request.config, "--config")
    for key, text in _settings(request).items():
        if key in _OPTIONS:
            raise UsageError(f"{key} is an option, not a setting", f"--{key} {text}: {{{key}}} stands for it")
        axes[key] = grid.names(text, f"--set {key}")
    asked = search.parse(request.find_max) if request.find_max is not None else None
    begin = axes.pop(asked.key, []) if asked else []
    for axis, values in axes.items():
        if len(values) > 1 and not any(grid.uses(word, axis) for word in request.argv):
            raise UsageError(
                f"{axis} has {len(values)} values, and the command does not use {{{axis}}}",
                f"write {{{axis}}} where the value belongs, as in: -- python train.py --{axis}={{{axis}}}",
            )

    def interpreter_of(argv: Sequence[str]) -> str:
        if request.python is not None:  # else it is not mpsq's own
            return common.python
        return interpreter.of_command(argv, common.cwd, common.env, shared.interpreters) or ""

    filled = ((cell, tuple(grid.fill(word, cell) for word in request.argv)) for cell in grid.product(axes))
    cells = [
        common.changed(
            name=request.name or _command_name(request.argv),
            device=cell.get("device"),
            compile=None if "compile" not in cell else cell["compile"] not in ("off", "False"),
            compile_mode=_mode(cell.get("compile", "")),
            dtype=cell.get("dtype"),
            config=cell.get("config"),
            params={k: v for k, v in cell.items() if k not in _OPTIONS},
            argv=argv,
            parser=request.parser,
            python=interpreter_of(argv),
        )
        for cell, argv in filled
    ]
    for spec in cells:  # before the look for the launcher: where it is does not matter
        launchers.refuse_several_on_mps(spec.argv, spec.device, spec.env)
        gpus.refuse(spec, None, here=request.on is None)
    if request.env_name is None:  # else the program may be in the environment
        shared.check_program(request.argv[0], common)
    for spec in cells:
        yield first_probe.of_command(spec, asked, begin) if asked else spec


_OPTIONS = ("device", "compile", "dtype", "config")
"""Axes of a command's grid that are not settings: reports handle these separately."""


def _words_of_compile(text: str, parser: str | None) -> tuple[str, str]:
    """Return the words for `{compile}` off and on: nanoGPT's train.py accepts only those of Python."""
    pythonic = parser == "nanogpt" or any(word.strip() in ("True", "False") for word in text.split(","))
    return ("False", "True") if pythonic else ("off", "on")


_LABEL = re.compile(r"--(device)=(cpu|mps|auto|cuda(?::\d+)?)|--(compile)=(True|False|on|off)")


def labels(argv: Sequence[str]) -> dict[str, str]:
    """Return device and compile from a command line in nanoGPT's form, `--device=mps --compile=True`.

    Unknown values are omitted: these are labels for reports, the command itself is never changed.
    """
    return {match[1] or match[3]: match[2] or match[4] for word in argv if (match := _LABEL.fullmatch(word))}


def _command_name(argv: Sequence[str]) -> str:
    script = next((word for word in argv[1:] if word.endswith((".py", ".sh"))), argv[0])
    return Path(script).name[: policy.MOST_NAME]


def _common(request: Request) -> JobSpec:
    """Return what all cells of the request share: place, environment and limits."""
    cwd = folder(request)
    if not cwd.is_dir():
        raise UsageError(f"there is no folder {cwd}", "--cwd takes the folder in which the job runs")
    variables = redact.assignments(request.env, "--env")
    env = redact.inherited(os.environ) | variables
    return JobSpec(
        kind="command" if request.workload is None else "workload",
        name="",
        cwd=str(cwd),
        env=env,
        variables=variables,
        python=_python(request.python, env),
        timeout_s=request.timeout_s,
        allow_daemons=request.allow_daemons,
        copy=request.copy,
        allow_changed=request.allow_changed,
        stall_s=stalls(request.stall),
        resume=request.resume,
        secrets=_secrets(request),
        gpus=gpus.asked(request),
    )


def _secrets(request: Request) -> tuple[str, ...]:
    if not request.secrets:
        return ()
    from queue_runner.host import job_secrets

    if twice := sorted(set(request.secrets) & set(redact.assignments(request.env, "--env"))):
        raise UsageError(f"{twice[0]} has both --env and --secret", "give one of them")
    return job_secrets.check_names(environments.home(request), request.secrets)


def folder(request: Request) -> Path:
    """Return the absolute folder its jobs run in. Raises: UsageError if it is the current one and that is gone."""
    said = Path(request.cwd or "").expanduser()
    try:
        return said if said.is_absolute() else Path.cwd() / said
    except FileNotFoundError as error:
        raise UsageError("the current folder was deleted", "change to a folder that exists") from error


def stalls(said: Sequence[str]) -> dict[str, float]:
    """Return `60s` (every phase that is not named) and `measure=30s` as seconds by phase.

    Raises: UsageError for an unknown phase or an invalid time.
    """
    found = {}
    for text in said:
        phase, _, time = text.rpartition("=")
        if phase and phase not in STALLING:
            raise UsageError(f'unknown phase "{phase}"', f"use --stall TIME, or PHASE=TIME with {', '.join(STALLING)}")
        seconds = parse_duration(time, "--stall")
        if seconds <= 0:
            raise UsageError(f"--stall {text} would stop every run at once", "give a time above 0")
        found[phase or "*"] = seconds
    return found


def _python(named: str | None, env: Mapping[str, str]) -> str:
    """Return the interpreter's absolute path, links unresolved: resolving a venv's python would lose the venv."""
    if named is None:
        return sys.executable
    found = shutil.which(Path(named).expanduser().absolute() if "/" in named else named, path=env.get("PATH"))
    if found is None:
        raise UsageError(
            f'there is no interpreter "{named}"',
            "--python takes the path of a Python interpreter, e.g. ~/nightly/bin/python",
        )
    return str(Path(found).absolute())
