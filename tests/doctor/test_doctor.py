"""doctor: what is there, what is not, and what mends it. The child's answers are real but for devices not here."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from queue_runner.doctor import examine, queue_checks
from queue_runner.host import compiler, locks, torch_probe
from queue_runner.paths import Layout
from queue_runner.store.read import reading, waiting_specs
from queue_runner.submit import plan
from tests.cli_support import Cli, empty_queue
from tests.process_support import needs_linux
from tests.submit_support import requested

pytestmark = pytest.mark.process


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def said(*lines: dict[str, object]) -> str:
    return "cat <<'END'\n" + "\n".join(json.dumps(line) for line in lines) + "\nEND"


HEAD = {"version": "2.13.0", "cuda_built": "13.0", "mps_built": True}


def test_a_child_that_answers(tmp_path: Path) -> None:
    python = program(tmp_path / "p", "echo noise from an import\n" + said(HEAD, {"device": "cpu", "state": "computes"}))
    found = torch_probe.probe(python)
    assert (found.version, found.cuda_built, found.mps_built, found.trouble) == ("2.13.0", "13.0", True, None)
    assert found.devices == {"cpu": ("computes", "")}


def test_a_device_that_kills_or_hangs_its_user(tmp_path: Path) -> None:
    answers = said(HEAD, {"device": "cpu", "state": "computes"}, {"device": "cuda", "state": "absent"})
    killed = torch_probe.probe(program(tmp_path / "dies", f"{answers}\necho Metal is gone >&2\nexit 134"))
    assert killed.devices["mps"][0] == "died" and "134: Metal is gone" in killed.devices["mps"][1]
    hung = torch_probe.probe(program(tmp_path / "hangs", f"{answers}\nexec sleep 60"), timeout_s=0.2)
    assert hung.devices["mps"][0] == "died" and "did not answer" in hung.devices["mps"][1]
    assert hung.devices["cpu"] == ("computes", "")


def test_smoke_is_for_another_machine(mpsq: Cli, home: Path) -> None:
    ran = mpsq("doctor", "--smoke")
    assert ran.code == 2 and "--smoke needs --on" in ran.err


def test_an_interpreter_tells_of_conda_and_its_processor(tmp_path: Path) -> None:
    """A folder laid out as conda lays it out; the interpreter in it is a real one."""
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "python-3.12.4-h99e199e_1_cpython.json").write_text('{"subdir": "osx-arm64"}')
    (tmp_path / "conda-meta" / "python-dateutil-2.9.json").write_text('{"subdir": "noarch"}')
    prefix = f"import sys; sys.base_prefix = {str(tmp_path)!r}; import platform; platform.processor = lambda: 'arm'"
    python = program(tmp_path / "p", f"""exec {sys.executable} -c "{prefix}; exec(sys.argv[1])" "$2" """)
    found = torch_probe.interpreter(python)
    assert (found.conda, found.processor, found.trouble) == ("osx-arm64", "arm", None)
    assert torch_probe.interpreter(sys.executable).conda is None
    assert found.translated is None or sys.platform == "darwin"


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    found = torch_probe.probe(program(tmp_path / "p", said({"missing": "No module named 'torch'"})))
    (check,) = examine._torch(found, "/some/python")
    assert check.verdict == "fail" and "No module named" in check.finding and "pip install torch" in check.fix
    assert "No such file" in str(torch_probe.probe("/no/python").trouble)


@pytest.mark.parametrize(
    ("state", "verdict"), [("computes", "ok"), ("absent", "ok"), ("wrong", "fail"), ("fails", "fail"), ("died", "fail")]
)
def test_a_devices_verdict(state: str, verdict: str) -> None:
    found = torch_probe.Torch("2.13.0", None, False, None, {"mps": (state, "out of memory")})
    assert [check.verdict for check in examine._torch(found, "python")] == ["ok", verdict]


def test_a_torch_for_metal_that_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    found = torch_probe.Torch("2.15.0", None, True, None, {"mps": ("absent", "")})
    check = list(examine._torch(found, "python"))[1]
    assert check.verdict == "warn" and "finds no GPU" in check.finding and "virtual machine" in check.fix
    found = torch_probe.Torch("2.15.0", None, False, None, {"mps": ("absent", "")})
    assert "built without MPS" in list(examine._torch(found, "python"))[1].finding


def test_the_other_frameworks_are_asked_in_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    for name, code in (("mlx", "raise ImportError('libmlx.so: not found')"), ("tinygrad", "")):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
        (site / name / "core.py" if name == "mlx" else site / name / "__init__.py").write_text(code)
        (site / f"{name}-1.2.dist-info").mkdir()
        (site / f"{name}-1.2.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.2\n")
    paths = f"import sys; sys.path[:] = [{str(site)!r}, *(p for p in sys.path if 'site-packages' not in p)]"
    python = program(tmp_path / "p", f'exec {sys.executable} -S -P -c "{paths}; exec(sys.argv[1])" "$2"')
    others = torch_probe.others(python)
    assert others == {"mlx": ("1.2", others["mlx"][1]), "tinygrad": ("1.2", None)}
    assert "libmlx.so" in str(others["mlx"][1])
    assert [(check.name, check.verdict) for check in examine._others(python)] == [
        ("mlx", "warn"),
        ("tinygrad", "ok"),
        ("frameworks", "ok"),
    ]
    monkeypatch.setattr(torch_probe, "others", lambda python: {"jax": ("0.11.1", None)})
    plugin = {check.name: check for check in examine._others(python, system="darwin")}["jax-mps"]
    assert plugin.verdict == "warn" and "install jax-mps" in plugin.fix
    assert "jax-mps" not in str([*examine._others(python, system="linux")])
    assert not {"mlx", "jax", "tinygrad"} & set(sys.modules)


def test_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler.probe().verdict == "ok"
    monkeypatch.setenv("CXX", program(tmp_path / "g++", "echo no libc >&2; exit 1"))
    assert "no libc" in compiler.probe().finding
    monkeypatch.setenv("CXX", "/no/compiler")
    assert compiler.probe().verdict == "warn" and compiler.probe().fix


def test_the_store(home: Path) -> None:
    assert [check.verdict for check in queue_checks.store(Layout(home))] == ["ok"]
    layout = empty_queue(home)
    assert [check.name for check in queue_checks.store(layout)] == ["store", "log of the store"]
    with sqlite3.connect(layout.db) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "mpsq db restore" in next(queue_checks.store(layout)).fix
    with layout.db.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40_000)
    assert next(queue_checks.store(layout)).verdict == "fail"
    layout.db.write_text("no database" * 100)
    assert next(queue_checks.store(layout)).verdict == "fail"


def test_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "first submit" in next(queue_checks.home(Layout(home))).finding
    monkeypatch.setattr(queue_checks, "network_kind", lambda _: "smbfs")
    assert next(queue_checks.home(Layout(home))).verdict == "fail"


def test_a_disk_on_which_no_run_starts(home: Path) -> None:
    """It only warned, of 1 GiB whatever the setting was."""
    layout = empty_queue(home)
    layout.config.write_text(f"min_free_bytes = {1 << 60}\n")
    (check,) = (one for one in queue_checks.home(layout) if one.name == "disk")
    assert check.verdict == "fail" and "(min_free_bytes)" in check.fix


@needs_linux  # a folder in which even root makes nothing
def test_a_home_that_cannot_be_made() -> None:
    (check,) = queue_checks.home(Layout(Path("/proc/mpsq")))
    assert check.verdict == "fail" and "cannot be created" in check.finding and "MPSQ_HOME" in check.fix


def test_folders_that_do_not_answer(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = empty_queue(home)
    assert not list(queue_checks.answering(layout))
    (tmp_path / "code").mkdir()
    plan.store(layout, plan.plan(requested(argv=("/usr/bin/true", "--data=/net/x"), cwd=str(tmp_path / "code"))))
    (check,) = queue_checks.answering(layout)
    assert check.verdict == "ok"
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: exists(path) if path != "/net/x" else threading.Event().wait())
    with reading(layout.db) as connection:
        texts = waiting_specs(connection)
    assert queue_checks.silent(texts, 0.3) == ["/net/x"]


def test_folders_that_macos_guards(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = empty_queue(home)
    (check,) = queue_checks.guarded(layout, system="darwin", user_home=tmp_path)
    assert check.verdict == "ok" and not list(queue_checks.guarded(layout, system="linux"))
    code = tmp_path / "Documents" / "code"
    code.mkdir(parents=True)
    plan.store(layout, plan.plan(requested(argv=("/usr/bin/true", "--data=/Volumes/disk/x"), cwd=str(code))))
    (check,) = queue_checks.guarded(layout, system="darwin", user_home=tmp_path)
    assert check.verdict == "warn" and "~/src" in check.fix
    assert check.finding == f"{code} and /Volumes/disk/x".replace(" and ", ", ")


def test_the_worker(home: Path) -> None:
    layout = empty_queue(home)
    assert queue_checks.worker(layout).verdict == "warn" and "mpsq worker" in queue_checks.worker(layout).fix
    lock = locks.try_lock(locks.worker_lock_path(home))
    assert lock is not None
    with lock:
        assert queue_checks.worker(layout).verdict == "ok"


def test_queues_with_other_locks_are_not_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    assert "run beside" in queue_checks.lock_folder().finding
    monkeypatch.delenv("MPSQ_LOCKS")
    monkeypatch.setattr(locks, "_BASES", (tmp_path,))
    assert queue_checks.lock_folder().finding == str(locks.lock_dir())


def test_exit_code_and_fixes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mpsq = Cli(capsys)
    monkeypatch.setattr(compiler, "probe", lambda: compiler.Check("compiler", "ok", "compiles"))
    good = program(tmp_path / "good", said(HEAD, {"device": "cpu", "state": "computes"}))
    monkeypatch.chdir(tmp_path)
    found = [mpsq.ok("doctor", "--python", python, "--json").json()["checks"] for python in ("./good", good)]
    torch = [[check for check in checks if check["name"] in ("python", "torch", "cpu")] for checks in found]
    assert torch[0] == torch[1] and len(torch[0]) == 3
    ran = mpsq("doctor", "--python", good)
    assert ran.code == 0 and "ok    cpu" in ran.out
    bad = program(tmp_path / "bad", said({"missing": "No module named 'torch'"}))
    ran = mpsq("doctor", "--python", bad)
    assert ran.code == 1 and "fail  torch" in ran.out and "fix: " in ran.out
    assert not home.exists()
