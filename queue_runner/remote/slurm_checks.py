"""Doctor's checks of a Slurm cluster: commands, controller, partition, limits, the shared folder, the nodes' Python."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from queue_runner import __version__, units
from queue_runner.checks import Check, warn_if
from queue_runner.errors import UsageError
from queue_runner.host.filesystem import network_kind
from queue_runner.paths import checkout
from queue_runner.remote import block, slurm_commands, slurm_script
from queue_runner.remote.answers import Refused, Unreachable
from queue_runner.remote.fence import take_fence
from queue_runner.remote.read_json import read_json
from queue_runner.run_dir import read_end
from queue_runner.text import last_line

PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")
PROBE_LIMIT_S = 120.0
"""How long the probe of --smoke is waited for, in the queue and on its node."""
_POLL_S = 0.5
_PYTHON_LIMIT_S = 30.0
_VERSION = "import sys, queue_runner.remote.node; print(queue_runner.__version__, sys.version.split()[0])"

Profile = Mapping[str, str]


def of_cluster(name: str, profile: Profile, *, smoke: bool) -> Iterator[Check]:
    """Run all checks of the cluster that a profile names."""
    found = []
    for check in _of_all(name, profile):
        found.append(check)
        yield check
    if not smoke:
        yield Check("node", "ok", "not tried: --smoke sends a job of a minute that examines its node")
    elif any(check.verdict == "fail" for check in found):
        yield Check("node", "warn", "not tried, since a check failed", "mend that, then run it again with --smoke")
    else:
        yield _node(name, profile)


def _of_all(name: str, profile: Profile) -> Iterator[Check]:
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        fix = "run mpsq on a login node of the cluster, or add the folder of Slurm's commands to PATH"
        yield Check("commands", "fail", f"there is no Slurm here: {', '.join(missing)} not on PATH", fix)
    else:
        yield Check("commands", "ok", ", ".join(PROGRAMS))
        yield from _cluster(name, profile)
    yield _folder(name, profile)
    yield _python(name, profile)


def _cluster(name: str, profile: Profile) -> Iterator[Check]:
    begin = time.monotonic()
    try:
        told = slurm_commands.call(["sinfo", "--noheader", "--format=%P|%a|%l|%T|%D"])
        ours = len(slurm_commands.blocks())
    except Unreachable as error:
        fix = "ask those who run the cluster; blocks that were sent go on, and are followed when it answers again"
        yield Check("controller", "fail", str(error), fix)
        return
    took = units.duration(time.monotonic() - begin)
    yield Check("controller", "ok", f"it answered twice in {took}; it knows {units.counted(ours, 'block')} of yours")
    lines = [(line.split("|") + [""] * 5)[:5] for line in told.splitlines()]
    limit = yield from _partition(name, profile, lines)
    yield _time(name, profile, limit)
    yield _accepted(name, profile)


def _partition(name: str, profile: Profile, lines: list[list[str]]) -> Generator[Check, None, str]:
    """Check the partition; return its time limit as sinfo writes it."""
    wanted = profile.get("partition")
    here = [line for line in lines if (line[0].rstrip("*") == wanted if wanted else line[0].endswith("*"))]
    fix = f"mpsq config set on.{name}.partition NAME, with one of: {_named(lines)}"
    if not here:
        missing = f'there is no partition "{wanted}"' if wanted else "no partition is the default one"
        yield Check("partition", "fail", missing, fix)
        return ""
    title, up, limit = here[0][:3]
    states = ", ".join(f"{count} {state}" for *_, state, count in here)
    useless = up != "up" or all(re.match(r"down|drain|fail|unk|maint", state) for *_, state, _ in here)
    finding = f"{title.rstrip('*')} is {up}, its nodes: {states}; time limit {limit}"
    yield warn_if(useless, "partition", finding, f"blocks wait until it has nodes; or {fix}")
    return limit


def _named(lines: list[list[str]]) -> str:
    return ", ".join(dict.fromkeys(line[0].rstrip("*") for line in lines)) or "none"


def _time(name: str, profile: Profile, limit: str) -> Check:
    fix = f"mpsq config set on.{name}.time 2h, or --time with each submission"
    try:
        wanted = slurm_commands.time_s(profile)
    except UsageError as error:
        return Check("time", "fail", f"{error.message}: {error.hint}", fix)
    if wanted is None:
        return Check("time", "ok", "blocks without --time have the partition's own limit")
    most = _seconds(limit)
    if most is not None and wanted > most:
        return Check("time", "fail", f"{units.duration(wanted)} is more than the partition's {limit}", fix)
    return Check("time", "ok", f"{units.duration(wanted)} for blocks without --time")


def _seconds(limit: str) -> float | None:
    """Return a limit of sinfo, "30:00", "2:00:00" or "1-00:00:00", in seconds; None for infinite and unknown ones."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _accepted(name: str, profile: Profile) -> Check:
    try:
        words = slurm_commands.resources(profile, {})
        slurm_commands.call(["sbatch", "--test-only", "--exclusive", "--nodes=1", *words, "--wrap=true"])
    except Refused as error:
        fix = f"correct gpus, partition or sbatch of the profile: mpsq config set on.{name}.gpus 1"
        return Check("options", "fail", f"sbatch refuses a block: {error}", fix)
    except (Unreachable, UsageError) as error:
        return Check("options", "fail", str(error), "see the checks before")
    return Check("options", "ok", f"sbatch would accept a block with {' '.join(words)}")


