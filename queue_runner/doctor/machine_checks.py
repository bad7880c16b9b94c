"""Doctor's checks of the machine: cores, load, memory, power, heat, other GPU use, priority, caches, variables.

Tool output is parsed by the functions that sample a run's conditions; unknown values are reported as unknown, never
as a warning.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from queue_runner import config_file, units
from queue_runner.checks import Check, warn_if
from queue_runner.errors import MpsqError
from queue_runner.host import apple_gpu, cpu_time, locks, machine, nvidia, power, run_sampler
from queue_runner.host.command import Ask, ask
from queue_runner.machine_records import Machine, SensorSample
from queue_runner.paths import Layout
from queue_runner.workloads import mps_switches

BUSY_SHARE = 0.1
"""With more GPU use by others, a measurement means little; a window server alone stays below."""
_LOAD_S = 1.0
_BUSY_PROCESSORS = 0.05
"""A process that uses less of one processor is not named."""
_NAMED = 3
_LOW_MEMORY_SHARE = 0.1
_HOT_C = 85.0
"""Data-centre cards throttle a few degrees above this."""
NORMAL_PRIORITY = 31
"""The lowest priority of an unthrottled program on macOS, where 31 to 37 are normal; launchd's Standard is 20,
Background 4, and children inherit it."""
_SLOWING = {
    "PYTORCH_DEBUG_MPS_ALLOCATOR": "logs every allocation",
    "PYTORCH_MPS_LOG_PROFILE_INFO": "profiles",
    "PYTORCH_MPS_TRACE_SIGNPOSTS": "traces",
    "CUDA_LAUNCH_BLOCKING": "waits for every kernel",
    "TORCH_LOGS": "logs",
    "TORCHDYNAMO_DISABLE": "turns torch.compile off",
}
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_OF_FRAMEWORKS = ("PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "MLX_", "JAX_", "XLA_", "OMP_", "MKL_", "CUDA_")


def of_machine(
    layout: Layout,
    *,
    ask: Ask = ask,
    root: Path = Path("/"),
    system: str = sys.platform,
    variables: Mapping[str, str] = os.environ,
) -> Iterator[Check]:
    """Run all checks of the machine. Args: as host.machine.describe; `variables` is the environment of a submit."""
    described = machine.describe(ask=ask, root=root, system=system)
    yield cores(described)
    yield memory(described.memory_gib, root, system)
    yield power_source(_power(ask, root, system))
    gpu = _gpu(ask, root, system)
    pressure = ["/usr/bin/notifyutil", "-g", "com.apple.system.thermalpressurelevel"]
    level = power.parse_pressure(ask(pressure)) if system == "darwin" else None
    yield thermal(level, gpu.gpu_temperature_c)
    yield gpu_use(gpu.gpu_busy_share, unasked=system != "darwin" and nvidia.is_missing(root))
    yield priority(layout, ask, system)
    yield caches(layout, variables)
    yield from of_variables(variables)


def cores(machine: Machine) -> Check:
    """Check the processor, and a container's limit on it."""
    logical, physical = machine.cores_logical, machine.cores_physical
    tiers = (machine.cores_by_tier or {}).items()
    description = " and ".join(f"{count} {name}" for name, count in tiers if count)
    if not description:
        description = f"{physical or logical or '?'}" + (
            f" ({logical} threads)" if physical and logical != physical else ""
        )
    finding = f"{machine.cpu or 'an unknown processor'}, cores: {description}"
    quota = machine.cpu_quota
    if quota and logical and quota < logical:
        fix = "raise the container's limit, or give --set threads=N: torch counts all cores and would be throttled"
        return Check("cores", "warn", f"{finding}; this container may use {quota:g} cores", fix)
    return Check("cores", "ok", finding)


