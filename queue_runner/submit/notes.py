"""Notes on a submission that is valid but may not do what the user expects: each is a sentence on stderr."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from queue_runner import units
from queue_runner.host import nvidia, protected
from queue_runner.host.once_a_day import RepeatedNote
from queue_runner.model import parse_selector
from queue_runner.spec import JobSpec
from queue_runner.submit import expand, interpreter, launchers
from queue_runner.submit.submit_options import Request

Cells = Sequence[JobSpec]


def notes(request: Request, cells: Cells, shared: expand.Shared) -> list[str]:
    """Return the notes on a request with these cells."""
    return [*_lane_of_command(request, cells, shared), *(note for check in _CHECKS for note in check(request, cells))]


def _is_elsewhere(cells: Cells) -> bool:
    return any(spec.on.get("kind") == "ssh" for spec in cells)


AMD_DRIVER = Path("/dev/kfd")
"""The driver of AMD's GPUs, which torch calls cuda, too."""


def _missing_devices(request: Request, cells: Cells) -> Iterator[str]:
    devices = {(spec.device or "").partition(":")[0] for spec in cells}
    absent = []
    if "mps" in devices and sys.platform != "darwin" and not _is_elsewhere(cells):
        absent.append("mps exists on Apple silicon only")
    if "cuda" in devices and not (cells[0].on or nvidia.has_driver() or AMD_DRIVER.exists()):
        absent.append("this machine has no GPU for cuda")
    for why in absent:
        ours = request.workload is not None  # of a command mpsq knows only the options
        end = "its runs will end as DEVICE_UNAVAILABLE here" if ours else "the command may use another device"
        yield f"{why}: {end}"


def _endless_search(request: Request, cells: Cells) -> Iterator[str]:
    if request.find_max and ":" not in cells[0].find_max and request.timeout_s is None:
        stop = f"--find-max {request.find_max.key}=8:512 stops at 512"
        yield f"the search goes on until memory runs out; {stop}, and --timeout limits each try"


def _missing_parser(request: Request, cells: Cells) -> Iterator[str]:
    if request.workload is None and request.parser is None:
        yield RepeatedNote(
            "mpsq stores the wall, user and system time of this command. To store its iterations too, add --parser, or"
            " report them with mpsq_report.py"
        )


def _lane_of_command(request: Request, cells: Cells, shared: expand.Shared) -> Iterator[str]:
    if request.workload or request.device or request.on or not shared.lanes(request):
        return
    if any(spec.device is None for spec in cells):
        yield RepeatedNote(
            "a command without --device may use any device, so it waits until nothing else runs here; --gpus 1 gives"
            " it one GPU, --device cpu no GPU"
        )
    elif request.gpus:
        yield f"each run takes {units.counted(request.gpus, 'GPU')}; the other GPUs may run jobs meanwhile"


def _modes_without_graphs(request: Request, cells: Cells) -> Iterator[str]:
    """Yield the modes that differ from another one only by CUDA graphs, on devices that have none."""
    same = {"reduce-overhead": "on", "max-autotune": "no-cudagraphs"}
    modes = {(s.compile_mode, s.device) for s in cells if s.kind == "workload" and s.device in ("cpu", "mps")}
    for mode, device in sorted(modes, key=str):
        if mode in same:
            yield f"{mode} on {device} is the same as --compile {same[mode]}: the CUDA graphs it adds need cuda"


def _removed_flags(request: Request, cells: Cells) -> Iterator[str]:
    yield from launchers.removed(request.argv)


def _folder_in_command(request: Request, cells: Cells) -> Iterator[str]:
    """Yield the job's folder if a command names it other than in a file path, which a copy has too."""
    if request.workload or request.snapshot == "off":
        return
    folder = cells[0].cwd
    named = [word if word.startswith("/") else word.partition("=")[2] for word in request.argv if folder in word]
    if not all(map(os.path.isfile, named)):  # Path.is_file raises for a word that is longer than a path may be
        yield f"the command names {folder}: runs read that folder, not their copy"