def _folder(name: str, profile: Profile) -> Check:
    place = Path(profile["folder"])
    fix = f"mpsq config set on.{name}.folder PATH: one of yours on a disk that the nodes mount, too"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mpsq-doctor-", dir=place) as tried:
            folder = block.Folder(Path(tried))
            block.write_json(folder.ended, {})
            if not take_fence(folder.fence, {}) or take_fence(folder.fence, {}):
                said = f"{place}: a hard link does not exclude there: a block could run twice"
                return Check("folder", "fail", said, fix)
        free = units.size(shutil.disk_usage(place).free)
    except OSError as error:
        return Check("folder", "fail", f"{place} cannot be used: {error.strerror or error}", fix)
    if (kind := network_kind(place)) is None:
        finding = f"{place} takes files, but is on a disk of this machine ({free} free): nodes may not see it"
        return Check("folder", "warn", finding, f"try it with --smoke, or {fix}")
    return Check("folder", "ok", f"{place} takes files and is on {kind}, {free} free")


def _python(name: str, profile: Profile) -> Check:
    """Check the interpreter of the nodes from here, where it is usually to be seen as well."""
    python = profile.get("python") or "python3"
    fix = f"install mpsq {__version__} there ({python} -m pip install mpsq=={__version__}), or mpsq config set "
    fix += f"on.{name}.python PATH"
    code = checkout()
    env = {**os.environ, **({"PYTHONPATH": str(code)} if code else {})}
    if not code:
        env.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            [python, "-c", _VERSION], cwd="/", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_PYTHON_LIMIT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return Check("python", "warn", f"there is no {python} here: only a node can tell", f"try --smoke; or {fix}")
    except (OSError, subprocess.SubprocessError) as error:
        return Check("python", "fail", f"{python} cannot be run here: {error}", fix)
    if done.returncode:
        return Check("python", "fail", f"{python} cannot run mpsq: {last_line(done.stderr.encode())}", fix)
    version, _, its = done.stdout.strip().partition(" ")
    if version != __version__:
        return Check("python", "fail", f"{python} has mpsq {version}, and this one is {__version__}", fix)
    of = f"of the checkout {code}, which the nodes must see" if code else "as here"
    return Check("python", "ok", f"{python} is Python {its} with mpsq {version}, {of}")


def _node(name: str, profile: Profile) -> Check:
    """Send a job of a minute that examines its node, wait for its answer, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix=".mpsq-probe-", dir=profile["folder"]))
    job = ""
    try:
        (folder / "question").write_text(question := secrets.token_hex(8))
        script, log = folder / "probe.sh", folder / "probe.log"
        script.write_text(
            slurm_script.batch_script(profile, "queue_runner.remote.probe", str(folder), profile.get("local", ""))
        )
        words = ["sbatch", "--parsable", "--nodes=1", "--no-requeue", "--job-name=mpsq-doctor", f"--output={log}"]
        words += [f"--chdir={folder}", *slurm_commands.resources(profile, {"time": "60"}), str(script)]
        job = slurm_commands.call(words).strip().partition(";")[0]
        answer, said = _answer_of(folder, job)
        if answer is not None and answer.get("question") == question:
            return _judged(name, profile, answer)
        fix = f"make the folder, the interpreter and mpsq {__version__} known to the nodes: docs/remote.md"
        if said:
            late = f"the probe has not started within {PROBE_LIMIT_S:.0f} s and was removed: it was {said}"
            return Check("node", "warn", late, "try again when the cluster is less busy")
        told = last_line(read_end(log)) or "its node wrote nothing into the folder, which it may not see"
        return Check("node", "fail", f"the probe, job {job}, gave no answer: {told}", fix)
    except (Unreachable, Refused) as error:
        return Check("node", "fail", f"the probe could not be sent: {error}", "see the checks before")
    except OSError as error:
        return Check("node", "fail", f"the folder cannot be used: {error}", "see the check of the folder")
    finally:
        if job:
            with contextlib.suppress(Unreachable):
                slurm_commands.call(["scancel", job])
        shutil.rmtree(folder, ignore_errors=True)


def _answer_of(folder: Path, job: str) -> tuple[dict[str, Any] | None, str]:
    """Wait for the answer; else return what the cluster says of a job that still waits, "" of one that is over."""
    deadline, seen = time.monotonic() + PROBE_LIMIT_S, ""
    while time.monotonic() < deadline:
        if (answer := read_json(folder / "answer.json")) is not None:
            return answer, ""
        with contextlib.suppress(Unreachable):
            seen = slurm_commands.call(["squeue", "--noheader", f"--jobs={job}", "--format=%T (%r)"]).strip()
            if not seen.startswith(("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")):
                time.sleep(_POLL_S)  # its last words may be a moment late
                return read_json(folder / "answer.json"), ""
        time.sleep(_POLL_S)
    return None, seen if seen.startswith("PENDING") else ""


def _judged(name: str, profile: Profile, answer: Mapping[str, Any]) -> Check:
    node, local = answer.get("node") or answer.get("host"), answer.get("local")
    if answer.get("version") != __version__:
        fix = f"install mpsq {__version__} for {profile.get('python') or 'python3'} on the nodes"
        return Check("node", "fail", f"{node} has mpsq {answer.get('version')}, and this one is {__version__}", fix)
    fix = f"mpsq config set on.{name}.local PATH: a folder on the node's own disk, as SQLite needs"
    if trouble := answer.get("trouble"):
        return Check("node", "fail", f"{node}: {local} cannot be written: {trouble}", fix)
    if kind := answer.get("kind"):
        return Check("node", "fail", f"{node}: {local} is on {kind}", fix)
    devices = f", devices {answer['devices']}" if answer.get("devices") else ""
    free = units.size(answer.get("free_bytes"))
    finding = f"{node} sees the folder, runs Python {answer.get('python')} with mpsq {__version__}, has {free} free in"
    return Check("node", "ok", f"{finding} {local}{devices}")
