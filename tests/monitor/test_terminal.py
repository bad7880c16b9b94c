"""status --watch and logs -f on a real terminal, over a real job, while workers die and come back."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.process_support import NOW
from tests.queue_support import Queue
from tests.terminal_support import Terminal

pytestmark = pytest.mark.process

ITERATES = """
say() { echo "{$1}" | tr "'" '"' >> $MPSQ_EVENTS; }
say "'type':'hello','t':0,'v':1,'workload':'toy','device':'cpu','planned_iters':1000"
say "'type':'phase','t':0.5,'name':'measure','edge':'begin'"
i=0
while [ ! -e go ]; do
    say "'type':'iter','t':1.$i,'i':$i,'dur_s':0.0$((i % 9 + 1)),'loss':2.5,'phase':'measure'"
    i=$((i + 1)); sleep 0.05
done
"""


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*arguments: str, **environment: str) -> Terminal:
        made.append(Terminal(*arguments, **environment))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_watching_goes_on_while_workers_come_and_go(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    queue.submit(ITERATES)
    queue.submit("exit 0")
    screen = terminal("status", "--watch")
    screen.shows("worker   none;", "waiting  2 runs", "a worker")
    assert "\x1b[?1049h" in screen.raw
    first = queue.worker()
    screen.shows(f"process {first.pid}", "running  1.1", "of 1,000", "phase measure", "ms/iter", "loss 2.5000", "█")
    first.kill()
    first.wait()
    screen.forget()
    screen.shows("none, but the run continues")
    second = queue.worker()
    screen.shows(f"process {second.pid}")
    screen.resize(60, 12)
    screen.forget()
    screen.shows("running  1.1", "Ctrl-C quits")
    spent = psutil.Process(screen.process.pid).cpu_times()
    (queue.folder / "go").touch()
    screen.forget()
    screen.shows("running  nothing", "SUCCEEDED")
    assert psutil.Process(screen.process.pid).nice() >= 10
    more = psutil.Process(screen.process.pid).cpu_times()
    assert more.user + more.system - spent.user - spent.system < 0.5
    screen.forget()
    screen.type("\x1a")  # it has no shell to stop for: it goes on at once, with the screen given back and taken again
    screen.shows("Ctrl-C quits")
    assert screen.raw.count("\x1b[?1049h") == 2 and screen.raw.count("\x1b[?1049l") == 1
    screen.type("\x03")
    assert screen.process.wait() == 130
    assert screen.is_restored() and "Traceback" not in screen.raw


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_screen_back(queue: Queue, terminal: Callable[..., Terminal], number: int) -> None:
    queue.submit("exit 0")
    screen = terminal("status", "--watch", NO_COLOR="1")
    screen.shows("Ctrl-C quits")
    screen.process.send_signal(number)
    assert screen.process.wait() == 128 + number
    assert screen.is_restored()
    assert "\x1b[3" not in screen.raw  # no colour


def test_a_dumb_terminal_gets_text(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    queue.submit("exit 0")
    screen = terminal("status", "--watch", TERM="dumb")
    screen.shows("waiting  1 run")
    queue.worker()
    screen.shows("running  nothing", "SUCCEEDED")
    screen.type("\x03")
    assert screen.process.wait() == 130
    assert "\x1b" not in screen.raw


TRIES = """
n=$(ls try.* 2>/dev/null | wc -l); touch try.$n
echo "try $n, \\033[31mred\\033[0m"
printf ' 10%%\\r 99%%' >&2
while [ ! -e go.$n ]; do echo "at $(NOW)"; sleep 0.1; done
exit $((1 - n))
""".replace("NOW", NOW)


def test_a_job_is_followed_through_deaths_and_retries(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    job = queue.submit(TRIES, retries=1)
    screen = terminal("logs", "-f", str(job))
    screen.shows("run 1.1 waits: no worker runs this queue")
    worker = queue.worker()
    screen.shows("--- a worker is running again", "--- run 1.1", "try 0, red", "at ", " 99%")
    worker.kill()
    worker.wait()
    screen.shows("the worker has stopped; this run continues, but no other will start")
    screen.forget()
    screen.shows("at ")  # lines still come
    queue.worker()
    screen.shows("a worker is running again")
    assert statistics.median(latencies_s(screen)) <= 0.5
    (queue.folder / "go.0").touch()
    screen.shows("--- run 1.1: FAILED(1) after", "--- run 1.2 (attempt 2)", "try 1, red")
    (queue.folder / "go.1").touch()
    screen.shows("--- run 1.2: SUCCEEDED after")
    assert screen.process.wait() == 0
    assert "\x1b" not in screen.read() and "Traceback" not in screen.raw


def latencies_s(screen: Terminal, lines: int = 9) -> list[float]:
    """How long after they were written lines were printed."""
    found = []
    while len(found) < lines:
        screen.forget()
        line = screen.shows("at ", "\n").split("at ", 1)[1].split()[0]
        found.append(time.time() - float(line))
    return found


def test_a_reader_that_leaves_ends_it_quietly(queue: Queue) -> None:
    queue.submit("echo one; while [ ! -e go ]; do sleep 0.05; done")
    queue.worker()
    code = "from queue_runner.cli.main import entry; entry()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "logs", "-f", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None and follower.stderr is not None
        assert follower.stdout.readline() == "one\n"
        follower.stdout.close()
        assert follower.wait() == 141  # while the job says nothing
        assert "Traceback" not in follower.stderr.read()
    (queue.folder / "go").touch()
    queue.done()


def test_ctrl_c_ends_following_and_not_the_job(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    queue.submit("echo begins; while [ ! -e go ]; do sleep 0.05; done")
    queue.worker()
    screen = terminal("logs", "-f", "1")
    screen.shows("begins")
    screen.type("\x03")
    assert screen.process.wait() == 130 and "Traceback" not in screen.read()
    assert [row["state"] for row in queue.rows()] == ["RUNNING"]
    (queue.folder / "go").touch()
    assert queue.done()[0]["outcome"] == "SUCCEEDED"
