"""A probe of the C++ compiler that torch.compile would use for the CPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from queue_runner.checks import Check
from queue_runner.host.find_tool import XCODE, find, install_hint

_COMPILE_TIMEOUT_S = 60.0


def probe() -> Check:
    """Compile a small program with the C++ compiler that torch.compile would use for the CPU: "ok" if that works."""
    named = os.environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++"]
    compiler = next((path for name in candidates if name and (path := find(name))), None)
    fix = install_hint(apt="g++", dnf="gcc-c++", apk="g++", brew=XCODE)
    if compiler is None:
        missing = f"no {' nor '.join(str(name) for name in candidates)}: torch.compile cannot build for the CPU"
        return Check("compiler", "warn", missing, fix)
    with tempfile.TemporaryDirectory(prefix="mpsq-") as folder:
        source = Path(folder, "try.cpp")
        source.write_text("#include <cmath>\nint main() { return std::sqrt(4.0) != 2.0; }\n", encoding="utf-8")
        try:
            built = subprocess.run(
                [compiler, str(source), "-o", f"{folder}/try"],
                capture_output=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Check("compiler", "warn", f"{compiler} cannot be run: {error}", fix)
    if built.returncode:
        message = (built.stderr.decode("utf-8", "replace").strip().splitlines() or ["no error message"])[0]
        return Check("compiler", "warn", f"{compiler} cannot compile a small program: {message}", fix)
    return Check("compiler", "ok", f"{compiler} compiles")
