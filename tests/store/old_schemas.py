"""Queues as earlier versions left them, one for each schema that main has had: old_schemas.tar.xz.

`python -m tests.store.old_schemas` adds the schemas that the file lacks. Of each the last commit that works is taken
from git's history and run: jobs that succeed, fail and wait, a schedule, and a run in flight, whose worker is killed
before it ends. Stored are the database as SQL and the folder of that run. Names of this machine are replaced.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
ARCHIVE = Path(__file__).with_name("old_schemas.tar.xz")
FOLDER = "/folder-of-the-queue"
"""Stands for the folder in which the old mpsq ran; its home is `home` in it."""
IN_FLIGHT = "4.1"
NEVER_ALONE = {"0004", "0006"}
"""Schemas that were never the newest of main in the form that they have now: 0006 got columns after 0007 had come."""
TRAIN = """\
for i in 0 1 2; do echo "iter $i: loss $((5 - i)).0000, time 10.00ms, mfu 1.00%"; done
while [ "$1" = wait ] && [ ! -e go ]; do sleep 0.02; done
"""
LIMIT_S = 60.0


def schemas() -> Iterator[tuple[str, str]]:
    """Yield each schema of main's history and the last commit that has it, the oldest first."""
    newest = ""
    words = ["rev-list", "--first-parent", "--reverse", "HEAD", "--", "migrations/versions"]
    for commit in [*git(*words).split(), "HEAD"]:
        names = re.findall(r"versions/(\d{4})_", git("ls-tree", "--name-only", commit, "migrations/versions/"))
        is_sound = len({*names}) == len(names)  # for half an hour two migrations had one number
        schema = max(names) if is_sound else ""
        if newest and newest not in NEVER_ALONE and (schema != newest or commit == "HEAD"):
            yield newest, git("rev-parse", commit if commit == "HEAD" else f"{commit}^").strip()
        newest = schema


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


