"""The worker as a systemd user service: its unit, and its installation, restart and status through systemctl.

KillMode=process and OOMPolicy=continue are essential: without them systemd ends the run together with the worker, or
when the kernel's OOM killer ends one of its processes.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from queue_runner.errors import MpsqError
from queue_runner.host.command import plain_environment
from queue_runner.host.services.program import (
    DEFAULT_LABEL,
    RESTART_AFTER_S,
    STOP_TIMEOUT_S,
    Program,
    ServiceStatus,
    write_definition,
)

_TIMEOUT_S = 90.0
_SHOWN = (
    "LoadState,ActiveState,SubState,MainPID,Result,ExecMainStatus,UnitFileState,NeedDaemonReload,KillMode,OOMPolicy"
)
_VITAL = {"KillMode": "process", "OOMPolicy": "continue"}


@dataclass
class Systemd:
    """The user unit of one queue. `systemctl` and `loginctl` are paths; tests replace them."""

    program: Program
    log: Path
    systemctl: str = "systemctl"
    loginctl: str = "loginctl"
    user_home: Path = field(default_factory=Path.home)
    uid: int = field(default_factory=os.getuid)
    kind: str = "systemd"

    @property
    def unit(self) -> str:
        label = self.program.label
        return "mpsq-worker.service" if label == DEFAULT_LABEL else f"{label}.service"

    @property
    def path(self) -> Path:
        """Path of the unit file. Not below XDG_CONFIG_HOME: the user manager does not see a shell's exports."""
        return self.user_home / ".config" / "systemd" / "user" / self.unit

    def definition(self) -> str:
        """Return the unit's text. Type=exec makes a missing Python an error of `start`, not a later one."""
        # systemd rejects these in a program's name but not in arguments: env(1) then starts it
        argv = self.program.argv
        through = ["/usr/bin/env"] if set(argv[0]) & set("\"'\\$") else []
        command = " ".join(_word(argument, command=True) for argument in [*through, *argv])
        environment = "".join(f"Environment={_word(f'{k}={v}')}\n" for k, v in self.program.environment.items())
        return f"""\
# Written by mpsq service install, which also replaces it; your own changes go into `systemctl --user edit {self.unit}`.
[Unit]
Description=mpsq worker: runs the queue of training benchmarks, one at a time
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
WorkingDirectory={_plain(self.program.home)}
{environment}StandardOutput=append:{_plain(self.log)}
StandardError=inherit
UMask=0077
Restart=on-failure
RestartSec={RESTART_AFTER_S}
TimeoutStopSec={STOP_TIMEOUT_S}
# a run and its warden outlive the worker; the next worker adopts them
KillMode=process
# a job that the kernel ends for memory is a result, not the end of the service
OOMPolicy=continue

[Install]
WantedBy=default.target
"""

    def install(self) -> str:
        """Write, enable and start the unit. Change nothing that is already right."""
        self._refuse_sudo()
        definition = self.definition()
        shown = self._show()
        running = shown.get("ActiveState") == "active"
        enabled = shown.get("UnitFileState") == "enabled"
        if self._written() == definition and running and enabled and shown.get("NeedDaemonReload") != "yes":
            pid = shown.get("MainPID")
            return f"{self.unit} is already installed and running (process {pid}); nothing was changed"
        was_there = self._written() is not None
        write_definition(self.path, definition.encode(), self.log)
        self._must("daemon-reload")
        self._must("enable", self.unit)
        return self._start("reinstalled" if was_there else "installed")

    def uninstall(self) -> str:
        """Stop and disable the unit and remove its file."""
        self._refuse_sudo()
        if self._written() is None and self._show().get("LoadState") in (None, "not-found"):
            return f"{self.unit} was not installed"
        self._must("disable", "--now", self.unit)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise MpsqError(f"{self.path} cannot be removed: {error.strerror}", "remove it manually") from error
        self._must("daemon-reload")
        self._call("reset-failed", self.unit)  # returns an error if nothing had failed
        return f"{self.unit} is uninstalled; the queue stays in {self.program.home}, and an active run continues"

    def start(self) -> str:
        """Start the unit, through install when it is outdated."""
        self._refuse_sudo()
        if self._written() is None:
            raise MpsqError(f"{self.unit} is not installed", "mpsq service install")
        if not self._is_right():
            return self.install()
        shown = self._show()
        if shown.get("ActiveState") == "active":
            return f"{self.unit} is already running (process {shown.get('MainPID', 'unknown')})"
        self._must("daemon-reload")
        return self._start("started")

    def stop(self) -> str:
        """Stop the unit, which stays enabled."""
        self._refuse_sudo()
        if self._show().get("ActiveState") != "active":
            return f"{self.unit} does not run"
        self._must("stop", self.unit)
        return f"{self.unit} is stopped until mpsq service start or the next login; an active run continues"

    def restart(self) -> str:
        """Restart the worker, through install when the unit is missing or outdated."""
        self._refuse_sudo()
        if not self._is_right():
            return self.install()
        self._must("daemon-reload")
        return self._start("restarted")

    def status(self) -> ServiceStatus:
        """Return systemd's status, and what would end a run or the service unintentionally."""
        written = self._written() is not None
        try:
            shown = self._show()
        except MpsqError as error:
            return ServiceStatus(written, False, None, error.message, ((error.message, error.hint),) if written else ())
        known = shown.get("LoadState") not in (None, "not-found")
        if not written and not known:
            return ServiceStatus(False, False, None, f"{self.unit} is not installed")
        running = shown.get("ActiveState") == "active"
        pid = int(shown["MainPID"]) if shown.get("MainPID", "0").isdecimal() else 0
        detail = f"{self.unit}: {shown.get('ActiveState', 'unknown')} ({shown.get('SubState', 'unknown')})"
        return ServiceStatus(True, running, pid or None, detail, tuple(self._problems(shown)))

    # -- current state ----------------------------------------------------------------------------------------------

    def _problems(self, shown: dict[str, str]) -> list[tuple[str, str]]:
        again = "mpsq service install"
        problems = []
        if self._written() is None:
            problems.append((f"{self.path} is missing", again))
        elif not self._is_right():
            problems.append(("it was installed for another queue, or by another version or Python", again))
        elif shown.get("NeedDaemonReload") == "yes":
            problems.append(("systemd has not reloaded the changed unit", again))
        if not Path(self.program.python).exists():
            problems.append((f"its Python is gone: {self.program.python}", again))
        for name, value in _VITAL.items():
            if shown.get(name, value) != value:
                problems.append(
                    (f"{name} is {shown[name]}, so runs end with the worker", f"remove {name} from your drop-in")
                )
        if shown.get("UnitFileState", "enabled") != "enabled":
            problems.append(("it is not enabled: it will not start after a reboot", again))
        if shown.get("ActiveState") != "active":
            problems.append(self._why_down(shown))
        if self._lingers() is False:
            problems.append(
                ("it stops, and the run with it, when you log out", f"loginctl enable-linger {self._user()}")
            )
        return problems

    def _why_down(self, shown: dict[str, str]) -> tuple[str, str]:
        code, log = shown.get("ExecMainStatus", "0"), f"read {self.log}"
        if shown.get("Result", "success") != "success":
            return f"it failed ({shown['Result']}, code {code})", f"{log}; journalctl --user -u {self.unit}"
        if shown.get("ActiveState") == "inactive" and shown.get("UnitFileState") == "enabled":
            return "it is not running: it was stopped, or exited", f"{log}, then mpsq service restart"
        return f"it is not running ({shown.get('ActiveState', 'unknown')})", log

    def _lingers(self) -> bool | None:
        try:
            done = self._run(self.loginctl, "show-user", str(self.uid), "-p", "Linger")
        except MpsqError:
            return None
        words = {"Linger=yes": True, "Linger=no": False}
        return words.get(done.stdout.strip()) if done.returncode == 0 else None

    def _user(self) -> str:
        import pwd

        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def _show(self) -> dict[str, str]:
        done = self._must("show", "-p", _SHOWN, self.unit)
        return dict(line.split("=", 1) for line in done.splitlines() if "=" in line)

    def _written(self) -> str | None:
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def _is_right(self) -> bool:
        """Return whether the written definition differs at most in the installing shell's environment."""

        def essence(text: str) -> list[str]:
            ours = 'Environment="MPSQ_'
            return [line for line in text.splitlines() if not line.startswith("Environment=") or line.startswith(ours)]

        written = self._written()
        return written is not None and essence(written) == essence(self.definition())

    # -- steps ------------------------------------------------------------------------------------------------------

    def _start(self, done: str) -> str:
        """Start by `restart`, which also starts a unit that is down, and whose KillMode lets runs continue."""
        self._must("restart", self.unit)
        shown = self._show()
        if shown.get("ActiveState") != "active":
            sentence, fix = self._why_down(shown)
            raise MpsqError(f"{self.unit} is {done}, but {sentence}", fix)
        text = f"{self.unit} is {done} and running (process {shown.get('MainPID', 'unknown')})"
        if self._lingers() is False:
            text += f"; it stops when you log out, unless you run: loginctl enable-linger {self._user()}"
        return text

    def _must(self, *arguments: str) -> str:
        done = self._call(*arguments)
        if done.returncode == 0:
            return done.stdout
        message = (done.stderr.strip() or done.stdout.strip() or f"code {done.returncode}").splitlines()[0]
        if "connect to bus" in message or "not been booted with systemd" in message or "scope bus" in message:
            raise MpsqError(
                f"this session cannot reach systemd's user manager ({message.rstrip('.')})",
                "log in as this user through ssh or a desktop, not su or sudo; in a container, or where there is no "
                "systemd, keep `mpsq worker` running by other means",
            )
        raise MpsqError(
            f"systemctl --user {arguments[0]} failed: {message}", f"journalctl --user -u {self.unit} may say more"
        )

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(self.systemctl, "--user", "--no-pager", *arguments)

    def _run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        environment = plain_environment()
        runtime = Path(f"/run/user/{self.uid}")
        if not environment.get("XDG_RUNTIME_DIR") and (runtime / "systemd").is_dir():
            environment["XDG_RUNTIME_DIR"] = str(runtime)  # cron and su do not set it
        try:
            return subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=_TIMEOUT_S, env=environment, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise MpsqError(f"{argv[0]} did not answer within {_TIMEOUT_S:.0f} s", "try again") from error
        except OSError as error:
            raise MpsqError(f"{argv[0]} cannot be run: {error.strerror}", "a service needs systemd here") from error

    def _refuse_sudo(self) -> None:
        if self.uid == 0 and os.environ.get("SUDO_UID"):
            raise MpsqError("this would install the service for root", "run mpsq service without sudo, as yourself")


def _word(text: str, *, command: bool = False) -> str:
    """Quote a word of a unit file (systemd.syntax(7)); `%` starts a specifier, and in commands `$` a variable."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if command else text}"'


def _plain(path: Path) -> str:
    """Escape a path that is a whole value: it is not quoted, and only specifiers are expanded in it."""
    return str(path).replace("%", "%%")
