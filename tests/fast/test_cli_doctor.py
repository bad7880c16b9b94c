"""doctor: what is there, what is not, and what mends it. The child's answers are real but for devices not here."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest

from queue_runner import doctor, doctor_torch, locks
from queue_runner.paths import Layout
from tests.cli_support import Cli, empty_queue


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def said(*lines: dict[str, object]) -> str:
    return "cat <<'END'\n" + "\n".join(json.dumps(line) for line in lines) + "\nEND"


HEAD = {"version": "2.13.0", "cuda_built": "13.0", "mps_built": True}


def test_a_child_that_answers(tmp_path: Path) -> None:
    python = program(tmp_path / "p", "echo noise from an import\n" + said(HEAD, {"device": "cpu", "state": "computes"}))
    found = doctor_torch.ask(python)
    assert (found.version, found.cuda_built, found.mps_built, found.trouble) == ("2.13.0", "13.0", True, None)
    assert found.devices == {"cpu": ("computes", "")}


def test_a_device_that_kills_or_hangs_its_user(tmp_path: Path) -> None:
    answers = said(HEAD, {"device": "cpu", "state": "computes"}, {"device": "cuda", "state": "absent"})
    killed = doctor_torch.ask(program(tmp_path / "dies", f"{answers}\necho Metal is gone >&2\nexit 134"))
    assert killed.devices["mps"] == ("died", "it ended with status 134: Metal is gone")
    hung = doctor_torch.ask(program(tmp_path / "hangs", f"{answers}\nexec sleep 60"), timeout_s=0.2)
    assert hung.devices["mps"][0] == "died" and "did not answer" in hung.devices["mps"][1]
    assert hung.devices["cpu"] == ("computes", "")


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    found = doctor_torch.ask(program(tmp_path / "p", said({"missing": "No module named 'torch'"})))
    (check,) = doctor._torch(found, "/some/python")
    assert check.verdict == "fail" and "No module named 'torch'" in check.finding and "pip install torch" in check.fix
    assert doctor_torch.ask("/no/python").trouble == "/no/python cannot be run: No such file or directory"


@pytest.mark.parametrize(
    ("state", "verdict"), [("computes", "ok"), ("absent", "ok"), ("wrong", "fail"), ("fails", "fail"), ("died", "fail")]
)
def test_a_devices_verdict(state: str, verdict: str) -> None:
    found = doctor_torch.Torch("2.13.0", None, False, None, {"mps": (state, "out of memory")})
    assert [check.verdict for check in doctor._torch(found, "python")] == ["ok", verdict]


def test_a_torch_for_metal_that_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = doctor_torch.Torch("2.15.0", None, True, None, {"mps": ("absent", "")})
    assert "macOS 15" in list(doctor._torch(found, "python"))[1].fix


def test_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.compiler().verdict == "ok"
    monkeypatch.setenv("CXX", program(tmp_path / "g++", "echo no libc >&2; exit 1"))
    assert "does not compile a small program: no libc" in doctor.compiler().finding
    monkeypatch.setenv("CXX", "/no/compiler")
    assert doctor.compiler().verdict == "warn" and doctor.compiler().fix


def test_the_store(home: Path) -> None:
    assert [check.verdict for check in doctor.store(Layout(home))] == ["ok"]
    layout = empty_queue(home)
    assert [check.name for check in doctor.store(layout)] == ["store", "log of the store"]
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert next(doctor.store(layout)).fix == "use the mpsq that made it, or a newer one"
    with layout.db.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_000)
    assert next(doctor.store(layout)).verdict == "fail"
    layout.db.write_text("no database" * 100)
    assert next(doctor.store(layout)).verdict == "fail"


def test_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "made at the first submit" in next(doctor.home(Layout(home))).finding
    monkeypatch.setattr(doctor, "network_kind", lambda _: "smbfs")
    assert next(doctor.home(Layout(home))).verdict == "fail"


def test_the_worker(home: Path) -> None:
    layout = empty_queue(home)
    assert doctor.worker(layout).verdict == "warn" and "mpsq worker" in doctor.worker(layout).fix
    lock = locks.try_lock(locks.worker_lock_path(home))
    assert lock is not None
    with lock:
        assert doctor.worker(layout).verdict == "ok"


def test_exit_code_and_fixes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mpsq = Cli(capsys)
    good = program(tmp_path / "good", said(HEAD, {"device": "cpu", "state": "computes"}))
    monkeypatch.chdir(tmp_path)
    assert mpsq.ok("doctor", "--python", "./good").out == mpsq.ok("doctor", "--python", good).out
    ran = mpsq("doctor", "--python", good)
    assert ran.code == 0 and "ok    cpu" in ran.out
    bad = program(tmp_path / "bad", said({"missing": "No module named 'torch'"}))
    ran = mpsq("doctor", "--python", bad)
    assert ran.code == 1 and "fail  torch" in ran.out and "fix: " in ran.out
    assert not home.exists()