class Old:
    """A queue of an old version, in a folder."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.folder, self.home, self._code = folder, folder / "home", folder / "code"
        self.home.mkdir(mode=0o700)
        archived = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archived)) as archive:
            archive.extractall(self._code, filter="data")
        self._name_extensions()
        (folder / "work").mkdir()
        (folder / "work" / "train.sh").write_text(TRAIN)
        self._env = {
            **{"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONPATH": str(self._code)},
            **{"MPSQ_HOME": str(self.home), "MPSQ_LOCKS": str(folder / "locks"), "OMP_NUM_THREADS": "2"},
        }
        self._options = self.mpsq("submit", "--help")

    def _name_extensions(self) -> None:
        """Let the old code find its own optional packages, not those of the installed version."""
        scripts = tomllib.loads((self._code / "pyproject.toml").read_text())["project"].get("entry-points", {})
        folder = self._code / "mpsq-0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mpsq\nVersion: 0\n")
        lines = []
        for group, entries in scripts.items():
            lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (folder / "entry_points.txt").write_text("\n".join(lines))

    def mpsq(self, *words: str) -> str:
        main = [sys.executable, "-m", "queue_runner.cli.main", *words]
        done = subprocess.run(main, env=self._env, cwd=self.folder / "work", capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def submit(self, *options: str, command: tuple[str, ...]) -> None:
        """Submit a command, with those options that the old version has."""
        unchecked = "--allow-changed" if self._knows("--allow-changed") else "--snapshot=off"  # no code is stored
        given = [word for word in ("--no-gate", "--no-preflight", unchecked, *options) if self._knows(word)]
        self.mpsq("submit", *given, "--", *command)

    def _knows(self, word: str) -> bool:
        return not word.startswith("--") or re.search(rf"{word.partition('=')[0]}\b", self._options) is not None

    def worker(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "worker.log").open("ab") as log:
            command = [sys.executable, "-m", "queue_runner.daemon", *words]
            return subprocess.Popen(command, env=self._env, cwd=self.folder / "work", stdout=log, stderr=log)

    def make(self) -> None:
        """Fill the queue, and leave a run that has ended after its worker."""
        shell = ("/bin/sh", "train.sh")
        self.submit("--name=trained", "--parser=nanogpt", "--repeats=2", "--tag=night", command=shell)
        self.submit("--name=failed", command=("/bin/sh", "-c", "echo no >&2; exit 3"))
        self.submit("--name=ended", "--note=a note", command=("/bin/sh", "-c", "exit 0"))
        if code := self.worker("--until-idle").wait(LIMIT_S):
            raise RuntimeError(f"the worker ended with {code}: {(self.folder / 'worker.log').read_text()}")
        self.submit("--name=in-flight", "--parser=nanogpt", command=(*shell, "wait"))
        run = self.home / "runs" / IN_FLIGHT
        worker = self.worker()
        until(lambda: (run / "stdout.log").exists() and b"iter 2" in (run / "stdout.log").read_bytes())
        until(lambda: self.iterations() == 3 * 3)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        self.submit("--name=next", command=("/bin/sh", "-c", "exit 0"))
        self.submit("--name=later", "--after=5", command=("/bin/sh", "-c", "exit 0"))
        self.submit("--name=held", "--hold", command=("/bin/sh", "-c", "exit 0"))
        if (self._code / "queue_runner/cli/schedule.py").exists():
            self.mpsq("schedule", "add", "0 2 * * *", "--name", "nightly", "--", "--name=nightly", "--", *shell)
        (self.folder / "work" / "go").touch()
        until((run / "warden" / "exit.json").exists)

    def iterations(self) -> int:
        with closing(sqlite3.connect(self.home / "mpsq.db")) as connection:
            return int(connection.execute("SELECT count(*) FROM iterations").fetchone()[0])

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of the stored files."""
        with closing(sqlite3.connect(self.home / "mpsq.db")) as connection:
            yield "mpsq.sql", self.without_names("\n".join(connection.iterdump()) + "\n")
        run = self.home / "runs" / IN_FLIGHT
        for name in ("spec.json", "stdout.log", "stderr.log", "warden/started", "warden/exit.json"):
            yield f"runs/{IN_FLIGHT}/{name}", self.without_names((run / name).read_text())
        for path in sorted((self.home / "secrets" / ".environments").glob("*")):
            if re.fullmatch("[0-9a-f]{32}", path.name):
                yield str(path.relative_to(self.home)), self.without_names(path.read_text())

    def without_names(self, text: str) -> str:
        names = {str(self.folder): FOLDER, str(ROOT): "/checkout", socket.gethostname(): "host"}
        names |= {sys.prefix: "/venv", sys.base_prefix: "/python", os.environ["PATH"]: "/usr/bin:/bin"}
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, names[name])
        return text


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the old version did not do it")
        time.sleep(0.02)


def load(schema: str, folder: Path) -> None:
    """Make the queue of a schema in `folder`: its database in home/mpsq.db, its run in flight in home/runs."""
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            version, _, name = member.name.partition("/")
            if version != schema:
                continue
            file = archive.extractfile(member)
            assert file is not None
            text = file.read().decode().replace(FOLDER, str(folder))
            path = folder / "home" / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o600)
    script = folder / "home" / "mpsq.sql"
    with closing(sqlite3.connect(script.with_suffix(".db"))) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(script.read_text())
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schedules'").fetchone():
            connection.execute("UPDATE schedules SET next_at = ?", [time.time() + 86_400])  # else it is due by now
            connection.commit()
    script.unlink()


def stored() -> list[str]:
    """Return the schemas of the archive, the oldest first."""
    with tarfile.open(ARCHIVE) as archive:
        return sorted({name.partition("/")[0] for name in archive.getnames()})


def files_of(commit: str) -> dict[str, str]:
    """Run a commit, or the newest one before it that works, and return its files by name."""
    for candidate in git("rev-list", "--first-parent", "-n", "8", commit).split():
        folder = Path(tempfile.mkdtemp(prefix="mpsq-old-"))
        try:
            old = Old(candidate, folder)
            old.make()
            return dict(old.files())
        except RuntimeError as error:
            print(f"{candidate[:12]} does not work: {str(error).splitlines()[-1]}", flush=True)
        finally:
            shutil.rmtree(folder)
    raise RuntimeError(f"neither {commit} nor a commit before it works")


def main() -> None:
    files = {}
    with tarfile.open(ARCHIVE) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name] = file.read()
    for schema, commit in schemas():
        if schema not in stored():
            files |= {f"{schema}/{name}": text.encode() for name, text in files_of(commit).items()}
            print(schema, commit[:12], flush=True)
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main()
