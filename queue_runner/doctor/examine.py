"""Checks of everything that a queue needs, each with a verdict and a fix.

queue_checks.py checks the queue itself, machine_checks.py the machine. torch_probe tries torch in a child process.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator

from queue_runner import config_file, extensions
from queue_runner.checks import Check
from queue_runner.doctor import machine_checks, queue_checks
from queue_runner.errors import UsageError
from queue_runner.host import compiler, machine, torch_probe
from queue_runner.host.command import Ask, ask
from queue_runner.paths import Layout

_NEEDS_MACOS = (((2, 9), 14), ((2, 15), 15))
"""The macOS that MPS needs, by first torch version (libtorch's text, docs/macos.md); torch's docs say 12.3."""


def examine(layout: Layout, python: str | None = None) -> list[Check]:
    """Run all checks. `python` is the interpreter whose frameworks are tried; ours when None.

    Raises: UsageError when that interpreter does not exist.
    """
    interpreter = torch_probe.find_interpreter(python)
    torch = torch_probe.probe(interpreter)
    pythons = [_python(torch)]
    if interpreter != sys.executable:  # what mpsq starts prefers the architecture of its own
        of_mpsq = torch_probe.interpreter(sys.executable)
        pythons.append(_python(of_mpsq, name="mpsq's python", whose=" of mpsq itself"))
    return [
        *pythons,
        _system(torch),
        *_torch(torch, interpreter),
        *_others(interpreter),
        compiler.probe(),
        *machine_checks.of_machine(layout),
        machine_checks.load(layout),
        *queue_checks.of_queue(layout),
    ]


def of_target(layout: Layout, name: str, smoke: bool = False) -> list[Check]:
    """Run the checks of what --on NAME means. `smoke` may start something small there.

    Raises: ConfigError, and UsageError for an unknown target or a profile without what it needs.
    """
    checks = extensions.target_checks()
    if checks is None:
        raise UsageError("this installation of mpsq cannot send runs to other machines", "install the complete package")
    return checks(config_file.load(layout.config), layout, name, smoke=smoke)


def _python(
    torch: torch_probe.Torch, *, ask: Ask = ask, system: str = sys.platform, name: str = "python", whose: str = ""
) -> Check:
    """Check an interpreter: on Apple silicon it must not be an Intel one, and say that its processor is arm."""
    built_for = torch.machine or platform.machine()
    facts = [
        f"Python {torch.python or platform.python_version()}{whose}, built for {built_for}",
        f"platform.processor() {torch.processor}" if torch.processor else "",
        f"from conda ({torch.conda})" if torch.conda else "",
    ]
    about = ", ".join(filter(None, facts))
    if torch.translated or machine.under_rosetta(ask=ask, system=system, machine=built_for):
        fix = "install an arm64 Python: under Rosetta there is no MPS and no torch later than 2.2"
        if torch.conda:
            fix = f"{fix}. Of conda: CONDA_SUBDIR=osx-arm64 conda create -n native python, or Miniforge for arm64"
        return Check(name, "fail", f"{about}: it runs under Rosetta on this Apple silicon Mac", fix)
    if system == "darwin" and built_for == "arm64" and torch.processor not in (None, "arm", "arm64"):
        fix = "put /usr/bin before other programs named uname in PATH, or install another arm64 Python"
        return Check(name, "warn", f"{about}: Lightning takes MPS only where that is arm", fix)
    return Check(name, "ok", about)


def _system(torch: torch_probe.Torch, *, ask: Ask = ask, system: str = sys.platform) -> Check:
    """Check the system's version, on macOS against the one that this torch's MPS needs."""
    software = machine.software(ask=ask, system=system)
    finding = " ".join(str(word) for word in (software.os or platform.system(), software.os_version) if word)
    finding += f", kernel {software.kernel}" + (f", GPU driver {software.gpu_driver}" if software.gpu_driver else "")
    if system != "darwin":
        return Check("system", "ok", finding)
    needs, has = needed_macos(torch.version), _leading(software.os_version)
    if needs is None or has is None or has[0] >= needs:
        return Check("system", "ok", finding + (f"; this torch needs {needs} for MPS" if needs else ""))
    older = next((f"{major}.{minor}" for (major, minor), macos in _NEEDS_MACOS if macos > has[0] >= 14), None)
    fix = f"update macOS to {needs}" + (f', or install an older torch: pip install "torch<{older}"' if older else "")
    return Check("system", "fail", f"{finding}: MPS of torch {torch.version} needs macOS {needs}", fix)


def needed_macos(torch: str | None) -> int | None:
    """Return the macOS that MPS of this torch needs; None if unknown."""
    version = _leading(torch)
    return next((macos for since, macos in reversed(_NEEDS_MACOS) if version and version >= since), None)


def _leading(version: str | None) -> tuple[int, ...] | None:
    """Return the first two numbers of a version: "2.13.0+cpu" is (2, 13), "26" is (26,)."""
    match = re.match(r"(\d{1,9})(?:\.(\d{1,9}))?", version or "")
    return tuple(int(number) for number in match.groups() if number) if match else None


def _others(interpreter: str, *, system: str = sys.platform) -> Iterator[Check]:
    """Check which of mlx, jax and tinygrad are installed, and whether they can be imported; on macOS also JAX's plugin
    for Metal."""
    frameworks = torch_probe.others(interpreter)
    for name, (version, trouble) in frameworks.items():
        if trouble:
            package = '"mlx[cpu]" (or "mlx[cuda]")' if name == "mlx" and sys.platform.startswith("linux") else name
            fix = f"{interpreter} -m pip install --force-reinstall {package}"
            yield Check(name, "warn", f"{name} {version} cannot be imported: {trouble}", fix)
        else:
            yield Check(name, "ok", f"{name} {version}")
    if system == "darwin" and "jax" in frameworks and "jax-mps" not in frameworks:
        fix = f"{interpreter} -m pip install jax-mps: jax-metal does not fit this jax"
        yield Check("jax-mps", "warn", "not installed: jax computes on the CPU only", fix)
    missing = [name for name in torch_probe.OTHERS if name not in frameworks and name != "jax-mps"]
    if missing:
        yield Check("frameworks", "ok", f"not installed: {', '.join(missing)}")


def _torch(torch: torch_probe.Torch, interpreter: str) -> Iterator[Check]:
    if torch.version is None:
        yield Check(
            "torch",
            "fail",
            f"{interpreter} has no usable torch: {torch.trouble}",
            f"{interpreter} -m pip install torch, or choose another interpreter with --python",
        )
        return
    built = [f"CUDA {torch.cuda_built}"] * bool(torch.cuda_built) + ["MPS"] * torch.mps_built
    yield Check("torch", "ok", f"torch {torch.version}, built for CPU{''.join(f', {name}' for name in built)}")
    for name, (state, text) in torch.devices.items():
        yield _device(name, state, text, torch)


def _device(name: str, state: str, text: str, torch: torch_probe.Torch) -> Check:
    if state == "computes":
        return Check(name, "ok", f"multiplies matrices correctly{f' ({text})' if text else ''}")
    if state == "absent":
        if name == "mps" and sys.platform == "darwin":
            if not torch.mps_built:
                return Check(name, "warn", "this torch was built without MPS", "install the torch for macOS on arm64")
            fix = "see the system check; a virtual machine, a sandbox or an Intel Mac has no Metal for torch"
            return Check(name, "warn", "this torch supports MPS but finds no GPU", fix)
        if name == "cuda" and torch.cuda_built and shutil.which("nvidia-smi"):
            return Check(name, "warn", "this torch supports CUDA but finds no GPU", "check the driver with nvidia-smi")
        return Check(name, "ok", "not available: jobs that request it end as DEVICE_UNAVAILABLE")
    if state == "wrong":
        return Check(name, "fail", "its product of two matrices is wrong", "do not measure on it; try another torch")
    return Check(
        name,
        "fail",
        f"it is available but fails to compute: {text}",
        "stop programs that use it, restart, or try another torch; Metal does not work in a virtual machine",
    )
