"""Start a judged program so that little of it reaches a later run: with compiler caches and a temporary folder of its
own, and with a look at what it changes outside its copy. With --evaluate, the champion's code then computes the metric.

    python -I -S -B sealed.py [--evaluate JOB COMMAND PATTERN] -- COMMAND ...

It uses the standard library only, so that it starts in 30 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "CACHEDB", "TMPDIR")
"""Variables that name places in which a program finds what an earlier run left."""
MOST_FILES = 100_000
"""Files outside the copy that are looked at."""
_SKIPPED = ("__pycache__", "node_modules")
_NAMED = 3
_POLL_S = 0.05

Stamp = tuple[int, int, int]


def main(argv: list[str]) -> int:
    at = argv.index("--")
    evaluation, command = argv[:at], argv[at + 1 :]
    folder = Path(os.environ["MPSQ_OUT"]).parent
    private = folder / "private"
    shutil.rmtree(private, ignore_errors=True)
    (private / "tmpdir").mkdir(parents=True)
    places = {name: str(private / name.lower()) for name in CACHES}
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")
    short = (temporary if temporary.is_dir() else Path("/tmp")) / f"mpsq-{os.urandom(6).hex()}"
    short.symlink_to(places["TMPDIR"])  # the path of a socket in it has at most 104 characters
    places["TMPDIR"] = str(short)
    if "/" in command[0] and not Path(command[0]).exists():
        command[0] = str(Path(os.environ["MPSQ_CWD"], command[0]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the program gets it, too, and decides
    before = stamps(folder / "tree")
    code = _run(command, {**os.environ, **places}, apart=bool(evaluation))
    after = stamps(folder / "tree")
    after |= {path: stamp for path in before.keys() - after.keys() if (stamp := _stamp(path))}  # a link was removed
    if changed := sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)):
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        (folder / "wrote_outside").write_text(f"the run changed {', '.join(changed[:_NAMED])}{more}")
    shutil.rmtree(private, ignore_errors=True)
    with contextlib.suppress(OSError):
        short.unlink()
    if code < 0:  # it ended by a signal, and so does this process
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code or not evaluation:
        return code
    root = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-E", "-P", "-c", _EVALUATE, root, *evaluation[1:], str(Path.cwd())]
    return subprocess.run(words, check=False).returncode


_EVALUATE = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("queue_runner.referee.evaluation", run_name="__main__")
"""
"""Runs the evaluation as this mpsq has it, wherever it is installed."""


def _run(command: list[str], env: dict[str, str], *, apart: bool) -> int:
    """Run it and return its exit code. With `apart`, processes that it leaves behind can no longer print."""
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE if apart else None)
    except OSError as error:
        print(f"mpsq judge: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    if process.stdout is None:
        return process.wait()
    pipe = process.stdout.fileno()
    while True:
        has_ended = process.poll() is not None
        if select.select([pipe], [], [], 0 if has_ended else _POLL_S)[0]:
            if data := os.read(pipe, 1 << 16):
                os.write(1, data)
                continue
            return process.wait()
        if has_ended:
            return process.returncode


def stamps(tree: Path) -> dict[str, Stamp]:
    """Return size, time of the last change and inode of the files to which a copy links, by their paths."""
    stamped: dict[str, Stamp] = {}
    for path in _files(tree):
        if len(stamped) >= MOST_FILES:
            break
        if stamp := _stamp(name := str(path)):
            stamped[name] = stamp
    return stamped


def _stamp(path: str) -> Stamp | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_ctime_ns, status.st_ino


def _files(tree: Path) -> Iterator[Path]:
    for place, below, files in os.walk(tree):  # follows no link
        links = (path for name in (*below, *files) if (path := Path(place, name)).is_symlink())
        for target in (path.resolve() for path in links):
            if target.is_relative_to(tree.resolve()):
                continue
            if not target.is_dir():
                yield target
            for outside, folders, names in os.walk(target):
                if "pyvenv.cfg" in names:
                    folders[:] = []
                    continue
                folders[:] = sorted(name for name in folders if name not in _SKIPPED)
                yield from (Path(outside, name) for name in sorted(names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
