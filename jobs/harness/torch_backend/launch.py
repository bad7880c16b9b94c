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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from harness import command_line, loop
from harness.command_line import Options
from harness.errors import JobError, UsageError
from harness.installing import unavailable
from harness.torch_backend import ddp, ranks
from mpsq_report import Reporter

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_END_S = 5
"""How long a rank may take to end when another one has failed; SIGTERM ends one at once."""


def run(workload: Mapping[str, Any], words: Sequence[str], train: Callable[..., int]) -> int:
    """Run the workload in the processes that --gpus requests, or, in one of those, as that rank. Return the exit code.

    `train(report, failed)` runs it in this process: also where it prepares a run, is alone, or has a command line that
    is wrong, which it reports.
    """
    if ranks.is_rank():
        ranks.begin()
        ddp.leave(train(Reporter("" if ranks.rank() else None), ranks.write_failure))
    if loop.is_preparing():
        return train()
    try:
        options = command_line.parse(workload, words)
    except UsageError:
        return train()
    return _launch(options, words) if options.gpus > 1 else train()


def _launch(options: Options, words: Sequence[str]) -> int:
    gpus = torch.cuda.device_count()  # by NVML: this process is to take no memory of a GPU
    if options.device in ("cuda", "auto") and 0 < gpus < options.gpus:
        return _conclude(unavailable("cuda", f"--gpus {options.gpus}, and torch sees {gpus}", (), "torch"))
    events = os.environ.get("MPSQ_EVENTS")  # in the folder of a run, which is removed with it
    folder = Path(tempfile.mkdtemp(prefix="mpsq-ranks-", dir=Path(events).parent if events else None))
    os.environ |= {
        ranks.FOLDER: str(folder),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_END_S),
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        "NCCL_SOCKET_IFNAME": _LOOPBACK,
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.gpus)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # _end reports the failure
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
    """End as the rank did that failed first: with its error and exit code, or by its signal."""
    failures = {rank: failure for rank in codes if (failure := ranks.failure_of(folder, rank)) is not None}
    shutil.rmtree(folder, ignore_errors=True)
    first = first_failed(codes, failures)
    if first in failures:
        failure = failures[first]
        return _conclude(
            JobError(f"rank {first}: {failure['message']}", failure["hint"], failure["code"], failure["note"])
        )
    code = codes[first]
    if -code not in (signal.SIGINT, signal.SIGTERM):  # by which a run is stopped: every process gets them
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
        _conclude(JobError(f"rank {first} {how} without a message", note="rank_lost"))
    return code if code > 0 else _die(-code)


def first_failed(codes: Mapping[int, int], failures: Mapping[int, Mapping[str, Any]]) -> int:
    """Return the rank that failed first. `codes` are exit codes, negative for signals; `failures` the errors that ranks
    wrote.

    A rank writes before it ends, so the first to write is the first of those that could; ranks that lost another one
    did not fail by themselves. The launcher ends ranks by SIGTERM when one has failed.
    """
    causes = {rank: failure["at"] for rank, failure in failures.items() if not failure["lost_peer"]}
    if causes:
        return min(causes, key=causes.__getitem__)
    silent = [rank for rank in codes if rank not in failures]
    if silent:
        return min(silent, key=lambda rank: (codes[rank] == -signal.SIGTERM, rank))
    return min(failures, key=lambda rank: failures[rank]["at"])


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
