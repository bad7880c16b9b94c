"""Doctor's checks of a Slurm cluster: commands, controller, options, the shared folder, the nodes' Python."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from queue_runner import __version__, units
from queue_runner.checks import Check
from queue_runner.decoding import convert
from queue_runner.errors import UsageError
from queue_runner.host.filesystem import network_kind
from queue_runner.host.run_dir import read_end
from queue_runner.paths import checkout
from queue_runner.remote.box import Place
from queue_runner.remote.fence import FenceHolder, take_fence
from queue_runner.remote.json_files import write_json
from queue_runner.remote.link import answer_in
from queue_runner.remote.profile import Profile
from queue_runner.remote.slurm import commands
from queue_runner.remote.target import Refused, Unreachable
from queue_runner.text import last_line

PROGRAMS = ("sbatch", "squeue", "scancel", "sinfo")
PROBE_LIMIT_S = 120.0
"""How long the probe of --smoke is waited for, in the queue and on its node."""
_POLL_S = 0.5
_PYTHON_LIMIT_S = 30.0
_VERSION = "import sys, queue_runner.remote.node; print(queue_runner.__version__, sys.version.split()[0])"


def of_cluster(profile: Profile, *, smoke: bool) -> Iterator[Check]:
    """Examine the requirements of blocks on a cluster; `smoke` sends a job of a minute that examines its node."""
    checks = [*_cluster(profile), _folder(profile), _python(profile)]
    yield from checks
    if not smoke:
        yield Check("node", "ok", "not tried: --smoke sends a job of a minute that examines its node")
    elif any(check.verdict == "fail" for check in checks):
        yield Check("node", "warn", "not tried, since a check failed", "fix the failed check, then rerun with --smoke")
    else:
        yield _node(profile)


def _cluster(profile: Profile) -> Iterator[Check]:
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        fix = "run mpsq on a login node of the cluster, or add the folder of Slurm's commands to PATH"
        yield Check("commands", "fail", f"there is no Slurm here: {', '.join(missing)} not on PATH", fix)
        return
    yield Check("commands", "ok", ", ".join(PROGRAMS))
    begin = time.monotonic()
    try:
        blocks = units.counted(len(commands.blocks(profile)), "block")
        took = units.duration(time.monotonic() - begin)
        yield Check("controller", "ok", f"it answered in {took}; it knows {blocks} of yours")
        commands.check(profile)
    except Unreachable as error:
        fix = "ask those who run the cluster; blocks that were sent continue, and are followed when it answers again"
        yield Check("controller", "fail", str(error), fix)
    except UsageError as error:
        yield Check("options", "fail", error.message, error.hint)
    else:
        yield Check("options", "ok", f"Slurm would accept a block with {' '.join(commands.resources(profile))}")


def _folder(profile: Profile) -> Check:
    place = profile.shared_folder()
    fix = f"mpsq config set on.{profile.name}.folder PATH: one of yours on a disk that the nodes mount, too"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mpsq-doctor-", dir=place) as tried:
            write_json(Path(tried, "ended.json"), {})
            fence = Path(tried, "fence")
            if not take_fence(fence, FenceHolder()) or take_fence(fence, FenceHolder()):
                finding = f"{place}: a hard link does not exclude there: a block could run twice"
                return Check("folder", "fail", finding, fix)
        free = units.size(shutil.disk_usage(place).free)
    except OSError as error:
        return Check("folder", "fail", f"{place} cannot be used: {error.strerror or error}", fix)
    if (kind := network_kind(place)) is None:
        finding = f"{place} takes files, but is on a disk of this machine ({free} free): nodes may not see it"
        return Check("folder", "warn", finding, f"try it with --smoke, or {fix}")
    return Check("folder", "ok", f"{place} takes files and is on {kind}, {free} free")


def _python(profile: Profile) -> Check:
    """Check the interpreter of the nodes from here, where it is usually to be seen as well."""
    python = profile.python
    fix = f"install this checkout or wheel there ({python} -m pip install PATH), or mpsq config set "
    fix += f"on.{profile.name}.python PATH"
    code = checkout()
    env = {**os.environ, "PYTHONPATH": str(code or "")}
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
    origin = f"of the checkout {code}, which the nodes must see" if code else "as here"
    return Check("python", "ok", f"{python} is Python {its} with mpsq {version}, {origin}")


def _node(profile: Profile) -> Check:
    """Send a job of a minute that examines its node, wait for its answer, and remove it."""
    folder = Path(tempfile.mkdtemp(prefix=".mpsq-probe-", dir=profile.shared_folder()))
    job = ""
    try:
        script, log = folder / "probe.sh", folder / "probe.log"
        question = ("hello", __version__, profile.local, "0" * 32)
        script.write_text(commands.batch_script(profile, "queue_runner.remote.box", *question))
        options = [*commands.resources(replace(profile, time_s=60.0)), *commands.OURS, "--parsable"]
        options += ["--job-name=doctor-of-mpsq", f"--output={log}", f"--chdir={folder}", str(script)]
        job = commands.call(profile, ["sbatch", *options]).strip().partition(";")[0]
        answer, state = _wait_for_answer(profile, log, job)
        if answer is not None and "error" not in answer:
            return _judged(profile, convert(answer, Place))
        fix = f"make the folder, the interpreter and mpsq {__version__} known to the nodes: docs/remote.md"
        if state:
            late = f"the probe has not started within {PROBE_LIMIT_S:.0f} s and was removed: it was {state}"
            return Check("node", "warn", late, "try again when the cluster is less busy")
        words = str(answer["error"]) if answer else last_line(read_end(log))
        words = words or "its node wrote nothing into the folder, which it may not see"
        return Check("node", "fail", f"the probe, job {job}, gave no answer: {words}", fix)
    except (Unreachable, Refused) as error:
        return Check("node", "fail", f"the probe could not be sent: {error}", "see the checks before")
    except OSError as error:
        return Check("node", "fail", f"the folder cannot be used: {error}", "see the check of the folder")
    finally:
        if job:
            with contextlib.suppress(Unreachable):
                commands.call(profile, ["scancel", job])
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_answer(profile: Profile, log: Path, job: str) -> tuple[dict[str, Any] | None, str]:
    """Return the answer; else None and the state of a job that still waits, or "" for one that is over."""
    deadline, state = time.monotonic() + PROBE_LIMIT_S, ""
    while time.monotonic() < deadline:
        if (answer := _answer(log)) is not None:
            return answer, ""
        with contextlib.suppress(Unreachable):
            state = commands.call(profile, ["squeue", "--noheader", f"--jobs={job}", "--format=%T (%r)"]).strip()
            if not state.startswith(("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")):
                time.sleep(_POLL_S)  # its last words may be a moment late
                return _answer(log), ""
        time.sleep(_POLL_S)
    return None, state if state.startswith("PENDING") else ""


def _answer(log: Path) -> dict[str, Any] | None:
    with contextlib.suppress(FileNotFoundError), log.open("rb") as stream:
        return answer_in(stream)
    return None


def _judged(profile: Profile, place: Place) -> Check:
    if place.problem:
        fix = f"mpsq config set on.{profile.name}.local PATH: a folder on the node's own disk, as SQLite needs"
        return Check("node", "fail", f"{place.host}: {place.problem}", fix)
    devices = f", devices {place.devices}" if place.devices else ""
    finding = f"{place.host} sees the folder, runs Python {place.python} with mpsq {__version__}"
    return Check("node", "ok", f"{finding}, has {units.size(place.free_bytes)} free in {place.place}{devices}")