def load(layout: Layout, seconds: float = _LOAD_S, *, queue: Collection[int] | None = None) -> Check:
    """Check how much of the processors other programs use, and name the busiest. Not counted are the processes of the
    `queue` and all below them: by default this one and the worker."""
    settings = config_file.Config()
    with contextlib.suppress(MpsqError):  # the settings have a check of their own
        settings = config_file.load(layout.config)
    if queue is None:
        worker = locks.worker(layout.home)[1] if layout.home.is_dir() else None
        queue = [os.getpid(), *filter(None, [worker])]
    shares = cpu_time.Shares(cpu_time.CpuTimes())
    shares.since_last(cpu_time.below(queue))
    before = _by_program()
    time.sleep(seconds)
    ours, now = cpu_time.below(queue), _by_program()
    share = shares.since_last(ours).others_cpu_share
    if share is None:
        return Check("load", "ok", "unknown")
    used = {process: (s - before[process]) / seconds for process, s in now.items() if process in before}
    busiest = sorted((process for process in used if process[0] not in ours), key=lambda process: -used[process])
    names = [
        f"{name} of {user} (process {pid}) uses {used[pid, start, name, user]:.1f} processors"
        for pid, start, name, user in busiest[:_NAMED]
        if used[pid, start, name, user] >= _BUSY_PROCESSORS
    ]
    finding = f"other programs use {units.percent(share)} of the processors" + (
        f": {', '.join(names)}" if names else ""
    )
    at_most = units.duration(settings.gate_timeout_s)
    fix = f"stop them; else a comparison waits up to {at_most} for quiet, then runs less precisely"
    return warn_if(share > settings.gate_cpu_share, "load", finding, fix)


def _by_program() -> dict[tuple[int, float, str, str], float]:
    """Return the CPU time in seconds by process: its pid, start, name and user; without those that hide it."""
    import psutil

    return {
        (process.pid, process.info["create_time"], process.info["name"], process.info["username"]): times.user
        + times.system
        for process in psutil.process_iter(["cpu_times", "create_time", "name", "username"])
        if (times := process.info["cpu_times"]) is not None
    }


def memory(total_gib: int | None, root: Path = Path("/"), system: str = sys.platform) -> Check:
    """Check total and free memory: a run that swaps is invalid."""
    read = run_sampler.psutil_memory if system == "darwin" else lambda: run_sampler.linux_memory(root)
    available = read()[0]
    finding = f"{total_gib or '?'} GiB" + (f", {units.size(available)} available" if available is not None else "")
    low = bool(total_gib and available is not None and available < total_gib * 2**30 * _LOW_MEMORY_SHARE)
    return warn_if(low, "memory", finding, "stop programs that use it: a run that swaps is invalid")


def _power(ask: Ask, root: Path, system: str) -> power.Power:
    if system != "darwin":
        return power.linux_power(root)
    battery = power.parse_battery(ask(["/usr/bin/pmset", "-g", "batt"]))
    low = power.parse_low_power(ask(["/usr/bin/pmset", "-g"]))
    return power.Power(battery.on_battery, battery.battery_share, low)


def power_source(supply: power.Power) -> Check:
    """Check for mains or battery, and for power saving."""
    charge = f" ({supply.battery_share:.0%})" if supply.battery_share is not None else ""
    source = {True: f"battery{charge}", False: "mains", None: "source unknown"}[supply.on_battery]
    if supply.low_power:
        fix = "turn low power mode off: it reduces the speed by a third to a half"
        return Check("power", "warn", f"{source}, low power mode", fix)
    return warn_if(bool(supply.on_battery), "power", source, "connect the power supply: runs on battery are marked")


def thermal(pressure: int | None, gpu_c: float | None) -> Check:
    """Check macOS's thermal pressure (0 to 4), or the GPU's temperature (degrees Celsius) if the driver reports it."""
    if pressure is not None:
        nominal = "nominal, which proves nothing: a throttled run shows drift"
        word = (nominal, "moderate", "heavy", "trapping", "sleeping")[min(pressure, 4)]
        fix = "let it cool before measuring; mpsq config set cooldown_s 2m pauses between runs"
        return warn_if(pressure > 0, "thermal", f"pressure {word}", fix)
    if gpu_c is not None:
        fix = "let it cool: it slows down when hot"
        return warn_if(gpu_c >= _HOT_C, "thermal", f"GPU at {gpu_c:.0f} degrees C", fix)
    return Check("thermal", "ok", "unknown: a throttled run shows drift")