def _name_like_an_id(request: Request, cells: Cells) -> Iterator[str]:
    name = cells[0].name
    if name.startswith("@") or (name and parse_selector(name).name is None):
        yield f'mpsq reads "{name}" as an id, not as a name: use another --name, such as job-{name.strip("@")}'


def _stall_phases(request: Request, cells: Cells) -> Iterator[str]:
    limits = request.stall
    if request.workload is None and set(limits) - {"*"}:
        limit = f"the longest limit, {units.duration(max(limits.values()))}," if "*" in limits else "no limit"
        yield f"--stall: the phase of a command is unknown until it reports one; until then {limit} applies"


def _search(request: Request, cells: Cells) -> Iterator[str]:
    if request.find_max is None:
        return
    from queue_runner.submit.find_max import first_probe, search

    first, key = cells[0], (range_ := search.parse(cells[0].find_max)).key
    parts = [f"the queue adds a run for each {key} that it tries, one after the other."]
    if request.find_max.last == search.MOST and any(spec.mps.get("high_watermark") == "1.0" for spec in cells):
        parts.append(f"On mps the memory that Metal recommends is the limit, except with a range ({key}=8:512).")
    if range_.step > 1:
        parts.append(f"Only multiples of {range_.step} are tried.")
    if range_.last != request.find_max.last:
        parts.append(f"The search ends at {range_.last}, the most that {request.workload} takes.")
    brief = ", ".join(f"{name}={first.params[name]}" for name in first_probe.BRIEF if name in first.params)
    if request.workload and brief:
        parts.append(f"Each run has {brief} (--set changes that).")
    yield " ".join([*parts, "mpsq report scaling shows the result"])


def _guarded_folders(request: Request, cells: Cells) -> Iterator[str]:
    if not _is_elsewhere(cells):
        places = protected.found(path for spec in cells for path in paths_read(spec))
        for path, place in places.items():
            yield f"{path} is in {place}, which macOS protects: {protected.REMEDY}"


def _missing_script(request: Request, cells: Cells) -> Iterator[str]:
    if request.prepare or _is_elsewhere(cells):  # the script may be made, or lie there
        return
    for spec in cells:
        program, script = (*spec.argv[:2], "", "")[:2]
        is_script = script.endswith(".py") and interpreter.PYTHON.fullmatch(program.rpartition("/")[2])
        if is_script and not Path(spec.cwd, script).exists():
            yield f"there is no {script} in {spec.cwd}: runs fail unless it is there when they start"
            return


def _nothing_measured(request: Request, cells: Cells) -> Iterator[str]:
    for spec in cells:
        iters, warmup = spec.params.get("max_iters"), spec.params.get("warmup_iters")
        if request.workload and isinstance(iters, int) and isinstance(warmup, int) and iters - 1 <= warmup:
            needed = f"set max_iters to {warmup + 2} or more"
            yield f"max_iters={iters} with warmup_iters={warmup} measures no iteration: {needed}"
            return


def _missing_checkpoints(request: Request, cells: Cells) -> Iterator[str]:
    if request.resume and request.workload and not all(spec.params.get("checkpoint_interval") for spec in cells):
        yield "--resume needs --set checkpoint_interval=N: without checkpoints, retries start over"


_CHECKS = (
    _missing_devices,
    _endless_search,
    _missing_parser,
    _modes_without_graphs,
    _removed_flags,
    _folder_in_command,
    _name_like_an_id,
    _stall_phases,
    _search,
    _guarded_folders,
    _missing_script,
    _nothing_measured,
    _missing_checkpoints,
)


def paths_read(spec: JobSpec) -> Iterator[str]:
    """Yield the paths that a worker or its job reads: folder, interpreter, and what the command or a setting names."""
    if spec.kind == "command":
        yield spec.cwd
        yield shutil.which(spec.argv[0], path=spec.env.get("PATH")) or ""
    texts = (*spec.argv, *(value for value in spec.params.values() if isinstance(value, str)))
    for word in (spec.python, *texts):
        path = word if word.startswith(("/", "../")) else word.partition("=")[2]
        if path.startswith(("/", "../")):
            yield str(Path(spec.cwd, path))
