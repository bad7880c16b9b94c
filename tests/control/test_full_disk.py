"""cancel, delete and gc on a disk without a free byte: a small file system of its own, which root may mount."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.errors import MpsqError
from queue_runner.host import reserve, wakeup
from queue_runner.paths import Layout
from tests.cli_support import Cli
from tests.process_support import needs_linux
from tests.queue_support import Queue, until

pytestmark = pytest.mark.process


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system, and not in every container")
    monkeypatch.setenv("MPSQ_HOME", str(disk / "home"))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


@needs_linux
def test_what_frees_space_works_on_a_full_disk(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mpsq = Cli(capsys)
    mpsq.ok("submit", "--", "true")
    layout = Layout(small_disk / "home")
    queue = Queue(layout, tmp_path)
    try:
        queue.submit("head -c 3000000 /dev/zero > $MPSQ_EVENTS.other")
        queue.worker("", "--until-idle").wait()
        assert layout.reserve.stat().st_size == reserve.SIZE_BYTES
        waits, other = queue.submit("true"), queue.submit("true")
        for path in layout.home.glob("mpsq.db-*"):
            path.unlink()  # as where no worker is: they must be made to read
        fill(small_disk)
        with pytest.raises(OSError) as refused:
            (small_disk / "more").write_bytes(b"x" * 65536)
        assert refused.value.errno == errno.ENOSPC
        refused_submit = mpsq("submit", "--", "true")
        assert refused_submit.code == 1 and "free some space" in refused_submit.err
        looked = mpsq("status")
        assert looked.code == 0 or "disk is full" in looked.err
        mpsq("gc", "--dry-run")
        assert layout.reserve.exists(), "a look frees nothing"
        assert "cancelled" in mpsq.ok("cancel", str(waits)).out.lower()
        fill(small_disk)
        assert "deleted" in mpsq.ok("delete", "1").out
        fill(small_disk)
        assert "run" in mpsq.ok("gc", "--yes", "--keep", "last:0").out
        fill(small_disk)
        assert "cancelled" in mpsq.ok("cancel", str(other)).out.lower()
        assert not layout.reserve.exists()
        (small_disk / "ballast").unlink()
        queue.submit("true")
        queue.worker("", "--until-idle").wait()
        assert layout.reserve.exists(), "made anew once there is room"
    finally:
        queue.close()


def test_a_reserve_that_cannot_be_made_is_no_error(layout: Layout) -> None:
    layout.reserve.write_bytes(b"part")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536));"
        "from queue_runner import paths; from queue_runner.host import reserve; reserve.keep(paths.layout())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not list(layout.home.glob(".partial-*"))
    reserve.keep(layout)
    assert layout.reserve.stat().st_size == reserve.SIZE_BYTES and layout.reserve.stat().st_mode & 0o777 == 0o600


def test_a_worker_that_starts_on_a_full_disk_says_so_in_a_sentence(layout: Layout) -> None:
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "from queue_runner.worker.main_loop import main; sys.exit(main(['--until-idle']))"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert started.returncode == 1 and "hint: " in started.stderr and "Traceback" not in started.stderr, started.stderr
    with pytest.raises(MpsqError, match="cannot be made"):
        wakeup.listen(layout.home / "no folder" / "fifo")


def test_a_worker_goes_on_without_the_runs_folder(layout: Layout, tmp_path: Path) -> None:
    queue = Queue(layout, tmp_path)
    try:
        queue.worker()
        until(lambda: f"on {layout.home}" in queue.log(), "the worker")
        layout.runs.rmdir()
        queue.submit("true")
        until(lambda: "FileNotFoundError" in queue.log() or queue.rows()[0]["state"] == "DONE", "the end")
        assert queue.rows()[0]["outcome"] == "SUCCEEDED", queue.log()
    finally:
        queue.close()
