"""Does torch compute, on which devices? Asked of a child process: a device can hang or kill whoever tries it.

`is_available()` is no answer: it can be True where the first allocation fails (virtual machines without Metal), so the
child multiplies two matrices on each device and looks at the product.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

TIMEOUT_S = 120.0
"""For the import of torch from a cold disk and the first kernel of each device."""

_PROGRAM = """
import json, sys
def say(**what):
    print(json.dumps(what), flush=True)
try:
    import torch
except ImportError as error:
    say(missing=str(error))
    sys.exit(0)
mps = getattr(torch.backends, "mps", None)
say(version=torch.__version__, cuda_built=torch.version.cuda, mps_built=bool(mps and mps.is_built()),
    threads=torch.get_num_threads())
def there(name):
    return name == "cpu" or bool(torch.cuda.is_available() if name == "cuda" else mps and mps.is_available())
for name in ("cpu", "cuda", "mps"):
    try:
        if not there(name):
            say(device=name, state="absent")
            continue
        a = torch.arange(4096, dtype=torch.float32).reshape(64, 64) / 4096
        wanted = float((a @ a).sum())
        found = float((a.to(name) @ a.to(name)).sum().cpu())
        say(device=name, state="computes" if abs(found - wanted) <= 1e-3 * abs(wanted) else "wrong",
            text=torch.cuda.get_device_name() if name == "cuda" else "")
    except Exception as error:
        say(device=name, state="fails", text=(str(error).strip().splitlines() or [type(error).__name__])[0])
"""


@dataclass(frozen=True)
class Torch:
    """What the child said. `devices` maps cpu, cuda, mps to (computes|wrong|fails|absent|died, text)."""

    version: str | None = None
    cuda_built: str | None = None
    mps_built: bool = False
    trouble: str | None = None
    devices: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def ask(python: str, timeout_s: float = TIMEOUT_S) -> Torch:
    """Try torch and its devices in `python`. What the child said before it died or hung counts."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPSQ_"))}
    trouble = None
    try:
        child = subprocess.run(
            [python, "-P", "-c", _PROGRAM],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            env=environment,
            cwd="/",  # ours may have been deleted, and then torch finds none of its libraries
            check=False,
        )
        said, wrong = child.stdout, child.stderr
        if child.returncode:
            lines = wrong.decode("utf-8", "replace").strip().splitlines()
            trouble = f"it ended with status {child.returncode}" + (f": {lines[-1]}" if lines else "")
    except subprocess.TimeoutExpired as error:
        said, trouble = error.stdout or b"", f"it did not answer within {timeout_s:.0f} s"
    except OSError as error:
        return Torch(trouble=f"{python} cannot be run: {error.strerror}")
    return _understand(said, trouble)


def _understand(said: bytes, trouble: str | None) -> Torch:
    head: dict[str, object] = {}
    devices: dict[str, tuple[str, str]] = {}
    for line in said.decode("utf-8", "replace").splitlines():
        try:
            what = json.loads(line)
        except ValueError:
            continue  # something that torch printed
        if not isinstance(what, dict):
            continue
        if "device" in what:
            devices[str(what["device"])] = (str(what.get("state")), str(what.get("text") or ""))
        else:
            head |= what
    if trouble and head.get("version"):
        silent = next((name for name in ("cpu", "cuda", "mps") if name not in devices), None)
        if silent:
            devices[silent] = ("died", trouble)
            trouble = None
    if "missing" in head:
        trouble = str(head["missing"])
    version, cuda = head.get("version"), head.get("cuda_built")
    return Torch(
        str(version) if version else None, str(cuda) if cuda else None, bool(head.get("mps_built")), trouble, devices
    )
