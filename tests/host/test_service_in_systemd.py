"""The service under a real user manager of systemd, in namespaces of its own: nothing of it reaches this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queue_runner.host import locks
from queue_runner.paths import Layout
from queue_runner.store import read
from tests import named_rows
from tests.process_support import needs_linux
from tests.queue_support import ANY_MACHINE, until

pytestmark = [pytest.mark.process, needs_linux, pytest.mark.needs_program("systemd-analyze")]

CGROUPS = Path("/sys/fs/cgroup")
RUNTIME = Path("/run/user/0")
MANAGER = f"""\
mount -t tmpfs none /run
mkdir -p /run/systemd/system {RUNTIME} && chmod 700 {RUNTIME}
/lib/systemd/systemd --user --log-level=warning --log-target=console &
wait
"""
"""Process 1 is the shell: systemd would take itself for that of the system."""


class UserManager:
    """A user manager, and the commands that run beside it. Its processes end with it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._env = {
            **os.environ,
            **{"XDG_RUNTIME_DIR": str(RUNTIME), "HOME": str(folder / "user"), "MPSQ_HOME": str(home)},
        }
        drop_in = folder / "user/.config/systemd/user/mpsq-worker.service.d/fast.conf"
        drop_in.parent.mkdir(parents=True)
        drop_in.write_text("[Service]\nWatchdogSec=3\nTimeoutStopSec=3\nRestartSec=0\n")
        self._groups = [CGROUPS / name / f"mpsq-{os.getpid()}-{folder.name}" for name in ("systemd", "unified")]
        for group in self._groups:
            group.mkdir()
        enter = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", MANAGER]
        with (folder / "systemd.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f'{enter}; exec "$@"', "sh", *apart], env=self._env, stdout=log, stderr=log
            )
        try:
            self.manager = until(self._started, "systemd")
            self._wait_until_running()
        except BaseException:
            self.close()
            raise

    def _wait_until_running(self) -> None:
        until(lambda: self.run("systemctl", "--user", "is-system-running").stdout.strip() == "running", "systemd")

    def _started(self) -> psutil.Process | None:
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the shell's mount and mkdir end meanwhile
                if process.name() == "systemd":
                    return process
        return None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        within = ["nsenter", "--target", str(self.manager.pid), "--mount", "--pid"]
        return subprocess.run([*within, *words], env=self._env, capture_output=True, text=True, timeout=100)

    def mpsq(self, *words: str) -> str:
        ran = self.run(sys.executable, "-m", "queue_runner.cli", *words)
        assert ran.returncode == 0, ran
        return ran.stdout

    def shown(self, name: str) -> str:
        """Return a property of the service."""
        return self.run("systemctl", "--user", "show", "--value", "-p", name, "mpsq-worker").stdout.strip()

    def worker(self) -> int:
        """Return the process of the service, by its number outside; 0 while there is none."""
        for process in self.manager.children():
            with contextlib.suppress(psutil.Error):
                if "--service" in process.cmdline():
                    return process.pid
        return 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for group in self._groups:
            until(lambda group=group: removed(group), "the end of the namespaces")


def removed(group: Path) -> bool:
    """Remove a group of control and those below it, which takes that all of their processes are gone."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def manager(layout: Layout, tmp_path: Path) -> Iterator[UserManager]:
    if os.geteuid() != 0 or shutil.which("nsenter") is None or not (CGROUPS / "unified").is_dir():
        pytest.skip("a user manager in namespaces takes root, util-linux and both hierarchies of cgroups")
    layout.config.write_text(ANY_MACHINE)
    made = UserManager(tmp_path, layout.home)
    yield made
    made.close()


def test_the_service_is_restarted_when_it_dies_or_stops_and_its_run_goes_on(
    manager: UserManager, layout: Layout, tmp_path: Path
) -> None:
    assert "is installed" in manager.mpsq("service", "install")
    lock = locks.worker_lock_path(layout.home)
    assert locks.is_held(lock), "an installed service has the queue"
    go = tmp_path / "go"
    manager.mpsq("submit", "--", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done")
    until(lambda: (layout.run_dir("1.1") / "warden/started").exists(), "the run")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        until(
            lambda: manager.shown("ActiveState") == "active" and manager.shown("WatchdogUSec") == "3s", "the watchdog"
        )
        before = manager.worker()
        os.kill(before, number)
        until(lambda before=before: manager.worker() not in (0, before), f"a new worker after {number.name}")
    until(lambda: locks.is_held(lock))
    assert manager.shown("NRestarts") == "2"
    go.touch()
    until(lambda: outcomes(layout) == ["SUCCEEDED"], "the end of the run")
    manager.mpsq("service", "stop")
    assert not manager.worker()


def outcomes(layout: Layout) -> list[str | None]:
    with read.reading(layout.db) as connection:
        return [row["outcome"] for row in named_rows.runs(connection)]


def test_a_service_whose_queue_another_worker_has_ends_without_a_restart(manager: UserManager, layout: Layout) -> None:
    held = locks.try_lock(locks.worker_lock_path(layout.home))
    assert held is not None
    with held:
        ran = manager.run(sys.executable, "-m", "queue_runner.cli", "service", "install")
        assert ran.returncode == 1 and "ended before" in ran.stderr
        time.sleep(1)  # longer than RestartSec in the drop-in
        assert (manager.shown("ActiveState"), manager.shown("NRestarts")) == ("failed", "0")