def _gpu(ask: Ask, root: Path, system: str) -> SensorSample:
    if system == "darwin":
        return SensorSample(gpu_busy_share=apple_gpu.use_now(ask))
    library = nvidia.library(root)
    return nvidia.Nvml(library).read() if library else SensorSample()


def gpu_use(share: float | None, *, unasked: bool = False) -> Check:
    """Check whether the GPU is already in use. `unasked`: there is an NVIDIA driver, and nothing to ask it with."""
    if unasked:
        fix = "pip install nvidia-ml-py: without it mpsq cannot see other programs on the GPU, its heat or its energy"
        return Check("gpu use", "warn", "unknown: nvidia-ml-py is missing", fix)
    if share is None:
        return Check("gpu use", "ok", "unknown")
    fix = "stop programs that draw or compute: runs share the GPU with them"
    return warn_if(share > BUSY_SHARE, "gpu use", f"{share:.0%} by all programs", fix)


def priority(layout: Layout, ask: Ask = ask, system: str = sys.platform) -> Check:
    """Check whether the worker, from which every run inherits, is throttled; this process if none runs."""
    alive, pid = locks.worker(layout.home) if layout.home.is_dir() else (False, None)
    whose, number = (f"worker {pid}", pid) if alive and pid else ("this terminal", os.getpid())
    if system == "darwin":
        priority = run_sampler.parse_priority(ask(["/bin/ps", "-o", "pri=", "-p", str(number)]))
        normal, finding = "31 to 37", f"{whose} has priority {priority}"
        low = priority is not None and priority < NORMAL_PRIORITY
    else:
        priority, normal = None, "0"
        with contextlib.suppress(OSError):
            priority = os.getpriority(os.PRIO_PROCESS, number)
        finding, low = f"{whose} has nice {priority}", bool(priority and priority > 0)
    if priority is None:
        return Check("priority", "ok", "unknown")
    fix = "start the worker without nice, or by mpsq service install: runs inherit it"
    return warn_if(low, "priority", finding + (f", {normal} is normal" if low else ""), fix)


def caches(layout: Layout, variables: Mapping[str, str] = os.environ) -> Check:
    """Check that compiled code is cached per job definition, so that cold and warm are meaningful."""
    set_here = [name for name in _CACHES if variables.get(name)]
    if set_here:
        finding = f"{' and '.join(set_here)} is set: every job inherits it, and different jobs share a compiler cache"
        return Check(
            "caches", "warn", finding, f"unset {' '.join(set_here)}: mpsq keeps a cache for each job definition"
        )
    return Check("caches", "ok", f"{layout.cache}, a compiler cache for each job definition")


def of_variables(variables: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Check for framework variables that every job would inherit."""
    trouble = mps_switches.trouble(variables)
    if trouble:
        yield Check("variables", "fail", *trouble)
        return
    slow = [f"{name} ({why})" for name, why in _SLOWING.items() if variables.get(name) not in (None, "", "0")]
    if slow:
        names = " ".join(name for name in _SLOWING if variables.get(name) not in (None, "", "0"))
        yield Check("variables", "warn", f"set here, and inherited by every job: {', '.join(slow)}", f"unset {names}")
    elif variables.get("PYTORCH_ENABLE_MPS_FALLBACK", "0") != "0":
        finding = "PYTORCH_ENABLE_MPS_FALLBACK is set: operators without an MPS kernel run on the CPU, slowly"
        yield Check("variables", "warn", finding, "unset it, and request it where needed: --mps fallback=on")
    else:
        known = sorted(name for name in variables if name.startswith(_OF_FRAMEWORKS))
        summary = f"inherited by every job: {', '.join(known)}" if known else "no variables of frameworks"
        yield Check("variables", "ok", summary)
