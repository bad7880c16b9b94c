"""What differs on a Mac, by stand-ins: the kernel's structs, the texts of Apple's tools, paths with a space."""

from __future__ import annotations

import os
import resource
import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_runner import paths
from queue_runner.host import cpu_time, find_tool, locks, low_priority, run_sampler
from queue_runner.host import processes as host_processes
from queue_runner.host.background import PolledCommand
from queue_runner.host.run_dir import RunDir
from queue_runner.ingest.outcome import failed_on_metal, with_last_words
from queue_runner.model import Ending, Outcome
from queue_runner.paths import Layout
from queue_runner.source import git_commands
from queue_runner.spec import JobSpec, NewJob, Terms
from queue_runner.store import jobs, read
from queue_runner.store.engine import open_engine, writing
from queue_runner.text import last_line
from queue_runner.warden import process_tree
from queue_runner.worker import finish, launch, main_loop
from tests import named_rows
from tests.patience import until
from tests.store_support import claim_next

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               11061.
Pages stored in compressor:              612230.
"Translation faults":                 987654321.
Pageins:                                {pageins}.
Pageouts:                                 86393.
Swapins:                                {swapins}.
Swapouts:                               {swapouts}.
"""


def vm_stat(pageins: int, swapins: int, swapouts: int) -> str:
    return VM_STAT.format(pageins=pageins, swapins=swapins, swapouts=swapouts)


def test_vm_stat_tells_swapping_from_the_reading_of_mapped_files() -> None:
    assert run_sampler.parse_vm_stat(vm_stat(15_452_143, 2, 3)) == (2 * 16384, 3 * 16384)
    assert run_sampler.parse_vm_stat("Mach Virtual Memory Statistics: (page size of 16384 bytes)\n") is None
    assert run_sampler.parse_vm_stat(None) is None


class Scripted:
    """A stand-in for PolledCommand: vm_stat answers one sample after the question, other tools never do."""

    texts: Sequence[str] = ()

    def __init__(self, argv: Sequence[str], every_s: float) -> None:
        self._left = list(self.texts) if argv[0].endswith("vm_stat") else []
        self._asked_s: float | None = None
        self.answered_s: float | None = None
        self._answer: str | None = None

    def latest(self, now_s: float) -> str | None:
        if self._asked_s is not None and self._left:
            self.answered_s, self._answer = self._asked_s, self._left.pop(0)
        self._asked_s = now_s
        return self._answer


def test_swapping_is_a_rate_between_two_answers_of_vm_stat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "texts", [vm_stat(0, 0, 0), vm_stat(10**6, 0, 0), vm_stat(10**6, 0, 640)])
    monkeypatch.setattr(run_sampler, "PolledCommand", Scripted)
    now = [0.0]
    sampler = run_sampler.Sampler(platform="darwin", clock=lambda: now[0])
    seen = []
    for _ in range(4):
        seen.append(sampler.sample().swap_out_bytes_per_s)
        now[0] += 10.0
    assert seen == [None, None, 0.0, 640 * 16384 / 10]  # a million pages of mapped files are no swapping
    sampler.close()


def test_an_answer_knows_when_it_was_asked_for() -> None:
    asked = PolledCommand(["true"], 0.0)
    assert asked.answered_s is None
    asked.latest(1.0)
    until(lambda: asked.latest(2.0) is not None, "the answer")
    assert asked.answered_s == 1.0


@dataclass
class Used:
    """What rusage_info_v4 has of a process."""

    user_s: float = 0
    system_s: float = 0
    child_user_s: float = 0
    child_system_s: float = 0
    footprint: int = 0
    largest: int = 0


class LibSystem:
    """libproc as XNU answers it. proc_pidinfo(PROC_PIDTBSDINFO): 136 bytes, and nothing of zombies and of other users'.
    proc_pid_rusage(RUSAGE_INFO_V4): 296 bytes, times in units of 125/3 ns as on Apple silicon."""

    def __init__(self, **rows: tuple[int, int, int, int, int]) -> None:
        self.rows = {int(name[1:]): row for name, row in rows.items()}
        self.usage: dict[int, Used] = {}
        self.words: dict[int, bytes] = {}

    def mach_timebase_info(self, buffer: Any) -> int:
        buffer[:8] = struct.pack("II", 125, 3)
        return 0

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: Any) -> int:
        assert flavor == 4 and len(buffer) == 296
        if (used := self.usage.get(pid)) is None:
            return -1
        user, system, child_user, child_system = (
            round(seconds * 24e6) for seconds in (used.user_s, used.system_s, used.child_user_s, used.child_system_s)
        )
        buffer[:296] = b"".join(
            [
                b"u" * 16, struct.pack("10Q", user, system, 1, 1, 1, 1, 3, used.footprint, 1, 1),  # v0
                struct.pack("6Q", child_user, child_system, 1, 1, 1, 1), struct.pack("2Q", 1, 1),  # v1, v2
                struct.pack("9Q", *[1] * 9), struct.pack("8Q", 1, used.largest, 1, 1, 1, 1, 1, 1),  # v3, v4
            ]
        )  # fmt: skip
        return 0

    def proc_pidinfo(self, pid: int, flavor: int, _arg: object, buffer: Any, size: int) -> int:
        assert (flavor, size) == (3, 136)
        if pid not in self.rows:
            return 0
        status, parent, group, seconds, micros = self.rows[pid]
        buffer[:136] = struct.pack("IIIIIII", 0, status, 0, pid, parent, 501, 20).ljust(100, b"\0") + struct.pack(
            "=IIIIiQQ", group, 0, 0, 0, 0, seconds, micros
        )
        return 136

    def sysctl(self, name: Any, n: int, buffer: Any, size: Any, _new: object, _new_size: object) -> int:
        """KERN_PROCARGS2 as XNU answers it; without a buffer the size alone, and an error for others' processes."""
        assert (*name[:2], n) == (1, 49, 3)
        if name[2] not in self.words:
            return -1
        words = self.words[name[2]]
        if buffer is not None:
            assert len(buffer) >= len(words)
            buffer[: len(words)] = words
        size._obj.value = len(words) + (8 if buffer is None else 0)  # an upper bound, then what was written
        return 0


