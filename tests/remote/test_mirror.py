"""What a box sends back is checked before it is stored: the box is a stand-in here, and lies."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from msgspec import to_builtins

from queue_runner.host import locks
from queue_runner.paths import Layout
from queue_runner.remote import box, mirror, ssh
from queue_runner.remote.block import Folder, Instructions, PlannedRun
from queue_runner.remote.box import BEGAN
from queue_runner.remote.json_files import write_json
from queue_runner.remote.link import Answered, Link
from queue_runner.remote.mirror import LIMIT, Mirror, left_out
from queue_runner.remote.profile import Profile
from queue_runner.remote.target import Refused, Unreachable

TOKEN = "a" * 32


def take(tmp_path: Path, entry: Any, data: bytes = b"x", **state: Any) -> Folder:
    """Let a mirror of run 1.1 take one file in."""
    folder = Folder(tmp_path / "block")
    folder.path.mkdir(exist_ok=True)

    def read(count: int) -> bytes:
        if count > len(data):
            raise Unreachable("cut")
        return data[:count]

    Mirror(folder, ["1.1"]).take({"files": [entry], **state}, read)
    return folder


@pytest.mark.parametrize(
    "entry",
    [
        ["/etc/cron.d/x", 0, 1],
        ["../x", 0, 1],
        ["runs/1.1/../../../x", 0, 1],
        ["runs/1.1/out/../../x", 0, 1],
        ["runs/1.1//x", 0, 1],
        ["runs/1.1/./x", 0, 1],
        ["runs/1.1/a\0b", 0, 1],
        ["runs/1.1", 0, 1],
        ["runs/9.9/stdout.log", 0, 1],
        ["block.json", 0, 1],
        ["snapshots/a/b/c", 0, 1],
        ["runs/1.1/stdout.log", -1, 1],
        ["runs/1.1/stdout.log", 0, -1],
        ["runs/1.1/stdout.log", 7, 1],
        ["runs/1.1/stdout.log", 0, 1 << 60],
        ["runs/1.1/began.json", 0, 1 << 20],
        ["runs/1.1/result.mpsq", 7, 1],
        ["runs/1.1/result.mpsq", 0, 1 << 30],
        ["runs/1.1/stdout.log", 0, True],
        ["runs/1.1/stdout.log", 0],
        {"name": "runs/1.1/stdout.log"},
        ["runs/1.1/" + "d/" * 100 + "x", 0, 1],
        ["runs/1.1/" + "n" * 300, 0, 1],
    ],
)
def test_a_file_that_is_of_no_run_is_refused(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(Refused):
        take(tmp_path, entry)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"stdout.log"}
    assert not any(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


def test_streams_grow_and_a_result_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    take(tmp_path, ["runs/1.1/stdout.log", 0, 3], b"abc")
    folder = take(tmp_path, ["runs/1.1/stdout.log", 3, 2], b"de", fenced=True, fence={"pid": 1}, ended={}, more=True)
    assert folder.run("1.1").stdout.read_text() == "abcde"
    assert folder.fence.exists() and not folder.ended.exists()  # more is to come
    assert Mirror(folder, ["1.1"]).have() == ({"runs/1.1/stdout.log": 5}, [])
    result = folder.result("1.1")
    take(tmp_path, ["runs/1.1/result.mpsq", 0, 2], b"ab", more=True)
    with pytest.raises(Unreachable):
        take(tmp_path, ["runs/1.1/result.mpsq", 2, 9], b"c")
    assert not result.exists()
    assert Mirror(folder, ["1.1"]).have() == ({"runs/1.1/stdout.log": 5, "runs/1.1/result.mpsq": 2}, [])
    take(tmp_path, ["runs/1.1/result.mpsq", 2, 2], b"cd", ended={"why": ""})
    assert result.read_bytes() == b"abcd" and folder.ended.exists()
    assert Mirror(folder, ["1.1"]).have() == ({}, ["1.1"])


def test_a_result_is_whole_although_the_worker_died_before_it_got_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_box = Folder(tmp_path / "box")
    on_box.run("1.1").path.mkdir(parents=True)
    (on_box.run("1.1").path / BEGAN).write_text('{"at": 10.0}')
    on_box.result("1.1").write_bytes(b"abcd")
    on_box.ended.write_text('{"why": ""}')
    with monkeypatch.context() as dying:
        dying.setattr(Path, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take(tmp_path, ["runs/1.1/result.mpsq", 0, 4], b"abcd")
    folder = Folder(tmp_path / "block")
    assert not folder.result("1.1").exists()
    of_run = Mirror(folder, ["1.1"])
    have, done = of_run.have()
    request = {"have": have, "done": done, "requests": [], "limit": LIMIT}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    state, _ = box.sync(on_box.path)
    of_run.take(to_builtins(state), lambda count: bytes(count))
    assert folder.result("1.1").read_bytes() == b"abcd" and folder.ended.exists()


def test_the_times_of_a_run_come_with_the_answer(tmp_path: Path) -> None:
    for started in (None, 11.0):
        folder = take(tmp_path, ["runs/1.1/stdout.log", 0, 0], b"", begun={"1.1": {"at": 10.0, "started": started}})
        beginning = folder.beginning("1.1")
        assert beginning is not None and (beginning.at, beginning.started) == (10.0, started)
    with pytest.raises(Refused):
        take(tmp_path, ["runs/1.1/stdout.log", 0, 0], b"", begun={"../9.9": {"at": 10.0}})


def test_a_file_of_any_name_comes_back(tmp_path: Path) -> None:
    """Also one that is named like the temporary files of mpsq."""
    take(tmp_path, ["runs/1.1/out/.partial-ab", 0, 2], b"ab")
    folder = take(tmp_path, ["runs/1.1/out/.partial-ab", 2, 1], b"c")
    assert (folder.run("1.1").out / ".partial-ab").read_text() == "abc"
    assert Mirror(folder, ["1.1"]).have()[0] == {"runs/1.1/out/.partial-ab": 3}


@pytest.mark.parametrize("name", ["d/" * 100 + "x", "n" * 300, "taken/below", "taken", "\ud800"])
def test_a_file_of_a_job_that_cannot_be_here_keeps_nothing_else_back(tmp_path: Path, name: str) -> None:
    """Another has its name, it has come to another length, or no file can have it. The box does not send it again."""
    take(tmp_path, ["runs/1.1/out/taken", 0, 1])
    folder = Folder(tmp_path / "block")
    sent = iter([b"lost", b"kept"])
    files = [[f"runs/1.1/out/{name}", 0, 4], ["runs/1.1/stdout.log", 0, 4]]
    Mirror(folder, ["1.1"]).take({"files": files}, lambda _: next(sent))
    assert folder.run("1.1").stdout.read_text() == "kept"
    assert left_out(folder, "1.1") == [name]
    have, _ = Mirror(folder, ["1.1"]).have()
    assert have[f"runs/1.1/out/{name}"] > LIMIT and (folder.run("1.1").out / "taken").read_text() == "x"


def test_the_bytes_of_all_files_of_a_run_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "MOST_BYTES", 5)
    take(tmp_path, ["runs/1.1/out/a", 0, 3], b"abc")
    folder = Folder(tmp_path / "block")
    of_run = Mirror(folder, ["1.1"])
    of_run.have()
    files = [["runs/1.1/out/b", 0, 2], ["runs/1.1/out/a", 3, 1], ["runs/1.1/out/c", 0, 3]]
    files += [["runs/1.1/stderr.log", 0, 3], ["runs/1.1/result.mpsq", 0, 2]]
    of_run.take({"files": files}, lambda count: bytes(count))
    assert left_out(folder, "1.1") == ["a"]
    assert {path.name for path in folder.run("1.1").out.iterdir()} == {"b", "c"}
    assert folder.result("1.1").exists()  # the output leaves the others their part
    with pytest.raises(Refused, match="more than the 5 bytes"):
        take(tmp_path, ["runs/1.1/stdout.log", 0, 6], b"abcdef")


def test_an_answer_is_not_longer_than_was_asked_for(tmp_path: Path) -> None:
    half = LIMIT // 2 + 1
    entries = [[f"runs/1.1/out/{name}", 0, half] for name in "ab"]
    with pytest.raises(Refused, match="more than"):
        Mirror(Folder(tmp_path), ["1.1"]).take({"files": entries}, lambda count: bytes(count))


def reach(far: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each call look at this block on its box."""

    @contextlib.contextmanager
    def call(_: Link, verb: str, token: str, feed: Callable[[IO[bytes]], None], *limits: float) -> Iterator[Answered]:
        sent = io.BytesIO()
        feed(sent)
        monkeypatch.setattr("sys.stdin", io.StringIO(sent.getvalue().decode()))
        state, send = box.sync(far.path)
        yield Answered(to_builtins(state), io.BytesIO(b"".join(send())))

    monkeypatch.setattr(Link, "call", call)


