"""mpsq env with real venvs and a real uv, without a network: a wheel that the test itself writes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.paths import Layout
from tests import forked_programs
from tests.process_support import until

pytestmark = pytest.mark.process


def mpsq(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = forked_programs.run(*arguments)
    assert done.returncode == code, done.stderr
    return done


def wheel(folder: Path, version: str) -> None:
    """A package `tinywheel` of one module that knows its version."""
    info = f"tinywheel-{version}.dist-info"
    files = {
        "tinywheel.py": f'VERSION = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tinywheel\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{name},{_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"tinywheel-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def _digest(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


@pytest.fixture
def wheels(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        wheel(folder, version)
    yield folder


def test_two_versions_are_made_compared_and_removed(layout: Layout, wheels: Path, tmp_path: Path) -> None:
    for name, version in (("one", "1.0"), ("two", "2.0")):
        pip = f"tinywheel=={version} --no-index --find-links {wheels}"
        assert "1 package," in mpsq("env", "create", name, "--pip", pip).stdout
    listed = json.loads(mpsq("env", "list", "--json").stdout)["envs"]
    assert [env["packages"] for env in listed] == [{"tinywheel": "1.0"}, {"tinywheel": "2.0"}]
    program = "import tinywheel, sys; print(tinywheel.VERSION, sys.prefix)"
    mpsq("submit", "--no-gate", "--env-name", "one,two", "--order-seed", "1", "--", "python", "-c", program)
    assert "needed by job 2" in mpsq("env", "remove", "two", code=1).stderr
    forked_programs.work()
    for job, (name, version) in enumerate((("one", "1.0"), ("two", "2.0")), start=1):
        said = (layout.run_dir(f"{job}.1") / "stdout.log").read_text().split()
        assert said == [version, str(layout.envs / name)]
    mpsq("env", "remove", "two")
    assert [path.name for path in layout.envs.glob("[!.]*")] == ["one"]


def test_what_uv_refuses_is_shown_and_nothing_is_left(layout: Layout, wheels: Path) -> None:
    refused = mpsq("env", "create", "bad", "--pip", f"tinywheel==9 --no-index --find-links {wheels}", code=1)
    assert "uv pip install" in refused.stderr and "tinywheel==9" in refused.stderr and "hint: fix" in refused.stderr
    assert list(layout.envs.glob("[!.]*")) == []


def test_uv_takes_the_places_that_pip_is_configured_with(
    layout: Layout, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "pip.conf").write_text(
        f"[global]\nno-index = true\nfind-links = /no\n[install]\nfind-links =\n  {tmp_path}\n  {wheels}\n"
    )
    (tmp_path / "limits.txt").write_text("tinywheel<2\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "limits.txt"))
    mpsq("env", "create", "one", "--pip", "tinywheel")
    (env,) = json.loads(mpsq("env", "list", "--json").stdout)["envs"]
    assert env["packages"] == {"tinywheel": "1.0"} and env["pip"] == ["tinywheel"]


def test_the_modules_of_a_new_environment_are_compiled(layout: Layout, wheels: Path) -> None:
    """Else the first run that imports them compiles them, and takes longer than the others."""
    mpsq("env", "create", "one", "--pip", f"tinywheel --no-index --find-links {wheels}")
    assert list((layout.envs / "one").rglob("tinywheel.*.pyc"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_maker_that_is_ended_leaves_no_environment(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(
        "#!/bin/sh\nfor folder; do :; done\n"
        f'mkdir -p "$folder/bin"\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n'
    )
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    maker = forked_programs.command("env", "create", "cut")
    remove = ("env", "remove", "cut")
    try:
        until(lambda: (layout.envs / "cut" / "bin").is_dir(), "uv has started")
        os.kill(maker.pid, number)
        assert maker.wait() != 0
        assert json.loads(mpsq("env", "list", "--json").stdout)["envs"] == []
        if number == signal.SIGKILL:
            assert "another mpsq" in mpsq(*remove, code=1).stderr, "while its uv still writes"
    finally:
        (tmp_path / "go").touch()
        maker.communicate()
    if number == signal.SIGKILL:
        until(lambda: forked_programs.run(*remove).returncode == 0, "its end", 120)
    assert not (layout.envs / "cut").exists()
