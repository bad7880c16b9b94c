"""The user unit: judged by systemd's own checker where there is one, and installed against a stand-in for systemctl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import queue_runner
from queue_runner.config_file import Config
from queue_runner.errors import MpsqError
from queue_runner.host import services
from queue_runner.host.services.systemd import Systemd
from queue_runner.paths import Layout

pytestmark = pytest.mark.process

SYSTEMCTL = r"""#!/bin/sh
# A stand-in for `systemctl --user`: its state is files beside it, its answers are those of systemd 252.
cd "$(dirname "$0")" || exit 99
shift 2  # --user --no-pager
echo "$*" >> calls
if [ -s refuses ]; then cat refuses >&2; exit 1; fi
case "$1" in
daemon-reload) rm -f stale ;;
enable) touch enabled ;;
disable) rm -f enabled active ;;
stop) rm -f active ;;
restart)
    if [ -f fails ]; then rm -f active; echo exit-code > result
    else echo $(( $(cat active 2>/dev/null || echo 4000) + 1 )) > active; fi ;;
show)
    if [ -f "$UNIT" ]; then echo LoadState=loaded; else echo LoadState=not-found; fi
    if [ -f active ]; then printf 'ActiveState=active\nSubState=running\nMainPID=%s\nResult=success\n' "$(cat active)"
    else
        printf 'ActiveState=inactive\nSubState=dead\nMainPID=0\n'
        echo "Result=$(cat result 2>/dev/null || echo success)"
    fi
    echo ExecMainStatus=0
    if [ -f enabled ]; then echo UnitFileState=enabled; else echo UnitFileState=disabled; fi
    if [ -f stale ]; then echo NeedDaemonReload=yes; else echo NeedDaemonReload=no; fi
    cat overridden 2>/dev/null || printf 'KillMode=process\nOOMPolicy=continue\n' ;;
