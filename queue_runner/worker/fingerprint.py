"""The fingerprint of a run: machine and software are hashed, conditions are a series and never hashed.

Runs are comparable on the same machine; every difference in software is a named factor of the comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from queue_runner.host import machine
from queue_runner.spec import JobSpec

_MATTERS = re.compile(
    r"(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|CUDA|CUBLAS|NCCL|MLX|METAL|JAX|XLA|TF|OMP|MKL|OPENBLAS|VECLIB|NUMEXPR|KMP|GOMP)_"
    r"|(OMP|MKL)$|DEV$|LD_PRELOAD$|MALLOC_"
)
"""Environment variables that affect the speed of a framework."""
_CACHES = re.compile(r"_CACHE(_DIR)?$")


@cache
def of_machine() -> dict[str, Any]:
    """Return the properties of the machine that survive a reboot. Queried once per process."""
    return dict(machine.describe())


@cache
def _of_system() -> dict[str, Any]:
    return machine.software()


def of_software(hello: Mapping[str, Any], spec: JobSpec, system: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the versions that the trainer reported, those of the system (this one if None), and the variables that
    matter. Paths of caches do not."""
    return {
        **({"packages": dict(spec.packages)} if spec.packages else {}),
        "versions": dict(hello.get("versions") or {}),
        "python": None if hello.get("versions") else spec.python,
        "system": _of_system() if system is None else dict(system),
        "env": {k: v for k, v in sorted(spec.env.items()) if _MATTERS.match(k) and not _CACHES.search(k)},
        "code": spec.code or spec.snapshot,
    }