def test_a_block_whose_copy_here_was_removed_is_ended(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent for ever: the copy has nothing of the runs of which the box tells."""
    far = Folder(tmp_path / "far")
    far.run("1.1").path.mkdir(parents=True)
    far.run("1.1").stdout.write_text("more than nothing")
    (far.run("1.1").path / BEGAN).write_text('{"at": 10.0}')
    far.fence.write_text("{}")
    reach(far, monkeypatch)
    made = ssh.Ssh("box", Profile(name="box", host="box", poll_s=0), layout)
    lock = locks.try_lock(far.path / "home.lock")
    assert lock is not None
    with lock:
        assert made.look(TOKEN).state == "running" and far.stop.exists()
    far.ended.write_text("{}")
    assert made.look(TOKEN).state == "gone" and not made.folder(TOKEN).path.exists()


def test_a_block_whose_results_are_still_coming_is_not_gone(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than its grace: the runs were LOST."""
    far = Folder(tmp_path / "far")
    far.run("1.1").out.mkdir(parents=True)
    (far.run("1.1").out / "large").write_bytes(bytes(20))
    (far.run("1.1").path / BEGAN).write_text('{"at": 10.0}')
    far.result("1.1").write_bytes(b"result")
    for path in (far.fence, far.ended):
        path.write_text("{}")

    def at_the_front(name: str) -> tuple[ssh.Ssh, Folder]:
        made = ssh.Ssh("box", Profile(name="box", host="box", poll_s=0), Layout(layout.home / name))
        folder = made.folder(TOKEN)
        folder.path.mkdir(parents=True)
        run = PlannedRun(job_id=1, number=1, repeat=1, attempt=1, position=1, created_at=0.0)
        write_json(folder.instructions, Instructions(1, "", 0, [], [run], {}, TOKEN, "box", "", box=True))
        return made, folder

    reach(far, monkeypatch)
    for module in (mirror, ssh):
        monkeypatch.setattr(module, "LIMIT", 8)
    made, folder = at_the_front("full")
    lock = locks.try_lock(far.path / "home.lock")
    assert lock is not None
    with lock, monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
        assert "its disk is full" in made.look(TOKEN).words
    made, folder = at_the_front("slow")
    states = []
    with monkeypatch.context() as slow:
        slow.setattr(ssh, "FETCH_S", 0.0)
        while not folder.ended.exists():
            states.append(made.look(TOKEN).state)
    assert states == ["running"] * 3 + ["gone"] and folder.result("1.1").read_bytes() == b"result"
    made, folder = at_the_front("quick")
    assert made.look(TOKEN).state == "gone"
    assert folder.ended.exists() and folder.result("1.1").exists()
