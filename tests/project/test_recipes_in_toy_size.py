"""What the recipes of guides have in toy size, run on the CPU as a shell runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queue_runner.paths import Layout
from tests import forked_programs
from tests.cli_support import ROOT
from tests.queue_support import ANY_MACHINE
from tests.recipes_support import blocks

pytestmark = pytest.mark.slow

TOYS = {
    "accelerated-pytorch": ["n_layer 2 works"],
    "lightning": ["lightning_gpt"],
    "pytorch-on-metal-guide": ["the guide's loop, as it prints it"],
    "trainer": ["max_length=32"],
}
"""What the reports and searches must show, by recipe."""


@pytest.mark.parametrize("name", sorted(TOYS))
def test_the_toy_sizes_of_a_recipe_run(name: str, layout: Layout, tmp_path: Path) -> None:
    layout.config.write_text(f"min_free_bytes = 0\npoll_s = 0.2\n{ANY_MACHINE}")
    program = tmp_path / "bin" / "mpsq"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m queue_runner.cli "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    script = "\n".join(blocks(ROOT / "docs" / "recipes" / f"{name}.md", "sh"))
    assert script.count("mpsq ") >= 2
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def read(*arguments: str) -> Any:
        return json.loads(forked_programs.run(*arguments, "--json", cwd=tmp_path).stdout)

    jobs = read("list", "--all")["jobs"]
    assert jobs and all(job["ok"] for job in jobs)
    shown = " ".join([*done.stdout.split(), *(str(read("show", str(job["job"]))) for job in jobs)])
    for words in TOYS[name]:
        assert words in shown, words