esac
"""
LOGINCTL = (
    '#!/bin/sh\ncd "$(dirname "$0")"\n[ -f nologind ] && exit 1\necho Linger=$(cat linger 2>/dev/null || echo no)\n'
)


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "box"
    folder.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "linger").write_text("yes")
    monkeypatch.delenv("SUDO_UID", raising=False)
    return folder


@pytest.fixture
def unit(box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    python = tmp_path / "venv" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    made = make(tmp_path, python)
    monkeypatch.setenv("UNIT", str(made.path))
    return made


def make(tmp_path: Path, python: Path, settings: Config | None = None, **environ: str) -> Systemd:
    layout = Layout(tmp_path / "q")
    program = services.program_for(layout, settings or Config(), str(python), {"PATH": "/usr/bin", **environ})
    box = tmp_path / "box"
    return Systemd(
        program, layout.worker_log, str(box / "systemctl"), str(box / "loginctl"), user_home=tmp_path / "me", uid=1000
    )


def calls(box: Path) -> list[str]:
    """What was asked for, looks left out."""
    text = (box / "calls").read_text() if (box / "calls").exists() else ""
    (box / "calls").unlink(missing_ok=True)
    return [line for line in text.splitlines() if not line.startswith("show")]


def test_unit_says_what_keeps_a_run_alive(unit: Systemd, tmp_path: Path) -> None:
    lines = unit.definition().splitlines()
    for line in (
        "Type=notify",
        "WatchdogSec=120",
        f'ExecStart="{tmp_path}/venv/python" "-m" "queue_runner.cli" "worker" "--service"',
        "KillMode=process",
        "OOMPolicy=continue",
        "Restart=on-failure",
        "RestartSec=10",
        "StartLimitIntervalSec=0",
        "UMask=0077",
        f'Environment="MPSQ_HOME={tmp_path}/q"',
        f'Environment="PATH={tmp_path}/venv:/usr/bin:/bin:/usr/sbin:/sbin"',
        f"StandardOutput=append:{tmp_path}/q/logs/worker.log",
        "WantedBy=default.target",
    ):
        assert line in lines


def test_what_systemd_would_expand_is_escaped(tmp_path: Path) -> None:
    lines = make(tmp_path / '5% "$A"', Path("/opt/5% $A/python"), PYTORCH_X="1%").definition().splitlines()
    assert 'ExecStart="/usr/bin/env" "/opt/5%% $$A/python" "-m" "queue_runner.cli" "worker" "--service"' in lines
    assert 'Environment="PYTORCH_X=1%%"' in lines
    assert f'WorkingDirectory={tmp_path}/5%% "$A"/q' in lines


@pytest.mark.needs_program("systemd-analyze")
@pytest.mark.parametrize("odd", ["plain", 'with space, 100%, $HOME, "quote", back\\slash & ü'])
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path, odd: str) -> None:
    python = tmp_path / odd / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    made = make(tmp_path / odd, python)
    path = tmp_path / made.name
    path.write_text(made.definition())
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["systemd-analyze", "--user", "verify", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_install_enables_and_starts(unit: Systemd, box: Path) -> None:
    answer = unit.install()
    assert "is installed" in answer and answer.endswith("(process 4001)")
    assert calls(box) == ["daemon-reload", "enable mpsq-worker.service", "restart mpsq-worker.service"]
    status = unit.status()
    assert (status.installed, status.running, status.pid, status.problems) == (True, True, 4001, ())


def test_install_again_changes_nothing(unit: Systemd, box: Path) -> None:
    unit.install()
    calls(box)
    assert "nothing was changed" in unit.install()
    assert calls(box) == []


@pytest.mark.parametrize("amiss", ["active", "enabled"])
def test_install_mends_what_is_amiss(unit: Systemd, box: Path, amiss: str) -> None:
    unit.install()
    (box / amiss).unlink()
    assert unit.status().problems
    assert "reinstalled" in unit.install()
    assert unit.status().problems == ()


def test_a_changed_unit_is_read_and_restarted(unit: Systemd, box: Path, tmp_path: Path) -> None:
    unit.install()
    (box / "stale").touch()
    assert any("has not reloaded" in problem for problem, _ in unit.status().problems)
    other = make(tmp_path, Path(unit.program.python), PYTORCH_X="1")
    calls(box)
    answer = other.install()
    assert "reinstalled" in answer and "process 4002" in answer
    assert calls(box)[0] == "daemon-reload"


def test_an_upgrade_is_seen(unit: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit.install()
    monkeypatch.setattr(queue_runner, "__version__", "9.9")
    upgraded = make(tmp_path, Path(unit.program.python))
    assert 'Environment="MPSQ_SERVICE_VERSION=9.9"' in upgraded.definition()
    assert any("another version" in problem for problem, _ in upgraded.status().problems)
    assert "reinstalled" in upgraded.restart()
    assert upgraded.status().problems == ()


def test_a_unit_of_version_0_1_is_rewritten(unit: Systemd) -> None:
    for verb in ("start", "restart", "install"):
        unit.install()
        old = unit.definition().replace('"queue_runner.cli" "worker"', '"queue_runner.daemon"')
        assert old != unit.definition()
        unit.path.write_text(old)
        assert any("another version" in problem for problem, _ in unit.status().problems)
        assert "reinstalled" in getattr(unit, verb)()
        assert unit.path.read_text() == unit.definition()


def test_stop_and_start(unit: Systemd, box: Path, tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="is not installed"):
        unit.start()
    assert "not run" in unit.stop()
    unit.install()
    assert "already running (process 4001)" in unit.start()
    calls(box)
    assert "is stopped" in unit.stop()
    assert not unit.status().running and unit.path.exists()
    assert "is started" in make(tmp_path, Path(unit.program.python), PATH="/elsewhere").start()
    assert calls(box) == ["stop mpsq-worker.service", "daemon-reload", "restart mpsq-worker.service"]
    assert unit.status().running


def test_restart_from_another_shell_keeps_the_unit(unit: Systemd, box: Path, tmp_path: Path) -> None:
    unit.install()
    before = unit.path.read_text()
    calls(box)
    assert "is restarted" in make(tmp_path, Path(unit.program.python), PATH="/elsewhere").restart()
    assert calls(box) == ["daemon-reload", "restart mpsq-worker.service"]
    assert unit.path.read_text() == before


def test_uninstall_leaves_the_queue(unit: Systemd, box: Path, tmp_path: Path) -> None:
    unit.install()
    calls(box)
    assert "the queue stays" in unit.uninstall()
    assert calls(box) == ["disable --now mpsq-worker.service", "daemon-reload", "reset-failed mpsq-worker.service"]
    assert not unit.path.exists() and (tmp_path / "q").is_dir()
    assert "was not installed" in unit.uninstall()
    status = unit.status()
    assert (status.installed, status.running, status.pid, status.problems) == (False, False, None, ())
    assert "is not installed" in status.detail


@pytest.mark.parametrize(
    "said",
    [
        "Failed to connect to bus: No medium found",
        "Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS not defined",
        "System has not been booted with systemd as init system (PID 1). Can't operate.",
    ],
)
def test_without_a_user_manager_there_is_a_remedy(unit: Systemd, box: Path, said: str) -> None:
    (box / "refuses").write_text(f"{said}\nmore\n")
    with pytest.raises(MpsqError, match="cannot reach systemd's user manager") as caught:
        unit.install()
    assert "ssh" in caught.value.hint and "mpsq worker" in caught.value.hint
    assert not unit.path.exists()
    assert unit.status().problems == ()
    assert not unit.status().installed


def test_another_refusal_is_passed_on(unit: Systemd, box: Path) -> None:
    (box / "refuses").write_text("Access denied\n")
    with pytest.raises(MpsqError, match="systemctl --user show failed: Access denied"):
        unit.install()


def test_a_worker_that_does_not_start_is_said(unit: Systemd, box: Path) -> None:
    (box / "fails").touch()
    with pytest.raises(MpsqError, match=r"it failed \(exit-code") as caught:
        unit.install()
    assert "worker.log" in caught.value.hint


def test_no_linger_is_a_problem_with_its_command(unit: Systemd, box: Path) -> None:
    (box / "linger").write_text("no")
    assert "loginctl enable-linger" in unit.install()
    (sentence, fix), *rest = unit.status().problems
    assert not rest and "log out" in sentence and fix.startswith("loginctl enable-linger ")
    (box / "nologind").touch()
    assert unit.status().problems == ()


def test_a_drop_in_that_kills_runs_is_a_problem(unit: Systemd, box: Path) -> None:
    unit.install()
    (box / "overridden").write_text("KillMode=control-group\nOOMPolicy=stop\n")
    assert [problem.split(" is ")[0] for problem, _ in unit.status().problems] == ["KillMode", "OOMPolicy"]


def test_a_python_that_is_gone_is_a_problem(unit: Systemd) -> None:
    unit.install()
    Path(unit.program.python).unlink()
    assert any("Python is gone" in problem for problem, _ in unit.status().problems)


def test_sudo_is_refused(unit: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    unit.uid = 0
    monkeypatch.setenv("SUDO_UID", "1000")
    with pytest.raises(MpsqError, match="for root"):
        unit.install()


def test_another_label_is_another_unit(tmp_path: Path, box: Path) -> None:
    assert make(tmp_path, Path(sys.executable), Config(service_label="org.me.q")).name == "org.me.q.service"


@pytest.mark.parametrize(("platform", "kind"), [("darwin", "launchd"), ("linux", "systemd")])
def test_the_platform_decides(box: Path, monkeypatch: pytest.MonkeyPatch, platform: str, kind: str) -> None:
    monkeypatch.setenv("PATH", str(box))
    assert services.for_this_machine(Layout(box), Config(), platform=platform).kind == kind


def test_without_a_service_manager_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for platform in ("linux", "freebsd14"):
        with pytest.raises(MpsqError, match="neither launchd nor systemd") as caught:
            services.for_this_machine(Layout(tmp_path), Config(), platform=platform)
        assert "mpsq worker" in caught.value.hint
