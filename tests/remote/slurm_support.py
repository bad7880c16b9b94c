"""A real Slurm on this host: munged, slurmctld and a slurmd for each node, on ports of their own, ended by their ids.

The nodes share the host, so each has locks of its own and a name that stands in for the machine's id.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from queue_runner.remote.node import sweep
from tests.process_support import words_of
from tests.queue_support import Queue, until

TIMES = 10 if os.environ.get("MPSQ_CAMPAIGN") == "long" else 1
"""How often each fault is planted."""
_CONF = """\
ClusterName=mpsqtest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
KillWait=5
SchedulerParameters=sched_interval=1,sched_min_interval=200000
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmctldParameters=preempt_send_user_signal
PartitionName=main Nodes=ALL Default=YES State=UP MaxTime=60 PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL State=UP OverSubscribe=EXCLUSIVE PriorityTier=9 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 Gres=gpu:4"
_PYTHON = """\
#!/bin/sh
name=${{SLURMD_NODENAME:-front}}
export MPSQ_LOCKS={folder}/locks-$name MPSQ_TEST_MACHINE=$name
exec {python} "$@"
"""


def _ports(count: int) -> list[int]:
    """Free ports of the loopback device."""
    sockets = [socket.socket() for _ in range(count)]
    for free in sockets:
        free.bind(("127.0.0.1", 0))
    numbers = [free.getsockname()[1] for free in sockets]
    for free in sockets:
        free.close()
    return numbers


class Slurm:
    """A cluster of nodes n1, n2, ... in a folder. `shared` is on all of them, `python` is their interpreter. `settings`
    replace those of slurm.conf."""

    def __init__(self, folder: Path, n_nodes: int, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.nodes = [f"n{number}" for number in range(1, n_nodes + 1)]
        self.shared = folder / "shared"
        self.python = folder / "python"
        self.conf = folder / "slurm.conf"
        for name in ("state", "shared", "local", *(f"spool.{node}" for node in self.nodes)):
            (folder / name).mkdir(mode=0o755)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        host = socket.gethostname().partition(".")[0]
        for number in range(4):
            (folder / f"gpu{number}").touch()
        gres = f"NodeName=n[1-{n_nodes}] Name=gpu File={folder}/gpu[0-3]\n"  # in place of GPUs
        (folder / "gres.conf").write_text(gres)
        ports = _ports(1 + n_nodes)
        of_node = zip(self.nodes, ports[1:], strict=True)
        nodes = "\n".join(_NODE.format(name=node, host=host, port=port) for node, port in of_node)
        conf = _CONF.format(folder=folder, host=host, user=user, ports=ports, nodes=nodes)
        for name, text in settings.items():
            conf, n_replaced = re.subn(f"(?m)^{name}=.*$", f"{name}={text}", conf)
            assert n_replaced == 1, name
        self.conf.write_text(conf)
        self.python.write_text(_PYTHON.format(folder=folder, python=sys.executable))
        self.python.chmod(0o755)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def config(self) -> str:
        """The profile of this cluster in a config.toml."""
        return (
            f'[on.slurm]\nfolder = "{self.shared}"\npython = "{self.python}"\nlocal = "{self.folder}/local"\n'
            'poll = "1s"\ngrace = "3s"\n'
        )

    def start(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        self._run("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                  f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munge.pid",
                  f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed")  # fmt: skip
        until((self.folder / "munge.socket").exists, "munged")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        until(self._is_idle, "idle nodes")

    def start_controller(self) -> None:
        self._run("slurmctld", "slurmctld", "-D", "-i")

    def start_node(self, node: str) -> None:
        self._run(node, "slurmd", "-D", "-N", node)

    def kill(self, name: str) -> None:
        """Kill slurmctld or the slurmd of a node."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def ask(self, *argv: str) -> str:
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout

    def _is_idle(self) -> bool:
        try:
            return self.ask("sinfo", "-h", "-N", "-o", "%t").split() == ["idle"] * 2 * len(self.nodes)
        except subprocess.SubprocessError:
            return False

    def _run(self, name: str, *argv: str) -> None:
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        env.pop("PYTHONPATH", None)
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                argv, env=env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def sweep(self) -> None:
        """Remove the homes of blocks that Slurm killed, as the next block of their node does."""
        until(lambda: not self.jobs_left(), "the end of the killed blocks")
        local = self.folder / "local"
        for lock in local.glob("*.lock"):
            os.utime(lock, (1, 1))
        sweep(local)

    def jobs_left(self) -> list[psutil.Process]:
        """What lives of blocks: supervisors, workers, wardens, jobs."""
        return [one for one in self._processes() if self._is_of_a_block(one)]

    def _is_of_a_block(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            env = process.environ()
            return "SLURM_JOB_ID" in env or env.get("MPSQ_HOME", "").startswith(str(self.folder))
        return False

    def _processes(self) -> list[psutil.Process]:
        """The processes that know this cluster, and Slurm's own: slurmstepd has another parent and no environment that
        could be read, but the folder in which its slurmd was started."""
        processes = []
        for process in psutil.process_iter(["pid"]):
            with contextlib.suppress(psutil.Error):
                ours = process.pid in (os.getpid(), os.getppid())
                if not ours and (process.environ().get("SLURM_CONF") == str(self.conf) or self._is_a_daemon(process)):
                    processes.append(process)
        return processes

    def _is_a_daemon(self, process: psutil.Process) -> bool:
        return process.name().startswith("slurm") and process.cwd() == str(self.folder)

    def stop(self) -> None:
        for name in [*self.nodes, "slurmctld", "munged"]:
            if (process := self.processes.pop(name, None)) is not None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait()
                process.kill()
                process.wait()
        left = self._processes()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=10)
        assert self._processes() == []


def running(n_nodes: int = 2, settings: Mapping[str, str] | None = None) -> Iterator[Slurm]:
    """Yield a cluster that is up, and end it. Its folder has a short name: the path of a socket in the spool of a node,
    of which sun_path takes 108 bytes, else makes every start of a job fail."""
    with tempfile.TemporaryDirectory(prefix="mpsq-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Slurm(Path(folder), n_nodes, settings or {})
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


def front_of(queue: Queue, cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Yield the queue as one whose machine can submit to the cluster; nothing of it is left on a node afterwards."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("MPSQ_TEST_MACHINE", "front")
    queue.layout.config.write_text(queue.layout.config.read_text() + cluster.config)
    yield queue
    until(lambda: not cluster.jobs_left(), f"an empty node: {[words_of(one) for one in cluster.jobs_left()]}")
    queue.close()
    assert list((cluster.folder / "local").iterdir()) == []
