"""The simulator finds nothing in the product, finds each planted bug, and does the same for the same seed.

`make faults` runs it for five minutes, and each planted bug for up to a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.faults import planted
from tests.process_support import needs_linux

ROOT = Path(__file__).parents[2]
LONG = os.environ.get("MPSQ_FAULTS") == "long"
CLEAN_S, PLANTED_S = (300.0, 60.0) if LONG else (10.0, 60.0)
STEPS_PER_S = 1000


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.faults", *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(planted.BUGS))
def test_the_text_that_a_planted_bug_replaces_is_there(name: str) -> None:
    bug = planted.BUGS[name]
    for module in {replacement.module for replacement in bug.replacements}:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        source = Path(spec.origin).read_text()
        assert planted.changed(source, [each for each in bug.replacements if each.module == module]) != source


@needs_linux
@pytest.mark.process
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise() -> None:
    ran = simulate("--seconds", str(CLEAN_S))
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    rate = re.search(r"([\d,]+) steps/s", ran.stdout)
    assert rate is not None
    print(ran.stdout)


@needs_linux
@pytest.mark.process
@pytest.mark.parametrize("name", sorted(planted.BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    first = 1 if LONG else planted.FIRST.get(name, 1)
    ran = simulate("--plant", name, "--first", str(first), "--seconds", str(PLANTED_S))
    assert ran.returncode == 0, f"{name} was not found:\n{ran.stdout}\n{ran.stderr}"


@needs_linux
@pytest.mark.process
def test_a_seed_decides_everything() -> None:
    logs = []
    for _ in range(2):
        ran = simulate("--seed", "1")
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr
        logs.append(re.sub(r"mpsq-faults-\w+", "FOLDER", ran.stdout).splitlines()[:-1])
    assert logs[0] == logs[1] and len(logs[0]) > 20
