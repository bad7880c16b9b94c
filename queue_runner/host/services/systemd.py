"""The worker as a systemd user service: its unit, and its installation, restart and status through systemctl.

KillMode=process and OOMPolicy=continue are essential: without them systemd ends the run together with the worker, or
when the kernel's OOM killer ends one of its processes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.host.services.user_service import (
    INSTALL,
    RESTART_AFTER_S,
    STOP_TIMEOUT_S,
    ManagerState,
    Problem,
    UserService,
    run_tool,
)
from queue_runner.paths import DEFAULT_LABEL

WATCHDOG_S = 120
"""After so long without news the worker is restarted; it tells every second that it works."""

_TIMEOUT_S = 90.0
_PROPERTIES = (
    "LoadState,ActiveState,SubState,MainPID,Result,ExecMainStatus,UnitFileState,NeedDaemonReload,KillMode,OOMPolicy"
)
_VITAL = {"KillMode": "process", "OOMPolicy": "continue"}


@dataclass
class Systemd(UserService):
    """The user unit of one queue. `systemctl` and `loginctl` are paths; tests replace them."""

    worker_log: Path
    systemctl: str = "systemctl"
    loginctl: str = "loginctl"

    kind = "systemd"

    def __post_init__(self) -> None:
        label = self.program.label
        self.name = "mpsq-worker.service" if label == DEFAULT_LABEL else f"{label}.service"
        # not below XDG_CONFIG_HOME: the user manager does not see a shell's exports
        self.path = self.user_home / ".config" / "systemd" / "user" / self.name
        self.log = self.worker_log

    def definition(self) -> str:
        """Return the unit's text. Type=notify makes a worker that cannot have the queue an error of `start`; it ends
        with 0, as no restart helps. The watchdog restarts a worker that is stopped or stuck."""
        # systemd rejects these in a program's name but not in arguments: env(1) then starts it
        argv = self.program.argv
        through = ["/usr/bin/env"] if set(argv[0]) & set("\"'\\$") else []
        command = " ".join(_word(argument, command=True) for argument in [*through, *argv])
        environment = "".join(f"Environment={_word(f'{k}={v}')}\n" for k, v in self.program.environment.items())
        unit = f"""\
# Written by mpsq service install, which also replaces it; your own changes go into `systemctl --user edit {self.name}`.
[Unit]
Description=mpsq worker: runs the queue of training benchmarks, one at a time
StartLimitIntervalSec=0
"""
        program = f"""
[Service]
Type=notify
WatchdogSec={WATCHDOG_S}
ExecStart={command}
WorkingDirectory={_plain(self.program.home)}
{environment}StandardOutput=append:{_plain(self.log)}
StandardError=inherit
"""
        limits = f"""\
UMask=0077
Restart=on-failure
RestartPreventExitStatus=0
RestartSec={RESTART_AFTER_S}
TimeoutStopSec={STOP_TIMEOUT_S}
# a run and its warden outlive the worker; the next worker adopts them
KillMode=process
# a job that the kernel ends for memory is a result, not the end of the service
OOMPolicy=continue

