"""docs/recipes/metal-post.md from git clone to report, as a shell runs it, with a stand-in for nanoGPT's trainer."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queue_runner.paths import Layout
from tests.cli_support import ROOT, Cli
from tests.queue_support import ANY_MACHINE
from tests.recipes_support import blocks

pytestmark = pytest.mark.process

STAND_IN = Path(__file__).resolve().parents[1] / "stand_in_train.py"


def _shell(folder: Path) -> dict[str, str]:
    """An environment in which git clone gives the stand-in, and mpsq and python are those of this test."""
    original = folder / "original"
    for place in ("config", "data/shakespeare_char"):
        (original / place).mkdir(parents=True)
    shutil.copy(STAND_IN, original / "train.py")
    (original / "config" / "train_shakespeare_char.py").write_text("max_iters = 5000\n")
    (original / "data" / "shakespeare_char" / "prepare.py").write_text("print('vocab size: 65')\n")
    (folder / "mpsq").symlink_to(ROOT)
    programs = {
        "mpsq": f'exec "{sys.executable}" -m queue_runner.cli.main "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "git": f'[ "$1" = clone ] && exec cp -R "{original}" "$(basename "$2")"\nexec "{shutil.which("git")}" "$@"',
    }
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "80"}


def test_the_post_from_git_clone_to_report(layout: Layout, tmp_path: Path) -> None:
    layout.config.write_text("min_free_bytes = 0\npoll_s = 0.2\n" + ANY_MACHINE)
    env = _shell(tmp_path)
    script = "\n".join(blocks(ROOT / "docs" / "recipes" / "metal-post.md", "sh"))
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "g1: 4 jobs, 20 runs queued" in done.stdout
    outcomes = [run["outcome"] for job in _mpsq(env, tmp_path, "show", "g1", "--json")["runs"] for run in [job["run"]]]
    assert outcomes == ["SUCCEEDED"] * 20
    with sqlite3.connect(layout.db) as connection:  # the report does not believe a stand-in that takes no time
        sql = "SELECT device, compile, avg(median_s) * 1000 FROM v_run GROUP BY device, compile"
        medians = {(device, compile): ms for device, compile, ms in connection.execute(sql)}
    expected = {("cpu", 0): 1986, ("cpu", 1): 1700, ("mps", 0): 221, ("mps", 1): 306}
    assert medians == pytest.approx(expected, rel=0.005)
    rows = _mpsq(env, tmp_path, "report", "g1", "--json")["rows"]
    assert {row["time_of"] for row in rows} == {"run"} and all("wrong_clock" in row["taints"] for row in rows)


def _mpsq(env: dict[str, str], folder: Path, *arguments: str) -> Any:
    done = subprocess.run([str(folder / "bin" / "mpsq"), *arguments], env=env, capture_output=True, check=True)
    return json.loads(done.stdout)


LOGS = {"cpu_eager": ("cpu", "off"), "mps_eager": ("mps", "off"), "mps_compile": ("mps", "on")}


def test_the_imported_logs_look_as_the_page_shows_them(
    mpsq: Cli, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block below a comment `output of` is what that command prints, and the last one a part of mpsq show."""
    monkeypatch.setenv("COLUMNS", "80")
    for name, (device, compiled) in LOGS.items():
        log = ROOT / "tests" / "golden" / "parsers" / f"metal_post_{name}.log"
        mpsq.ok("import", str(log), "--parser", "nanogpt", "--set", f"device={device}", "--set", f"compile={compiled}")
    page = (ROOT / "docs" / "recipes" / "metal-post.md").read_text(encoding="utf-8")
    shown = re.findall(r"<!-- output of: mpsq ([^\n]+) -->\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    for words, text in shown:
        assert mpsq.ok(*shlex.split(words)).out.rstrip() == text.rstrip(), words
    [part] = [text for text in blocks(ROOT / "docs" / "recipes" / "metal-post.md", "text") if "per iteration" in text]
    assert part.rstrip() in mpsq.ok("show", "2").out


def test_the_handed_out_logs_are_imported_likewise(mpsq: Cli, layout: Layout) -> None:
    folder = ROOT.parent / "shared" / "data" / "metal_post"
    if not folder.is_dir():
        pytest.skip("../shared/data/metal_post is not beside this checkout")
    logs = [str(log) for log in sorted(folder.glob("*.log"))]
    assert mpsq.ok("import", *logs, "--parser", "nanogpt").out.count("iterations") == 3
