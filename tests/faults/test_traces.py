"""The simulation does what the product does: the calls of real processes, each with the one before it, occur there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner.host import reserve
from queue_runner.model import Selector
from tests.faults import traces
from tests.patience import until
from tests.process_support import needs_linux
from tests.queue_support import Queue, warden_pid

pytestmark = [pytest.mark.process, needs_linux]

ROLES = ("worker", "warden")
REST = {
    ("sql COMMIT", "sql BEGIN IMMEDIATE"),
    ("close lane-machine.turn", "sql BEGIN"),
    ("sql ROLLBACK", "flock lane-machine.turn"),
}
"""While the rest of the run whose warden was killed holds the lane, a real worker stores why it waits. Where the look
at the GPU takes longer than a step, it keeps the lane, reads again, and looks again at who waits for the machine."""
SEEDS = 12
ROOT = Path(__file__).parents[2]


def real(queue: Queue, folder: Path) -> traces.Pairs:
    """Return the traces of a run that ends, one that is cancelled, one whose warden is killed, and one whose worker
    is killed."""
    from queue_runner.control import cancellation

    folder.mkdir()
    log = (folder.parent / "worker.log").open("ab")

    def start() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.faults.traced", str(folder)]
        return subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log)

    queue.layout.reserve.write_bytes(bytes(reserve.SIZE_BYTES))  # the simulation keeps none
    with queue.layout.config.open("a") as settings:
        settings.write("keep_awake = false\nbackup_every_s = 0\nhold_after_failures = 0\n")
    worker = start()
    try:
        line = '{"type":"iter","t":1.0,"i":%d,"dur_s":0.5,"loss":1.0,"phase":"measure"}\\n'
        lines = "; ".join(f"printf '{line % number}' >> $MPSQ_EVENTS; sleep 0.3" for number in range(3))
        queue.submit(lines)
        queue.done(1)
        for number in (2, 3, 4):
            queue.submit("echo x >> $J; sleep 3" if number == 4 else "echo x >> $J; sleep 300")
            until(lambda: len(queue.written()) == number - 1, "the trainer")  # noqa: B023
            if number == 2:
                cancellation.cancel(queue.layout, [Selector("2", job=2)], grace_s=0.0, within_s=0.0)
            elif number == 3:
                os.kill(warden_pid(queue.layout, "3.1"), signal.SIGKILL)
            else:
                worker.kill()
                worker.wait()
                worker = start()
            queue.done(number)
    finally:
        worker.kill()
        worker.wait()
        log.close()
    return traces.of_folder(folder)


def test_real_processes_do_what_simulated_ones_do(queue: Queue, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.faults", "--traces", str(SEEDS)]
    output = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    simulated = {role: {tuple(pair) for pair in pairs} for role, pairs in json.loads(output).items()}
    recorded = real(queue, tmp_path / "traces")
    for role in ROLES:
        missing = recorded[role] - simulated[role] - REST
        assert not missing, f"only a real {role} does this: {sorted(missing)}"
        calls = {now for _, now in simulated[role]} - {now for _, now in recorded[role]}
        assert not calls, f"only a simulated {role} does this: {sorted(calls)}"