[Install]
WantedBy=default.target
"""
        return unit + program + limits

    def uninstall(self) -> str:
        """Stop, disable and remove the unit."""
        sentence = super().uninstall()
        self._must("daemon-reload")
        self._call("reset-failed", self.name)  # returns an error if nothing had failed
        return sentence

    def _content(self) -> bytes:
        return self.definition().encode()

    def _essence(self, content: bytes) -> object:
        ours = b'Environment="MPSQ_'
        return [line for line in content.splitlines() if not line.startswith(b"Environment=") or line.startswith(ours)]

    def _state(self) -> ManagerState:
        unit = self._show()
        active, pid = unit.get("ActiveState", "unknown"), unit.get("MainPID", "")
        return ManagerState(
            known=unit.get("LoadState") not in (None, "not-found"),
            alive=active in ("active", "activating", "reloading"),
            running=active == "active",
            settled=active == "active" and unit.get("UnitFileState") == "enabled"
            and unit.get("NeedDaemonReload") != "yes",
            pid=int(pid) if pid.isdecimal() and pid != "0" else None,
            detail=f"{active} ({unit.get('SubState', 'unknown')})",
            problems=tuple(self._problems(unit)),
        )  # fmt: skip

    def _problems(self, unit: dict[str, str]) -> Iterator[Problem]:
        if self._is_current() and unit.get("NeedDaemonReload") == "yes":
            yield "systemd has not reloaded the changed unit", INSTALL
        for name, value in _VITAL.items():
            if unit.get(name, value) != value:
                yield f"{name} is {unit[name]}, so runs end with the worker", f"remove {name} from your drop-in"
        if unit.get("UnitFileState", "enabled") != "enabled":
            yield "it is not enabled: it will not start after a reboot", INSTALL
        if unit.get("ActiveState") != "active":
            yield self._why_down(unit)
        if self._lingers() is False:
            yield "when you log out, it stops, and so does its run", f"loginctl enable-linger {self._user()}"

    def _why_down(self, unit: dict[str, str]) -> Problem:
        if unit.get("Result") == "protocol":
            return "it ended before it had the queue", f"read {self.log}"
        if unit.get("Result", "success") != "success":
            code = unit.get("ExecMainStatus", "0")
            return f"it failed ({unit['Result']}, code {code})", f"read {self.log}; journalctl --user -u {self.name}"
        if unit.get("ActiveState") == "inactive" and unit.get("UnitFileState") == "enabled":
            return "it is not running: it was stopped, or exited", f"read {self.log}, then mpsq service restart"
        return f"it is not running ({unit.get('ActiveState', 'unknown')})", f"read {self.log}"

    def _load(self, done: str) -> str:
        self._write()
        self._must("daemon-reload")
        self._must("enable", self.name)
        return self._restart(done)

    def _start(self, done: str) -> str:
        self._must("daemon-reload")
        return self._restart(done)

    def _restart(self, done: str) -> str:
        """Start by `restart`, which also starts a unit that is down, and whose KillMode lets runs continue."""
        restarted = self._call("restart", self.name)
        unit = self._show()
        if unit.get("ActiveState") != "active":
            sentence, fix = self._why_down(unit)
            raise MpsqError(f"{self.name} is {done}, but {sentence}", fix)
        self._checked(restarted, "restart")
        text = f"{self.name} is {done} and running (process {unit.get('MainPID', 'unknown')})"
        if self._lingers() is False:
            text += f"; it stops when you log out, unless you run: loginctl enable-linger {self._user()}"
        return text

    def _stop(self, *, for_good: bool = False) -> None:
        self._must(*(("disable", "--now") if for_good else ("stop",)), self.name)

    def _lingers(self) -> bool | None:
        try:
            done = run_tool([self.loginctl, "show-user", str(self.uid), "-p", "Linger"], _TIMEOUT_S)
        except MpsqError:
            return None
        return {"Linger=yes": True, "Linger=no": False}.get(done.stdout.strip()) if done.returncode == 0 else None

    def _user(self) -> str:
        import pwd

        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def _show(self) -> dict[str, str]:
        """Return the unit's properties."""
        output = self._must("show", "-p", _PROPERTIES, self.name)
        return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    def _must(self, *arguments: str) -> str:
        return self._checked(self._call(*arguments), arguments[0])

    def _checked(self, done: subprocess.CompletedProcess[str], verb: str) -> str:
        if done.returncode == 0:
            return done.stdout
        message = (done.stderr.strip() or done.stdout.strip() or f"code {done.returncode}").splitlines()[0]
        if "connect to bus" in message or "not been booted with systemd" in message or "scope bus" in message:
            raise MpsqError(
                f"this session cannot reach systemd's user manager ({message.rstrip('.')})",
                "log in as this user through ssh or a desktop, not su or sudo; in a container, or where there is no "
                "systemd, keep `mpsq worker` running by other means",
            )
        raise MpsqError(f"systemctl --user {verb} failed: {message}", f"journalctl --user -u {self.name} may say more")

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        runtime = Path(f"/run/user/{self.uid}")
        variables = {}
        if not os.environ.get("XDG_RUNTIME_DIR") and (runtime / "systemd").is_dir():
            variables["XDG_RUNTIME_DIR"] = str(runtime)  # cron and su do not set it
        return run_tool([self.systemctl, "--user", "--no-pager", *arguments], _TIMEOUT_S, **variables)

    def _check_user(self) -> None:
        if self.uid == 0 and os.environ.get("SUDO_UID"):
            raise MpsqError("this would install the service for root", "run mpsq service without sudo, as yourself")


def _word(text: str, *, command: bool = False) -> str:
    """Quote a word of a unit file (systemd.syntax(7)); `%` starts a specifier, and in commands `$` a variable."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if command else text}"'


def _plain(path: Path) -> str:
    """Escape a path that is a whole value: it is not quoted, and only specifiers are expanded in it."""
    return str(path).replace("%", "%%")