def procargs2(path: bytes, arguments: Sequence[bytes], variables: Sequence[bytes]) -> bytes:
    """The published layout: the count, the path, zeros up to a word's end, arguments, variables, an empty one."""
    words = b"".join(word + b"\0" for word in (*arguments, *variables))
    return struct.pack("i", len(arguments)) + path + b"\0" * (8 - len(path) % 8) + words + b"\0"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> LibSystem:
    library = LibSystem(p77=(2, 1, 70, 1_763_000_000, 250_000), p78=(4, 77, 70, 1_763_000_001, 0))
    monkeypatch.setattr(process_tree, "_loaded", [library])
    monkeypatch.setattr(process_tree.os, "getsid", lambda pid: 70)
    monkeypatch.setattr(host_processes, "LINUX", False)
    monkeypatch.setattr(cpu_time, "LINUX", False)
    return library


def test_a_process_of_a_mac_is_read_from_libproc(mac: LibSystem) -> None:
    row = process_tree.row_darwin(78)
    assert row is not None
    assert (row.parent, row.group, row.session, row.start) == (77, 70, 70, 1_763_000_001.0)
    assert row.stopped and not row.ended
    assert host_processes.start_time(77) == 1_763_000_000.25


def test_a_tag_is_read_from_the_environment_of_a_macs_process(mac: LibSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "environment", process_tree.environment_darwin)
    tag = [b"MPSQ_TAG=abc"]
    mac.words = {
        77: procargs2(b"/opt/python", [b"python", b"", b"train.py"], [b"A=1", *tag]),
        78: procargs2(b"/bin/sh", [b"sh", b"-c", *tag], [b"A=1"]),  # it names the tag in its command
        79: procargs2(b"/bin/sleep", [b"sleep", b"60"], []),  # restricted: the variables are hidden
    }
    assert process_tree.environment_darwin(77)[:2] == [b"A=1", b"MPSQ_TAG=abc"]
    assert process_tree.tagged([77, 78, 79, 80], "abc") == {77}
    assert not process_tree.tagged([77], "ab")


