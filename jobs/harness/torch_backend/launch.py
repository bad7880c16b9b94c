"""Start the processes of --gpus by torchrun's own launcher, and end as what ended them did.

torchrun itself would end with exit code 1 whatever its processes ended with. Here a rank's exit code, and the signal
that ended it, is the run's. Nothing listens beyond the loopback interface: ranks find each other through a file.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness import command_line, prepared, processes
from harness.command_line import Options
from harness.device import unavailable
from harness.errors import JobError, UsageError
from harness.workload import resolve
from mpsq_report import Reporter

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_END_S = 5
"""How long a rank may take to end when another one has failed; SIGTERM ends one at once."""


def ranks(workload: Mapping[str, Any], argv: Sequence[str] | None) -> int | None:
    """Run the workload in the processes that --gpus asks for, and return the exit code. Return None if this process is
    to train itself: it is a rank, it is alone, it prepares a run, or its command line is wrong, which it will say."""
    words = sys.argv[1:] if argv is None else argv
    if processes.is_rank():
        processes.end_with_parent()
    if processes.is_rank() or prepared.is_asked() or not any(word.partition("=")[0] == "--gpus" for word in words):
        return None
    try:
        options = command_line.parse(resolve(workload), words)
    except UsageError:
        return None
    return _launch(options, words) if options.gpus > 1 else None


def _launch(options: Options, words: Sequence[str]) -> int:
    gpus = torch.cuda.device_count()  # by NVML: this process is to take no memory of a GPU
    if options.device in ("cuda", "auto") and 0 < gpus < options.gpus:
        return _conclude(unavailable("cuda", f"--gpus {options.gpus}, and torch sees {gpus}", (), "torch"))
    events = os.environ.get("MPSQ_EVENTS")  # in the folder of a run, which is removed with it
    folder = Path(tempfile.mkdtemp(prefix="mpsq-ranks-", dir=Path(events).parent if events else None))
    os.environ |= {
        processes.FOLDER: str(folder),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_END_S),
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        "NCCL_SOCKET_IFNAME": _LOOPBACK,
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.gpus)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # what went wrong is said here
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=options.gpus,
        max_restarts=0,
        run_id="mpsq",
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr="127.0.0.1",
    )
    try:
        elastic_launch(config, sys.executable)(sys.argv[0], *words)
    except ChildFailedError as error:
        codes = {number: failure.exitcode for number, failure in error.failures.items()}
        return _end(folder, codes)
    except SignalException as error:
        shutil.rmtree(folder, ignore_errors=True)
        return _die(error.sigval)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _end(folder: Path, codes: Mapping[int, int]) -> int:
    """End as the rank did that failed first: its words and exit code, or its signal."""
    told = {number: said for number in codes if (said := processes.failure_of(folder, number)) is not None}
    shutil.rmtree(folder, ignore_errors=True)
    number = cause(codes, told)
    if number in told:
        said = told[number]
        return _conclude(JobError(f"rank {number}: {said['message']}", said["hint"], said["code"], said["note"]))
    code = codes[number]
    if -code not in (signal.SIGINT, signal.SIGTERM):  # by which a run is stopped: every process gets them
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
        _conclude(JobError(f"rank {number} {how} and said nothing", note="rank_lost"))
    return code if code > 0 else _die(-code)


def cause(codes: Mapping[int, int], told: Mapping[int, Mapping[str, Any]]) -> int:
    """Return the rank that failed first. `codes` are exit codes, negative for signals, and `told` what ranks wrote.

    A rank writes before it is gone, so that the first to write is the first of those that could; ranks that lost
    another one did not fail by themselves. The launcher ends ranks by SIGTERM when one has failed.
    """
    by_itself = {number: said["at"] for number, said in told.items() if not said["lost_peer"]}
    if by_itself:
        return min(by_itself, key=by_itself.__getitem__)
    silent = [number for number in codes if number not in told]
    if silent:
        return min(silent, key=lambda number: (codes[number] == -signal.SIGTERM, number))
    return min(told, key=lambda number: told[number]["at"])


def _conclude(problem: JobError) -> int:
    """Tell the queue and the user of an error; return its exit code."""
    report = Reporter()
    if problem.note:
        report.note(problem.note, problem.message)
    report.bye(False)
    return problem.show()


def _die(number: int) -> int:
    """End this process by a signal, as it would have if it had trained itself."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
