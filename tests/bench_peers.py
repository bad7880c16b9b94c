"""The figures of `make bench` that other queues have too, each measured in turn with them, in one run.

Those that are installed are measured: task-spooler (apt install task-spooler), and rq (with apt install redis-server)
and huey from an environment of their own, `.venv-peers` or the one that MPSQ_PEERS names:

    python -m venv .venv-peers && .venv-peers/bin/pip install rq huey

`python -m tests.bench_peers` measures these alone.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(os.environ.get("MPSQ_PEERS", ROOT / ".venv-peers")) / "bin" / "python"
TIMES, JOBS, CALLS = 15, 300, 50
PLUG_S = 4.0
"""A job of that length is before the jobs of a series, so that all of them wait when the first one starts."""


class Tool(ABC):
    """A queue with a worker that waits. `prefix` are the words before a command that queue it from a shell."""

    name: str
    prefix: Sequence[str]
    calls = ""
    """Python that queues the no-op job again and again, and prints the seconds that each call took."""
    python = sys.executable

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        cwd.mkdir()
        self.env = dict(os.environ)
        self.servers: list[subprocess.Popen[bytes]] = []
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Start what runs the jobs."""

    def serve(self, *words: str) -> None:
        log = (self.cwd / "server.log").open("ab")
        self.servers.append(subprocess.Popen(words, cwd=self.cwd, env=self.env, stdout=log, stderr=log))

    def end(self) -> None:
        for server in reversed(self.servers):
            server.send_signal(signal.SIGTERM)
            server.wait(30)

    def run(self, *words: str) -> str:
        done = subprocess.run(words, cwd=self.cwd, env=self.env, check=True, capture_output=True, text=True)
        return done.stdout

    def submit(self, *command: str) -> None:
        self.run(*self.prefix, *command)

    def submit_many(self, count: int, *command: str) -> None:
        for _ in range(count):
            self.submit(*command)


class Mpsq(Tool):
    name = "mpsq"
    prefix = (str(Path(sys.executable).with_name("mpsq")), "submit", "--")
    calls = (
        "import time\nfrom mpsq import Client\nqueue = Client()\nfor _ in range({n}):\n"
        "    begin = time.perf_counter()\n    queue.submit(command=['true'])\n    print(time.perf_counter() - begin)\n"
    )

    def begin(self) -> None:
        self.env |= {"MPSQ_HOME": str(self.cwd / "home"), "MPSQ_LOCKS": str(self.cwd / "locks")}
        self.submit("true")
        self.serve(sys.executable, "-m", "queue_runner.worker")

    def submit_many(self, count: int, *command: str) -> None:
        self.run(*self.prefix[:-1], "--repeats", str(count), "--", *command)


class TaskSpooler(Tool):
    name = "task-spooler"
    prefix = ("tsp",)

    def begin(self) -> None:
        self.env |= {"TS_SOCKET": str(self.cwd / "socket"), "TMPDIR": str(self.cwd)}
        self.submit("true")

    def end(self) -> None:
        self.run("tsp", "-K")


class PythonTool(Tool):
    """A task queue of Python functions, which start the command. `queue` is Python that makes `add(command)`."""

    queue = ""
    python = str(PEERS)

    def begin(self) -> None:
        (self.cwd / "queue_of_bench.py").write_text(self.queue)
        self.prefix = (self.python, "-c", "import sys; from queue_of_bench import add; add(sys.argv[1:])")
        self.calls = (
            "import time\nfrom queue_of_bench import add\nfor _ in range({n}):\n"
            "    begin = time.perf_counter()\n    add(['true'])\n    print(time.perf_counter() - begin)\n"
        )

    def submit_many(self, count: int, *command: str) -> None:
        many = "import sys; from queue_of_bench import add; [add(sys.argv[2:]) for _ in range(int(sys.argv[1]))]"
        self.run(self.python, "-c", many, str(count), *command)


