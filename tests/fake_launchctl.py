"""A stand-in for launchctl, and no more than that: scripted from outputs that people have published (docs/macos.md).

It keeps its state in a JSON file, given by the first argument when it runs as a program. Tests change that state:
`gui` (is there a session at the screen), `drain` (how often `print` still shows a job after bootout), `answers` (of a
verb: [[code, message], ...], given before anything else is done), `exits` (the code with which the job ends at once).
"""

from __future__ import annotations

import json
import plistlib
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START: dict[str, Any] = {
    "gui": True, "drain": 2, "answers": {}, "exits": None, "jobs": {}, "disabled": [], "calls": [], "next_pid": 35711,
    "spawn_type": None,
}  # fmt: skip

SPAWN_TYPES = {
    "Interactive": "interactive (4)",
    None: "daemon (3)",
    "Standard": "daemon (3)",
    "Background": "background (1)",
}

SAMPLE = """{service} = {{
	active count = 1
	path = {path}
	type = LaunchAgent
	state = {state}

	program = /opt/venv/bin/python
	arguments = {{
		/opt/venv/bin/python
		-m
		queue_runner.worker
	}}

	working directory = /

	stdout path = /Users/me/Library/Logs/mpsq/worker.log
	default environment = {{
		PATH => /usr/bin:/bin:/usr/sbin:/sbin
	}}

	environment = {{
		XPC_SERVICE_NAME => dev.mpsq.worker
	}}

	domain = gui/501 [100041]
	minimum runtime = 10
	exit timeout = 5
	runs = {runs}
{pid}	last exit code = {last_exit}

	resource coalition = {{
		ID = 1234
		type = resource
		state = active
		pid = 1
		active count = 1
	}}

	spawn type = {spawn_type}
	jetsam priority = 40

	properties = runatload | inferred program
}}
"""


class FakeLaunchd:
    """launchd's memory, and its answer to one call of launchctl: (exit code, stdout, stderr)."""

    def __init__(self, state: Path) -> None:
        self._path = state
        self.state: dict[str, Any] = json.loads(state.read_text()) if state.exists() else json.loads(json.dumps(START))

    def run(self, arguments: Sequence[str]) -> tuple[int, str, str]:
        self.state["calls"].append(list(arguments))
        verb = arguments[0]
        if scripted := self.state["answers"].get(verb):
            code, message = scripted.pop(0)
            answer = (code, "", message)
        else:
            answer = getattr(self, f"do_{verb}")(*arguments[1:])
        self.save()
        return answer

    def save(self) -> None:
        self._path.write_text(json.dumps(self.state))

    def do_enable(self, service: str) -> tuple[int, str, str]:
        self.state["disabled"] = [name for name in self.state["disabled"] if name != service]
        return 0, "", ""

    def do_bootstrap(self, domain: str, plist: str) -> tuple[int, str, str]:
        if domain.startswith("gui/") and not self.state["gui"]:
            return 125, "", "Bootstrap failed: 125: Domain does not support specified action"
        definition = plistlib.loads(Path(plist).read_bytes())
        service = f"{domain}/{definition['Label']}"
        insecure = Path(plist).stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if domain.startswith("user/") and "Background" not in definition.get("LimitLoadToSessionType", []):
            return 125, "", "Bootstrap failed: 125: Domain does not support specified action"
        if service in self.state["jobs"] or service in self.state["disabled"] or insecure:
            return 5, "", "Bootstrap failed: 5: Input/output error"
        spawn_type = self.state["spawn_type"] or SPAWN_TYPES[definition.get("ProcessType")]
        self.state["jobs"][service] = {
            "path": plist,
            "runs": 0,
            "drain": None,
            "spawn_type": spawn_type,
            "last_exit": "(never exited)",
        }
        self._start(service)
        return 0, "", ""

    def do_bootout(self, service: str) -> tuple[int, str, str]:
        job = self.state["jobs"].get(service)
        if job is None:
            return 3, "", "Boot-out failed: 3: No such process"
        if job["drain"] is not None:
            return 36, "", "Boot-out failed: 36: Operation now in progress"
        job |= {"state": "SIGTERMed", "drain": self.state["drain"]}
        return 0, "", ""

    def do_kickstart(self, *arguments: str) -> tuple[int, str, str]:
        service = arguments[-1]
        if service not in self.state["jobs"]:
            return self._not_found(service)
        if "-k" in arguments or self.state["jobs"][service]["state"] != "running":
            self._start(service)
        return 0, "", ""

    def do_print(self, target: str) -> tuple[int, str, str]:
        if target.count("/") == 1:
            there = self.state["gui"] or target.startswith("user/")
            return (0, f"{target} = {{\n\ttype = user\n}}\n", "") if there else (113, "", "Could not find domain")
        job = self.state["jobs"].get(target)
        if job is not None and job["drain"] is not None:
            job["drain"] -= 1
            if job["drain"] < 0:
                del self.state["jobs"][target]
                job = None
        if job is None:
            return self._not_found(target)
        pid = f"\tpid = {job['pid']}\n" if job["pid"] else ""
        return 0, SAMPLE.format(**{**job, "pid": pid, "service": target}), ""

    def _start(self, service: str) -> None:
        job = self.state["jobs"][service]
        job["runs"] += 1
        if self.state["exits"] is not None:
            job |= {"state": "not running", "pid": 0, "last_exit": self.state["exits"]}
        else:
            job |= {"state": "running", "pid": self.state["next_pid"]}
            self.state["next_pid"] += 1

    def _not_found(self, service: str) -> tuple[int, str, str]:
        domain, uid, label = service.split("/", 2)
        return 113, "", f'Could not find service "{label}" in domain for user {domain}: {uid}'


def main() -> int:
    code, output, message = FakeLaunchd(Path(sys.argv[1])).run(sys.argv[2:])
    sys.stdout.write(output)
    sys.stderr.write(message and f"{message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