def test_the_warden_finds_an_orphan_of_a_mac_by_its_tag(
    mac: LibSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left its session and its parent before the warden's first note."""
    mac.rows = {77: (2, 1, 77, 1_763_000_000, 0), 78: (2, 1, 78, 1_763_000_001, 0)}
    mac.words = {77: procargs2(b"/opt/python", [b"python"], [b"MPSQ_TAG=abc"])}
    monkeypatch.setattr(process_tree, "table", lambda: {pid: process_tree.row_darwin(pid) for pid in mac.rows})
    monkeypatch.setattr(process_tree, "environment", process_tree.environment_darwin)
    assert set(process_tree.ProcessTree("abc", str(tmp_path / "pids.jsonl")).find()) == {77}


def test_a_clock_that_is_set_changes_no_start_time(mac: LibSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil moves create_time by what the clock was set: the job's time on the CPU would be taken for others'."""
    import psutil

    monkeypatch.setattr(psutil, "Process", lambda pid: SimpleNamespace(create_time=lambda: 1_763_000_007.25))
    mac.usage = {77: Used(user_s=3, system_s=1), 78: Used(user_s=2)}
    found = cpu_time.CpuTimes().processes([(77, 1_763_000_000.25), (78, 1_763_000_999.0), 78])
    assert found == {
        (77, 1_763_000_000.25): cpu_time.ProcessTime(1, 4),
        (78, 1_763_000_001.0): cpu_time.ProcessTime(77, 2),
    }


def test_what_ended_children_used_is_the_jobs(mac: LibSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data loader's process, or a shell's command, passes its time on when its parent has waited for it."""
    machine = [cpu_time.MachineTime(busy, total, None) for busy, total in ((0.0, 0.0), (9.0, 10.0), (18.0, 20.0))]
    monkeypatch.setattr(cpu_time.CpuTimes, "machine", lambda self: machine.pop(0))
    shares = cpu_time.Shares(cpu_time.CpuTimes())
    mac.usage = {77: Used(user_s=1), 78: Used(user_s=2)}
    shares.since_last([77, 78])
    del mac.rows[78]
    mac.usage = {77: Used(user_s=1, child_user_s=8, child_system_s=2)}  # 78 used 10 s in all, and was waited for
    assert shares.since_last([77, 78]).known() == {"job_cpu_share": 0.8, "others_cpu_share": 0.1}
    mac.usage = {}
    assert cpu_time.CpuTimes().processes([77]) == {}  # another user's


def test_the_memory_of_a_run_is_the_largest_footprint_of_its_processes(
    mac: LibSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = process_tree.ProcessTree("t", str(tmp_path / "pids"))
    mac.usage = {77: Used(footprint=5, largest=7), 78: Used(footprint=6, largest=9)}
    tree.weigh(77)
    assert tree.largest_bytes == 0  # Linux: wait4 tells it
    monkeypatch.setattr(process_tree, "LINUX", False)
    tree.weigh(77)
    assert tree.largest_bytes == 7
    tree.remember({pid: row for pid in (77, 78) if (row := process_tree.row_darwin(pid))})
    assert tree.largest_bytes == 9
    tree.weigh(99)
    assert tree.largest_bytes == 9 and process_tree.rusage_darwin(99) is None


# -- "Application Support" --------------------------------------------------------------------------------------------


def test_the_home_of_a_mac_has_no_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MPSQ_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(paths, "checkout", lambda: None)
    monkeypatch.setattr("sys.platform", "darwin")
    assert paths.home() == tmp_path / ".local/share/mpsq"


def test_a_compilers_cache_is_named_without_a_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "locks"))
    plain = tmp_path / "cache"
    assert launch.without_spaces(plain) == plain and not plain.exists()
    spaced = tmp_path / "Application Support" / "cache"
    link = launch.without_spaces(spaced)
    assert " " not in str(link) and link.parent == locks.lock_dir()
    assert launch.without_spaces(spaced) == link and link.samefile(spaced)
    monkeypatch.setenv("MPSQ_LOCKS", str(tmp_path / "my locks"))
    assert " " in str(launch.without_spaces(spaced))  # then nothing helps, and nothing is stopped by it


# -- Metal without memory ---------------------------------------------------------------------------------------------

GIVEN_UP = (
    b"Error: command buffer exited with error status.\n"
    b"\tThe Metal Performance Shaders operations encoded on it may not have completed.\n\tError: \n\t(null)\n"
    b"\tInsufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
    b"\t<AGXG13XFamilyCommandBuffer: 0x3601ec380>\n    label = <none> \n"
)
ABORTED = (
    b"libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution "
    b"failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n"
    b"resource_tracker.py:216: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects\n"
)


def test_a_command_buffer_that_metal_gave_up_makes_the_run_invalid(layout: Layout) -> None:
    """torch (issues 125442, 123171) only lets Metal print it and goes on."""
    engine = open_engine(layout.db, keep_open=True)
    with writing(engine) as connection:
        spec = JobSpec(kind="command", name="x", argv=("true",))
        jobs.submit(connection, "test", 0, [NewJob(spec, 1, Terms())], [(0, 1)])
        run = claim_next(connection)
    assert run is not None
    folder = RunDir(layout.run_dir(run.id))
    folder.path.mkdir(parents=True)
    folder.stderr.write_bytes(b"x\n" + GIVEN_UP + b"step 7\n" * 2000)
    finish.finish(engine, run, folder, Ending(Outcome.SUCCEEDED, 0), None)
    engine.dispose()
    with read.reading(layout.db) as connection:
        (row,) = named_rows.runs(connection)
        (taint,) = named_rows.detail(connection, "taints", run.run_id)
    assert (row["outcome"], row["valid"], taint["kind"]) == ("SUCCEEDED", 0, "wrong_result")
    assert "buffer (Insufficient Memory)" in taint["detail"]


def test_why_metal_gave_up() -> None:
    assert failed_on_metal(b"all went well\n") is None
    other = GIVEN_UP.replace(b"Insufficient Memory (00000008:kIOGPU", b"Caused GPU Timeout Error (00000002:kIOGPU")
    assert "(Caused GPU Timeout" in str(failed_on_metal(other))
    assert "command buffer:" in str(failed_on_metal(b"Error: command buffer exited with error status.\n"))


def test_mlx_without_memory_aborts_and_is_called_out_of_memory() -> None:
    killed = Ending(Outcome.KILLED, signal=6, reason="SIGABRT: it crashed")
    ended = with_last_words(killed, last_line(ABORTED), ABORTED)
    assert ended.outcome is Outcome.OUT_OF_MEMORY and "Insufficient Memory" in ended.reason
    assert with_last_words(killed, "x", b"Abort trap: 6\n") == killed
    said = "RuntimeError: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferC)"
    assert with_last_words(Ending(Outcome.FAILED, 1), said).outcome is Outcome.OUT_OF_MEMORY


# -- Apple's tools, limits and versions -------------------------------------------------------------------------------


def test_a_shim_of_apples_is_no_compiler_until_the_tools_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """/usr/bin/git and /usr/bin/g++ are on every Mac; called without the tools they open a window."""
    places = {"git": "/usr/bin/git", "clang++": "/opt/homebrew/bin/clang++"}
    monkeypatch.setattr(find_tool.shutil, "which", places.get)
    assert find_tool.find("git", platform="darwin", installed=lambda: False) is None
    assert find_tool.find("git", platform="darwin", installed=lambda: True) == "/usr/bin/git"
    assert find_tool.find("clang++", platform="darwin", installed=lambda: False) == "/opt/homebrew/bin/clang++"
    assert find_tool.find("git", platform="linux", installed=lambda: False) == "/usr/bin/git"
    assert find_tool.find("g++", platform="darwin", installed=lambda: False) is None


def test_without_apples_tools_there_is_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_commands.sys, "platform", "darwin")
    monkeypatch.setattr(git_commands.find_tool, "find", lambda name: None)
    with pytest.raises(git_commands.GitFailed, match="xcode-select --install"):
        git_commands.git(Path("/"), "--version")


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((256, resource.RLIM_INFINITY), (4096, resource.RLIM_INFINITY)),
        ((256, 1024), (1024, 1024)),
        ((9999, 20000), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_jobs_may_open_as_many_files_as_under_the_service(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], wanted: tuple[int, int] | None
) -> None:
    done: list[tuple[int, int]] = []
    monkeypatch.setattr(main_loop.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(main_loop.resource, "setrlimit", lambda which, pair: done.append(pair))
    main_loop.allow_open_files("linux")
    assert not done
    main_loop.allow_open_files("darwin")
    assert done == ([wanted] if wanted else [])


def test_a_reader_that_has_left_is_noticed_where_only_what_is_asked_for_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XNU (sys_generic.c, poll) turns POLLIN and POLLHUP into a filter and the lack of both into none: it slept on."""

    class Poll:
        def register(self, fd: int, events: int) -> None:
            self.asked = events

        def poll(self, _ms: float) -> list[tuple[int, int]]:
            return [(1, select.POLLHUP)] if self.asked & (select.POLLIN | select.POLLHUP) else []

    reads, writes = os.pipe()
    os.close(reads)
    monkeypatch.setattr(low_priority.select, "poll", Poll)
    with pytest.raises(BrokenPipeError):
        low_priority.Wait(writes)(1.0)
    os.close(writes)