class Rq(PythonTool):
    name = "rq (redis in memory)"

    def begin(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.queue = (
            "import subprocess\nfrom redis import Redis\nfrom rq import Queue\n"
            f"queue = Queue(connection=Redis(port={port}))\ndef run(command):\n    subprocess.run(command)\n"
            "def add(command):\n    queue.enqueue('queue_of_bench.run', command)\n"
        )
        super().begin()
        self.serve("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(self.cwd))
        self.serve(str(PEERS.with_name("rq")), "worker", "-u", f"redis://127.0.0.1:{port}")


class Huey(PythonTool):
    name = "huey (SQLite)"
    queue = (
        "import subprocess\nfrom huey import SqliteHuey\nqueue = SqliteHuey(filename='huey.db', fsync=True)\n"
        "@queue.task()\ndef add(command):\n    subprocess.run(command)\n"
    )

    def begin(self) -> None:
        super().begin()
        self.serve(str(PEERS.with_name("huey_consumer")), "queue_of_bench.queue", "-w", "1", "-k", "process")


def installed() -> list[type[Tool]]:
    """mpsq, and the peers that are here."""
    found: list[type[Tool]] = [Mpsq]
    if shutil.which("tsp"):
        found.append(TaskSpooler)
    if PEERS.exists() and shutil.which("redis-server"):
        found.append(Rq)
    if PEERS.exists():
        found.append(Huey)
    return found


def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        time.sleep(0.01)


def single_ms(tool: Tool) -> tuple[float, float]:
    """Milliseconds of a submission from a shell, and from its start to the first instruction of the job."""
    stamp = tool.cwd / "stamp"
    stamp.unlink(missing_ok=True)
    began = time.time()
    tool.submit("/bin/sh", "-c", f": > {stamp}")
    returned = time.time()
    until(stamp.exists)
    time.sleep(0.5)
    return (returned - began) * 1e3, (stamp.stat().st_mtime - began) * 1e3


def series(tool: Tool) -> tuple[list[float], float]:
    """Milliseconds from the start of a no-op job to the start of the next, and how many started in a second."""
    stamps = tool.cwd / "stamps"
    stamps.mkdir()
    tool.submit("sleep", str(PLUG_S))
    tool.submit_many(JOBS, "/bin/sh", "-c", f": > {stamps}/$$")
    until(lambda: sum(1 for _ in stamps.iterdir()) == JOBS)
    at = sorted(path.stat().st_mtime for path in stamps.iterdir())
    return [(later - earlier) * 1e3 for earlier, later in itertools.pairwise(at)], (JOBS - 1) / (at[-1] - at[0])


def call_ms(tool: Tool) -> list[float]:
    """Milliseconds of a submission from Python while a job runs."""
    if not tool.calls:
        return []
    tool.submit("sleep", str(PLUG_S))
    time.sleep(1.0)
    return [float(line) * 1e3 for line in tool.run(tool.python, "-c", tool.calls.format(n=CALLS)).split()]


def table(cwd: Path) -> list[str]:
    """The lines of the table."""
    tools = [kind(cwd / kind.__name__) for kind in installed()]
    time.sleep(5.0)
    try:
        singles: list[list[tuple[float, float]]] = [[] for _ in tools]
        for _ in range(TIMES + 1):
            for tool, values in zip(tools, singles, strict=True):
                values.append(single_ms(tool))
        rows = [
            ("a submission from a shell", "130 ms", [[one for one, _ in values[1:]] for values in singles], "ms"),
            ("its start -> first instruction", "170 ms", [[one for _, one in values[1:]] for values in singles], "ms"),
            ("a submission from Python", "3 ms", [call_ms(tool) for tool in tools], "ms"),
        ]
        all_series = [series(tool) for tool in tools]
        rows += [
            ("start of a no-op job -> start of the next", "40 ms", [gaps for gaps, _ in all_series], "ms"),
            (f"{JOBS} no-op jobs in a row, in a second", "25", [[rate] for _, rate in all_series], ""),
        ]
    finally:
        for tool in tools:
            tool.end()
    lines = [
        f"| median, and the least | bar | {' | '.join(tool.name for tool in tools)} |",
        "|---|--:" + "|--:" * len(tools) + "|",
    ]
    for what, bar, columns, unit in rows:
        cells = [f"{statistics.median(v):.3g} ({min(v):.3g}) {unit}".strip() if v else "-" for v in columns]
        lines.append(f"| {what} | {bar} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mpsq-bench-") as name:
        print("\n".join(table(Path(name))))
