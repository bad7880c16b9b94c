"""A real sshd on a loopback port, as a box of one test: keys, configuration and folders of its own.

Front and box share the host, so the interpreter there is a script that sets locks and a name of their own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from queue_runner.remote.profile import Profile
from tests.process_support import words_of
from tests.queue_support import until

_SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel VERBOSE
AcceptEnv LANG LC_*
"""
_SSH = """\
Host box
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile /dev/null
    SendEnv LANG LC_*
"""
_PYTHON = """\
#!/bin/sh
echo a login that prints
export MPSQ_LOCKS={folder}/locks MPSQ_TEST_MACHINE=box PYTHONPATH={code} MPSQ_TEST_BOX={folder}
exec {python} "$@"
"""


class Box:
    """A host that ssh reaches by the name `box`, with `config` as the file of ssh that says how."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = folder / "far"
        self.python = folder / "python"
        self.config = folder / "ssh_config"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        host_key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        said = {"folder": folder, "port": self.port, "user": getpass.getuser()}
        (folder / "sshd_config").write_text(_SSHD.format(**said))
        self.config.write_text(_SSH.format(**said))
        code = Path(__file__).resolve().parents[2]
        self.python.write_text(_PYTHON.format(folder=folder, code=code, python=sys.executable))
        self.python.chmod(0o755)
        (folder / "locks").mkdir(mode=0o700)
        self._sshd: subprocess.Popen[bytes] | None = None

    @property
    def profile(self) -> str:
        """The profile of this box in a config.toml."""
        return (
            f'[on.box]\nkind = "ssh"\nssh = "-F {self.config}"\nfolder = "{self.base}"\npython = "{self.python}"\n'
            'poll = "0.3s"\ngrace = "3s"\n'
        )

    @property
    def target(self) -> Profile:
        """The same, typed; for one that looks once a second and waits no longer."""
        python, folder = str(self.python), str(self.base)
        return Profile(
            name="box",
            kind="ssh",
            folder=folder,
            python=python,
            poll_s=1,
            grace_s=1,
            host="box",
            ssh=f"-F {self.config}",
        )

    def start(self) -> None:
        """Start sshd, and wait until it listens."""
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"  # which has to be an absolute path
        with (self.folder / "sshd.log").open("ab") as log:
            self._sshd = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until(self._listens, lambda: f"sshd: {(self.folder / 'sshd.log').read_text()}")

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def cut(self) -> None:
        """End sshd and every connection to it."""
        if self._sshd is None:
            return
        self._signal(signal.SIGKILL)
        self._sshd.wait()
        self._sshd = None

    def suspend(self) -> None:
        """Stop sshd and every connection to it, as on a host that hangs: the kernel accepts, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let sshd go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._sshd is None:
            return
        process = psutil.Process(self._sshd.pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it may have ended since
                if "sshd" in one.name():
                    one.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        """What lives of blocks on the box: supervisors, workers, wardens, jobs."""
        found = []
        for process in psutil.process_iter(["pid"]):
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                home = env.get("MPSQ_HOME", "")
                if env.get("MPSQ_TEST_BOX") == str(self.folder) or home.startswith(str(self.base)):
                    found.append(process)
        return found

    def supervisor(self) -> psutil.Process:
        """The process of the block that runs."""
        return next(one for one in self.processes() if "queue_runner.remote" in words_of(one))

    def stop(self) -> None:
        self.cut()
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def running() -> Iterator[Box]:
    """Yield a box that is up, and end it. Its folder has a short name: ssh's socket in it takes 104 bytes at most."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd of root separates its privileges there
    with tempfile.TemporaryDirectory(prefix="mpsq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        box = Box(Path(folder))
        try:
            box.start()
            yield box
        finally:
            box.stop()
