"""Records from several threads: a process that uses a kind for the first time in two of them must survive."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys, threading, types
import msgspec
from queue_runner.decoding import convert, from_json, prepared

how = {
    "convert": lambda kind: convert({"inner": {"x": 1}, "more": [{"x": 2}]}, kind),
    "from_json": lambda kind: from_json('{"inner": {"x": 1}, "more": [{"x": 2}]}', kind),
    "prepared": lambda kind: msgspec.json.Decoder(prepared(kind)).decode('{"inner": {"x": 1}, "more": []}'),
}[sys.argv[1]]
sys.setswitchinterval(1e-6)
for number in range(300):
    module = types.ModuleType(f"kinds{number}")
    sys.modules[module.__name__] = module
    exec(
        "from msgspec import Struct\\n"
        "class Inner(Struct):\\n    x: int\\n    y: dict[str, float] = {}\\n"
        "class Outer(Struct):\\n    inner: Inner\\n    more: list['Inner']\\n    z: float | None = None\\n",
        module.__dict__,
    )
    together = threading.Barrier(4)
    def use():
        together.wait()
        how(module.Outer)
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("survived")
"""


@pytest.mark.parametrize("function", ["convert", "from_json", "prepared"])
def test_a_kind_is_first_used_by_several_threads(function: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, function], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr
