"""The warden and one trainer: how it is started, how it ends, what is written about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import convert

from queue_runner.host import locks, processes
from queue_runner.host.processes import boot_id
from queue_runner.host.run_dir import RunDir
from queue_runner.host.warden_records import RunEnd
from queue_runner.ingest.outcome import of_exit
from queue_runner.model import Outcome
from queue_runner.monitor import log_files
from queue_runner.monitor.log_text import Text
from tests.patience import patience
from tests.process_support import WardenRun, a_fifo, identity, is_alive, is_there, needs_linux, python, state_of, until

pytestmark = pytest.mark.process

Make = Callable[..., WardenRun]

FOREVER = ["sleep", "600"]
"""Not Python: an interrupt before it has started would be an exit code."""


def test_a_trainer_that_ends_well(warden_run: Make, tmp_path: Path) -> None:
    program = "import os, sys; print('out'); print('err', file=sys.stderr); print(os.getcwd())"
    with a_fifo(tmp_path / "bell") as bell:
        run = warden_run(python(program), wake=str(tmp_path / "bell")).start()
        exit_ = run.wait()
        assert os.read(bell, 10) == b"!"
    assert (exit_["exit_code"], exit_["signal"], exit_["spawn_error"], exit_["stop"]) == (0, None, None, None)
    assert (exit_["v"], exit_["run"], exit_["boot_id"], exit_["stopped"]) == (1, "1.1", boot_id(), False)
    assert exit_["oom_killed"] is False
    assert exit_["paused_s"] == 0
    assert exit_["slept_s"] < patience(0.5)
    assert 0 < exit_["real_s"] < patience(10)
    assert abs(exit_["ended_at"] - exit_["started_at"] - exit_["real_s"]) < patience(0.5)
    assert exit_["user_s"] + exit_["sys_s"] <= exit_["real_s"] + 0.02
    assert exit_["output_bytes"] == len(run.stdout) + len(run.stderr)
    assert (run.stdout, run.stderr) == (f"out\n{run.spec['cwd']}\n", "err\n")
    assert run.lane_is_free()
    started = run.read("started")
    assert started is not None and run.process is not None
    assert (started["warden_pid"], started["boot_id"]) == (run.process.pid, boot_id())
    assert started["warden_start"] > 0
    assert run.noted()[0]["pid"] == run.noted()[0]["sid"] == run.noted()[0]["pgid"]
    assert run.log == ""
    assert sorted(p.name for p in (run.folder / "warden").iterdir()) == [
        "exit.json",
        "pids.jsonl",
        "started",
        "warden.log",
    ]


def test_the_order_of_both_streams_is_known(warden_run: Make) -> None:
    program = """
import os, time
def turns():
    try:
        return len(open(os.environ["ORDER"]).readlines())
    except OSError:
        return 0
os.write(1, b"a\\n")
while turns() < 1:
    os.write(2, b"b\\n")
    time.sleep(0.01)
while turns() < 2:
    os.write(1, b"c\\n")
    time.sleep(0.01)
"""
    run = warden_run(python(program))
    run.spec["env"] |= {"ORDER": f"{run.folder}/warden/output_order"}
    run.start().wait()
    lines: list[bytes] = []
    log = log_files.of_run(RunDir(run.folder), Text(lines.append), Text(lines.append), None)
    assert log.copy()
    log.end()
    words = b"".join(lines).split()
    assert words[0] == b"a" and words.index(b"b") < words.index(b"c")
    assert [*run.stdout, *run.stderr].count("\n") == len(words)


@pytest.mark.parametrize("code", [1, 2, 69, 71, 127, 255])
def test_exit_codes_are_told_as_they_are(warden_run: Make, code: int) -> None:
    exit_ = warden_run(python(f"import os; os._exit({code})")).start().wait()
    assert (exit_["exit_code"], exit_["signal"], exit_["stopped"]) == (code, None, False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGABRT])
def test_signals_are_told_as_they_are(warden_run: Make, number: signal.Signals) -> None:
    program = f"import os, signal; signal.signal({number:d}, signal.SIG_DFL); os.kill(os.getpid(), {number:d})"
    if number == signal.SIGKILL:
        program = "import os; os.kill(os.getpid(), 9)"
    exit_ = warden_run(python(program)).start().wait()
    assert (exit_["exit_code"], exit_["signal"], exit_["oom_killed"]) == (None, number, False)


def test_the_trainer_is_born_clean(warden_run: Make) -> None:
    program = """
import json, os, signal, sys
def inode(fd):
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return 0
print(json.dumps({
    "inodes": [inode(fd) for fd in range(64)],
    "mask": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "ignored": [int(s) for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN],
    "fds": sorted(int(n) for n in os.listdir("/dev/fd")), "stdin": sys.stdin.read(),
    "leader": os.getsid(0) == os.getpid() == os.getpgid(0), "env": dict(os.environ)}))
"""
    run = warden_run(python(program))
    run.spec["env"] = {"ONLY": "this"}
    run.start().wait()
    born = json.loads(run.stdout)
    assert born["mask"] == []
    python_itself = {signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)}
    assert set(born["ignored"]) <= python_itself
    assert born["stdin"] == "" and born["leader"]
    assert set(born["env"]) - {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"} == {"ONLY", "MPSQ_TAG", "MPSQ_EVENTS", "MPSQ_T0"}
    assert (born["env"]["MPSQ_TAG"], born["env"]["MPSQ_EVENTS"]) == (run.tag, run.spec["events"])
    assert len(born["fds"]) == 5, "0, 1, 2, the lane and the listing itself"
    assert run.lane.stat().st_ino in born["inodes"]


def test_the_zero_of_the_jobs_clock_is_the_spawn(warden_run: Make) -> None:
    before = time.perf_counter()
    run = warden_run(python("import os, time; print(time.perf_counter() - float(os.environ['MPSQ_T0']))")).start()
    run.wait()
    assert 0 < float(run.stdout) < time.perf_counter() - before


REAL_TIME = """
import json, os, sys, time
from queue_runner.warden import spawn, supervise
from queue_runner.warden.files import awake
from queue_runner.warden.instructions import RunInstructions

change_folder = os.chdir
def slow(place):
    time.sleep(0.3)
    change_folder(place)

run = supervise.Run(sys.argv[1], RunInstructions(json.loads(sys.stdin.read())), True)
spawn.os.chdir = slow  # the child's, before its exec
before = awake()
spawn.start(run.trainer, run.spec, [], lambda: False)
while not os.path.exists("done"):
    pass
os.waitid(os.P_PID, run.trainer.pid, os.WEXITED | os.WNOWAIT)
ended = awake()
time.sleep(0.3)  # as if it looked through many processes
assert run.reap()
print(json.dumps([before + 0.3 <= run.trainer.began[0], run.ended[0] <= ended, run.trainer.start_s is not None]))
"""


@needs_linux
def test_the_real_time_is_that_of_the_program_not_of_its_warden(warden_run: Make) -> None:
    """Of a program of 1 ms it was 8 to 16 ms: the fork before it, and the warden's look at all processes after it."""
    run = warden_run(["touch", "done"])
    cwd = Path(run.spec["cwd"])
    (run.folder / "warden").mkdir(exist_ok=True)
    command = [sys.executable, "-c", REAL_TIME, str(run.folder)]
    result = subprocess.run(command, input=json.dumps(run.spec), cwd=cwd, capture_output=True, text=True)
    assert result.stdout.strip() == "[true, true, true]", result.stderr


@pytest.mark.parametrize(
    ("argv", "changes", "number", "text"),
    [
        (["/no/such/python", "x"], {}, 2, "/no/such/python: No such file or directory"),
        (["no-such-program-in-path"], {}, 2, "no-such-program-in-path: No such file or directory"),
        (["/dev/null"], {}, 13, "/dev/null: Permission denied"),
        (["/usr/bin/true"], {"cwd": "/no/such/folder"}, 2, "its working directory /no/such/folder: No such file"),
        (["/usr/bin/true", "a\0b"], {}, 22, "/usr/bin/true: embedded null byte"),
        (["/usr/bin/true"], {"stdout": "/no/such/folder/stdout.log"}, 2, "/no/such/folder/stdout.log"),
    ],
)
def test_what_cannot_be_started_is_told(
    warden_run: Make, argv: list[str], changes: dict[str, str], number: int, text: str
) -> None:
    run = warden_run(argv, **changes).start()
    exit_ = run.wait()
    assert exit_["spawn_error"]["errno"] == number
    assert text in exit_["spawn_error"]["text"]
    assert (exit_["exit_code"], exit_["signal"], exit_["real_s"], exit_["max_rss_bytes"]) == (None, None, None, None)
    assert run.read("started") is not None
    assert run.lane_is_free()


def test_a_script_without_an_interpreter_line_is_told(warden_run: Make, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("print('no line')\n")
    script.chmod(0o755)
    error = warden_run([str(script)]).start().wait()["spawn_error"]
    assert (error["errno"], error["text"]) == (8, f"{script}: Exec format error")


def test_rusage_is_the_trainers_alone(warden_run: Make) -> None:
    burn = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n"
    elsewhere = burn.format(0.4)
    program = (
        "import subprocess, sys, os\n"
        f"child = subprocess.Popen([sys.executable, '-ISc', {elsewhere!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.read()\n"  # its end is seen, but it is not waited for
        f"block = bytearray(50_000_000)\n{burn.format(0.2)}os._exit(0)\n"
    )
    exit_ = warden_run(python(program)).start().wait()
    assert 0.2 <= exit_["user_s"] + exit_["sys_s"] < 0.55
    assert 50_000_000 < exit_["max_rss_bytes"] < 200_000_000


def test_exit_lines_in_the_events_decide_nothing(warden_run: Make) -> None:
    program = """
import os
with open(os.environ["MPSQ_EVENTS"], "w") as events:
    events.write('{"type":"exit","exit_code":0}\\n')
print('{"type":"exit","exit_code":0}')
os._exit(3)
"""
    assert warden_run(python(program)).start().wait()["exit_code"] == 3


# -- what ends it before its time -----------------------------------------------------------------------------------


def test_cancel_before_the_start(warden_run: Make) -> None:
    run = warden_run(FOREVER)
    run.cancel("ada")
    exit_ = run.start().wait()
    assert (exit_["stop"]["cause"], exit_["stop"]["detail"]) == ("cancel", "cancelled by ada")
    assert (exit_["exit_code"], exit_["signal"], exit_["started_at"], exit_["stopped"]) == (None, None, None, False)
    assert run.read("started") is None
    assert not (run.folder / "stdout.log").exists()
    assert run.lane_is_free()


def test_cancel_of_a_running_trainer(warden_run: Make) -> None:
    run = warden_run(FOREVER).start()
    trainer = run.trainer()
    run.cancel()
    exit_ = run.wait()
    assert (exit_["stop"]["cause"], exit_["stopped"], exit_["signal"]) == ("cancel", True, signal.SIGINT)
    assert exit_["stop"] == run.read("stop")
    assert not is_alive(trainer)


@pytest.mark.parametrize("changes", [{}, {"timeout_s": 0.5}])
def test_a_trainer_that_waits_before_exec_is_stopped(warden_run: Make, changes: dict[str, float]) -> None:
    run = warden_run(FOREVER, **changes)
    run.stand_in = "import os, signal; os.chdir = lambda _: signal.pause()  # for a folder that macOS guards"
    run.start()
    until(lambda: run.read("started"), "the fence")
    if not changes:
        run.cancel()
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == ("timeout" if changes else "cancel") and exit_["stopped"]
    assert (exit_["signal"], exit_["spawn_error"], run.leftovers()) == (signal.SIGINT, None, set())


def test_a_trainer_that_waits_before_exec_does_not_hold_its_wardens_lock(warden_run: Make) -> None:
    """Else it would count as supervised once its warden was killed: nobody would end it."""
    run = warden_run(FOREVER)
    run.stand_in = "import os, signal; os.chdir = lambda _: signal.pause()  # for a folder that macOS guards"
    run.start().trainer()
    run.kill_warden()
    until(lambda: not locks.is_held(run.folder / "warden.lock"), "its lock")
    assert not run.lane_is_free()


def test_how_a_trainer_leaves_after_the_stop_is_told_as_it_is(warden_run: Make) -> None:
    program = "import os, signal\nsignal.signal(2, lambda *_: os._exit(7))\nprint('ready')\nwhile True: signal.pause()"
    run = warden_run(python(program)).start()
    until(lambda: "ready" in run.stdout, "the handler")
    run.cancel()
    exit_ = run.wait()
    assert (exit_["exit_code"], exit_["signal"], exit_["stopped"]) == (7, None, True)


def test_a_deaf_trainer_meets_each_signal_in_turn(warden_run: Make) -> None:
    program = """
import signal
for number in (2, 15):
    signal.signal(number, lambda number, _: print(number))
print("ready")
while True: signal.pause()
"""
    run = warden_run(python(program), grace_s={"int": 0.2, "term": 0.2}).start()
    until(lambda: "ready" in run.stdout, "the handlers")
    run.cancel()
    assert run.wait()["signal"] == signal.SIGKILL
    assert run.stdout.split() == ["ready", "2", "15"]


@pytest.mark.parametrize(("grace_s", "number"), [({"int": 0, "term": 5}, 15), ({"int": 0, "term": 0}, 9)])
def test_a_grace_of_zero_leaves_its_signal_out(warden_run: Make, grace_s: dict[str, float], number: int) -> None:
    run = warden_run(FOREVER, grace_s=grace_s).start()
    run.trainer()
    run.cancel()
    assert run.wait()["signal"] == number


def test_timeout(warden_run: Make) -> None:
    exit_ = warden_run(FOREVER, timeout_s=0.3).start().wait()
    assert (exit_["stop"]["cause"], exit_["stopped"]) == ("timeout", True)
    assert exit_["stop"]["detail"].endswith(" 0.3 s")
    assert 0.3 <= exit_["real_s"] < patience(60)


def test_a_pause_counts_neither_for_timeout_nor_for_stall(warden_run: Make) -> None:
    timeout_s, stall_s = patience(0.8), patience(0.7)
    run = warden_run(["sh", "-c", "kill -STOP $$; exec sleep 600"], timeout_s=timeout_s, stall_s={"*": stall_s}).start()
    trainer = run.trainer()
    until(lambda: state_of(trainer.pid) == "T", "the pause")
    paused = time.monotonic()
    until(lambda: time.monotonic() - paused > 1.5 * timeout_s, "a pause longer than both limits")
    assert is_alive(trainer) and run.read("stop") is None
    os.kill(trainer.pid, signal.SIGCONT)
    exit_ = run.wait()
    assert exit_["stop"]["cause"] in ("stall", "timeout")  # which of the two is a matter of 0.1 s
    assert 1.4 * timeout_s < exit_["paused_s"] < exit_["real_s"]
    assert exit_["real_s"] - exit_["paused_s"] >= stall_s


def test_a_trainer_killed_while_paused(warden_run: Make) -> None:
    run = warden_run(FOREVER).start()
    trainer = run.trainer()
    os.kill(trainer.pid, signal.SIGSTOP)
    until(lambda: state_of(trainer.pid) == "T", "the pause")
    run.cancel()
    exit_ = run.wait()
    assert (exit_["signal"], exit_["stopped"]) == (signal.SIGINT, True)
    assert exit_["paused_s"] > 0


EVENTS = """
import json, os, time
def line(**event): return json.dumps(event, separators=(",", ":")).encode() + b"\\n"
def say(**event): os.write(events, line(**event))
events = os.open(os.environ["MPSQ_EVENTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
"""


def test_stall_goes_by_phase(warden_run: Make) -> None:
    program = EVENTS + (
        "begins = line(type='phase', name='measure', edge='begin') + line(type='iter', i=0, phase='measure')\n"
        "os.write(events, begins + line(type='phase', name='eval', edge='begin'))\n"  # at once: no stall in between
        "time.sleep(0.9); say(type='phase', name='eval', edge='end')\n"
        "time.sleep(60)\n"
    )
    exit_ = warden_run(python(program), stall_s={"measure": 0.4, "eval": 30.0, "*": 20.0}).start().wait()
    assert exit_["stop"]["cause"] == "stall"
    assert exit_["stop"]["detail"].endswith(" 0.4 s in phase measure")
    assert exit_["real_s"] > 1.2


def test_a_chatting_trainer_does_not_stall_but_with_events_stdout_is_no_chat(warden_run: Make) -> None:
    talk = "end = time.monotonic() + 1.2\nwhile time.monotonic() < end:\n    print('x', flush=True); time.sleep(0.05)\n"

    def chats() -> bool:
        """On a busy machine it may be silent for too long: then it tries again."""
        run = warden_run(python("import time\n" + talk), stall_s={"*": 0.5})
        return bool(run.start().wait()["exit_code"] == 0)

    until(chats, "a chat without a long silence")
    exit_ = warden_run(python(EVENTS + "say(type='hello')\n" + talk), stall_s={"*": 0.5}).start().wait()
    assert exit_["stop"]["cause"] == "stall"


def test_hostile_events_do_not_stop_the_watch(warden_run: Make) -> None:
    program = EVENTS + (
        r"""os.write(events, b'[' * 60000 + b'"phase"\n"phase"\n{"phase":"\xff\n')"""
        "\n"
        r"""os.write(events, b'"phase"' * 200000 + b'\n')"""
        "\n"
        "say(type='phase', name=1, edge='begin'); say(type='iter', phase=[])\ntime.sleep(60)\n"
    )
    run = warden_run(python(program), stall_s={"*": 0.6}).start()
    assert run.wait()["stop"]["cause"] == "stall"
    assert run.log == ""


def test_output_limit(warden_run: Make) -> None:
    program = "while True: print('x' * 10000)"
    exit_ = warden_run(python(program), output_limit_bytes=1_000_000).start().wait()
    assert (exit_["stop"]["cause"], exit_["stopped"]) == ("output", True)
    assert exit_["output_bytes"] > 1_000_000


def test_a_disk_that_runs_full(warden_run: Make) -> None:
    exit_ = warden_run(FOREVER, min_free_bytes=1 << 60).start().wait()
    assert (exit_["stop"]["cause"], exit_["stopped"]) == ("disk", True)


def test_an_end_of_its_own_before_the_first_signal_is_no_stop(warden_run: Make) -> None:
    program = "import os, time\nwhile not os.path.exists(os.environ['OUT'] + '/go'): time.sleep(0.01)\nos._exit(5)"
    run = warden_run(python(program)).start(stop_at="warden.stopped")
    trainer = run.trainer()
    run.cancel()
    run.stopped_at("warden.stopped")
    assert run.read("stop") is not None, "on disk before the first signal"
    assert is_alive(trainer)
    (Path(run.spec["cwd"]) / "go").touch()
    until(lambda: not is_alive(trainer), "the trainer's end")
    run.go_on()
    exit_ = run.wait()
    assert (exit_["exit_code"], exit_["stopped"], exit_["stop"]["cause"]) == (5, False, "cancel")


# -- who outlives whom ----------------------------------------------------------------------------------------------


def test_the_warden_is_not_moved_by_signals_from_outside(warden_run: Make) -> None:
    run = warden_run(FOREVER).start()
    run.trainer()
    assert run.process is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGUSR1):
        os.kill(run.process.pid, number)
    assert os.getsid(run.process.pid) == run.process.pid != os.getsid(run.trainer().pid)
    run.cancel()
    assert run.wait()["stop"]["cause"] == "cancel"


def test_the_trainer_holds_the_lane_when_its_warden_is_killed(warden_run: Make) -> None:
    run = warden_run(FOREVER).start()
    trainer = run.trainer()
    run.kill_warden()
    assert is_alive(trainer)
    assert locks.try_lock(run.lane) is None
    assert not locks.is_held(run.folder / "warden.lock")
    assert trainer in run.leftovers()
    assert processes.end_all(run.traces(), 0.5, 0.5) == []
    assert not is_alive(trainer)
    assert run.lane_is_free()


@needs_linux  # PR_SET_PDEATHSIG
def test_with_daemons_allowed_only_the_warden_has_the_lane_and_the_trainer_goes_with_it(warden_run: Make) -> None:
    run = warden_run(FOREVER, allow_daemons=True).start()
    trainer = run.trainer()
    run.kill_warden()
    until(lambda: not is_alive(trainer), "the trainer's end")
    until(run.lane_is_free, "the lane")


DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(os.environ["OUT"] + "/daemon", "w") as file: file.write(str(os.getpid()))
        while True: signal.pause()
    os._exit(0)
os.wait()
while not (os.path.exists(os.environ["OUT"] + "/daemon") and open(os.environ["OUT"] + "/daemon").read()): pass
"""


def test_a_daemon_may_outlive_its_job_only_if_allowed(warden_run: Make) -> None:
    for allowed in (False, True):
        run = warden_run(python(DAEMON), allow_daemons=allowed).start()
        assert run.wait()["exit_code"] == 0
        assert run.lane_is_free()
        pid = int((Path(run.spec["cwd"]) / "daemon").read_text())
        assert is_there(pid) is allowed
        if allowed:
            assert identity(pid) in run.leftovers()


def test_cancel_ends_allowed_daemons_too(warden_run: Make) -> None:
    run = warden_run(python(DAEMON + "signal.pause()"), allow_daemons=True).start()
    daemon = Path(run.spec["cwd"]) / "daemon"
    pid = int(until(lambda: daemon.exists() and daemon.read_text(), "the daemon"))
    run.cancel()
    run.wait()
    assert not is_there(pid)


# -- a run is never started twice -----------------------------------------------------------------------------------


def test_a_second_warden_leaves_the_run_alone(warden_run: Make) -> None:
    run = warden_run(python("print('once')")).start()
    run.wait()
    assert run.start().process is not None
    assert run.process is not None and run.process.wait() == 1
    assert run.stdout == "once\n"
    assert run.lane_is_free()


def test_a_warden_without_the_lane_starts_nothing(warden_run: Make) -> None:
    run = warden_run(FOREVER)
    run.start(stop_at="warden.locked")
    run.stopped_at("warden.locked")
    second = warden_run(python("print('never')"))
    other = locks.try_lock(second.lane.with_name("other.lock"))
    assert other is not None
    second.lane = other.path
    other.close()
    second.start()
    second.wait()  # with a lane of its own it runs
    run.kill_warden()
    assert run.lane_is_free()


def test_a_spec_that_lacks_something_starts_nothing(warden_run: Make) -> None:
    run = warden_run(FOREVER)
    del run.spec["grace_s"]
    run.start()
    assert run.process is not None and run.process.wait() == 1
    assert "lacks grace_s" in run.log
    assert run.read("started") is None and run.lane_is_free()


PREPARES = """
import os, pathlib, sys, time
place = pathlib.Path(os.environ["OUT"], "made")
print("as", os.environ.get("MPSQ_PREPARE"), os.environ["MPSQ_EVENTS"])
if os.environ.get("MPSQ_PREPARE"):
    began = time.process_time()
    while time.process_time() - began < 0.3: pass
    bytearray(80 << 20)
    place.write_text("42")
    sys.exit(7)
sys.exit(0 if place.read_text() == "42" else 1)
"""


def test_a_preparation_is_no_part_of_the_run(warden_run: Make) -> None:
    run = warden_run(python(PREPARES), prepare={"env": {"MPSQ_PREPARE": "1"}, "by": [], "timeout_s": None}).start()
    exit_ = run.wait()
    assert (exit_["exit_code"], exit_["stop"], exit_["spawn_error"]) == (0, None, None)
    assert run.stdout == f"as None {run.spec['events']}\n"  # and nothing of the preparation's
    assert (run.folder / "warden" / "prepare.log").read_text() == f"as 1 {os.devnull}\n"
    assert exit_["user_s"] + exit_["sys_s"] < 0.25 < exit_["prepared"]["user_s"] + exit_["prepared"]["sys_s"]
    assert exit_["prepared"]["exit_code"] == 7  # which decides nothing
    assert exit_["prepared"]["real_s"] > 0.3
    assert exit_["max_rss_bytes"] < 80 << 20 < exit_["prepared"]["max_rss_bytes"]
    folder = RunDir(run.folder)
    assert len(run.noted()) == 2 and [pid for pid, _ in folder.of_trainer()] == [run.noted()[1]["pid"]]
    assert not folder.is_preparing() and run.lane_is_free()


BY_SHELL = ["sh", "-ec", '"$@"', "sh"]
behind = pytest.mark.parametrize("by", [[], BY_SHELL], ids=["itself", "--prepare"])
"""What the program is started by as its preparation."""


@behind
def test_a_cancel_during_the_preparation_starts_no_trainer(warden_run: Make, by: list[str]) -> None:
    program = "import os, pathlib, signal; pathlib.Path(os.environ['OUT'], f'ran{os.getpid()}').touch(); signal.pause()"
    run = warden_run(
        python(program),
        prepare={"env": {"MPSQ_PREPARE": "1"}, "by": by, "timeout_s": None},
        grace_s={"int": 0.2, "term": 0.2},
    ).start()
    folder = Path(run.spec["env"]["OUT"])
    until(lambda: list(folder.glob("ran*")), "the preparation")
    assert RunDir(run.folder).is_preparing()
    run.cancel()
    exit_ = run.wait()
    assert exit_["stop"]["cause"] == "cancel" and exit_["exit_code"] is exit_["signal"] is exit_["real_s"] is None
    assert len(list(folder.glob("ran*"))) == 1
    assert of_exit(convert(exit_, RunEnd), {}).outcome is Outcome.CANCELLED
    assert run.lane_is_free()


@behind
def test_a_preparation_has_the_limits_of_the_run(warden_run: Make, by: list[str]) -> None:
    run = warden_run(
        FOREVER,
        prepare={"env": {"MPSQ_PREPARE": "1"}, "by": by, "timeout_s": 0.5},
        timeout_s=0.5,
        grace_s={"int": 0.2, "term": 0.2},
    ).start()
    assert of_exit(convert(run.wait(), RunEnd), {}).outcome is Outcome.TIMED_OUT


def test_a_preparation_that_failed_before_its_stop_has_failed(warden_run: Make) -> None:
    program = 'touch "$OUT/there"; until [ -e "$OUT/go" ]; do sleep 0.01; done; exit 3'
    run = warden_run(FOREVER, prepare={"env": {}, "by": ["sh", "-c", program], "timeout_s": None})
    run.start(stop_at="warden.stopped")
    folder = Path(run.spec["env"]["OUT"])
    until((folder / "there").exists, "the preparation")
    preparation = run.trainer()
    run.cancel()
    run.stopped_at("warden.stopped")
    (folder / "go").touch()
    until(lambda: not is_alive(preparation), "its end")
    run.go_on()
    ending = of_exit(convert(run.wait(), RunEnd), {})
    assert ending.outcome is Outcome.SPAWN_FAILED and "exit code 3" in ending.reason


def test_what_a_preparation_leaves_is_ended_before_the_trainer(warden_run: Make) -> None:
    program = """
import os, pathlib, signal, sys
place = pathlib.Path(os.environ["OUT"], "child")
if os.environ.get("MPSQ_PREPARE"):
    if not (child := os.fork()):
        os.setsid(); signal.pause()
    place.write_text(str(child)); sys.exit()
try:
    os.kill(int(place.read_text()), 0)
except ProcessLookupError:
    sys.exit()
sys.exit("it lives")
"""
    run = warden_run(
        python(program),
        prepare={"env": {"MPSQ_PREPARE": "1"}, "by": [], "timeout_s": None},
        grace_s={"int": 0.2, "term": 0.2},
    ).start()
    assert run.wait()["exit_code"] == 0, run.stderr


def test_a_suspension_holds_a_preparation_too(warden_run: Make) -> None:
    program = """
import os, pathlib, sys, time
if os.environ.get("MPSQ_PREPARE"):
    pathlib.Path(os.environ["OUT"], "there").touch()
    while not pathlib.Path(os.environ["OUT"], "go").exists(): time.sleep(0.01)
"""
    run = warden_run(python(program), prepare={"env": {"MPSQ_PREPARE": "1"}, "by": [], "timeout_s": None}).start()
    folder = Path(run.spec["env"]["OUT"])
    until((folder / "there").exists, "the preparation")
    (run.folder / "suspend").touch()
    until(lambda: run.read("suspended"), "the suspension")
    until(lambda: state_of(run.noted()[0]["pid"]) == "T", "its stop")
    (run.folder / "suspend").unlink()
    (folder / "go").touch()
    exit_ = run.wait()
    assert exit_["exit_code"] == 0 and exit_["paused_s"] == 0  # of the run itself
