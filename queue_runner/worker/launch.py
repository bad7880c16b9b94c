"""Prepare the start of a claimed run: its folder and its environment (docs/supervision.md, Start and end, step 4)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from queue_runner import lanes
from queue_runner.config_file import Config
from queue_runner.control import checkpoints
from queue_runner.errors import MpsqError
from queue_runner.host import job_environments, job_secrets, locks, redact, trash
from queue_runner.host.lane_locks import Hold
from queue_runner.host.processes import boot_id
from queue_runner.host.run_dir import RunDir
from queue_runner.model import RunId
from queue_runner.paths import Layout, preflight_cache
from queue_runner.source import verify, working_copy
from queue_runner.spec import JobSpec
from queue_runner.store.jobs import Claimed
from queue_runner.workloads import command_line

SPEC_VERSION = 1
_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Variables by which libraries learn how many threads to start; what the user has set is kept."""


_STARTS = 'i={}; while [ $i -gt 0 ]; do sh -c "$0"; "$@" || :; i=$((i - 1)); done; sh -c "$0"'
"""A shell script that starts a program a number of times before its run (--warmup), and runs the command of --prepare
before each of these starts and before the run."""


def prepare(
    layout: Layout,
    config: Config,
    run: Claimed,
    lane: Hold,
    origin: RunId | None,
    code: verify.StartCode,
    is_checked: bool,
    log: Callable[[str], None],
) -> RunDir:
    """Create the run's folder with what the warden needs. A folder left by an incomplete start is replaced; one in
    which a run has left anything is moved aside.

    `origin` is the run whose checkpoint it resumes from; `code` says where it starts. A job that `is_checked` has
    computed the CPU's loss in an earlier round, and its run needs no preparation.

    Raises: OSError when the disk refuses; archive.Damaged when the job's copy of its code is gone; checkpoints.Gone
    when the checkpoint is; job_secrets.Missing when its environment or a secret is.
    """
    folder = RunDir(layout.run_dir(run.id))
    if folder.has_run():
        aside = folder.set_aside(layout.set_aside)
        log(f"run {run.id}: another run of this name has left its folder, which is moved to {aside}")
    trash.remove(folder.path)
    folder.path.mkdir(mode=0o700, parents=True)
    (folder.path / "warden").mkdir(mode=0o700)
    if code.copy is not None:
        cwd = working_copy.make(layout.snapshots, run.spec, folder.tree, code.copy)
        command = working_copy.command(layout.snapshots, run.spec, folder.tree, code.copy)
    else:
        command = command_line.build_argv(run.spec.in_round(run.repeat), layout.snapshots)
        cwd = Path(run.spec.cwd)
    command = [*run.spec.within, *command]
    run = replace(run, spec=run.spec.changed(env=job_environments.load(layout, run.spec)))
    if code.copy is not None and (run.spec.env.get("PYTHONPATH") or code.copy.imports):
        path = working_copy.python_path(run.spec.env.get("PYTHONPATH", ""), run.spec, code.copy, folder.tree)
        run = replace(run, spec=run.spec.changed(env={**run.spec.env, "PYTHONPATH": path}))
    env = environment(layout, run, folder)
    if is_checked:
        env["MPSQ_CHECKED"] = "1"
    if origin is not None:
        env["MPSQ_RESUME"] = str(checkpoints.copy(layout, origin, folder.resume))
        if run.spec.kind == "workload":
            command += ["--resume", env["MPSQ_RESUME"]]
    revealed, values = job_secrets.reveal(layout, command, env)
    values |= job_secrets.named(layout, run.spec.secrets)
    prepares = run.spec.kind == "workload" and not is_checked and command_line.prepares(run.spec, layout.snapshots)
    warm_ups = max(run.spec.warmup if run.repeat == 1 else 0, int(prepares))
    instructions = {
        "v": SPEC_VERSION,
        "run": str(run.id),
        "tag": run.token,
        "argv": command,
        "cwd": str(cwd),
        "env": {k: v for k, v in env.items() if k.startswith("MPSQ_") or redact.is_public(k, v)},
        "stdout": str(folder.stdout),
        "stderr": str(folder.stderr),
        "events": str(folder.events),
        "boot_id": boot_id(),
        "grace_s": {"int": config.grace_int_s, "term": config.grace_term_s},
        "timeout_s": run.spec.timeout_s,
        "stall_s": dict(run.spec.stall_s),
        "output_limit_bytes": config.output_limit_bytes,
        "min_free_bytes": config.min_free_bytes,
        "allow_daemons": run.spec.allow_daemons,
        "wake": str(layout.fifo),
        "lane_shares": lane.shares,
        "cores": lanes.processors(run.spec.affinity) if run.spec.affinity else [],
    }
    if warm_ups or run.spec.prepare:
        instructions["prepare"] = {
            "env": {"MPSQ_PREPARE": "1"} if prepares else {},
            "by": []
            if prepares and not run.spec.prepare
            else ["sh", "-ec", _STARTS.format(warm_ups), run.spec.prepare.replace("{cwd}", run.spec.cwd)],
            "timeout_s": run.spec.timeout_s and run.spec.timeout_s * (warm_ups + 1),
        }
    _write_private(folder.secrets, {"argv": revealed, "env": values})
    _write_private(folder.spec, instructions)
    return folder


def _write_private(path: Path, data: Mapping[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(data))  # json.dump is slower: it has no C


def environment(layout: Layout, run: Claimed, folder: RunDir) -> dict[str, str]:
    """Return the trainer's environment with placeholders for secrets: that of `run.spec`, and our variables.

    Each question has its own compiler cache, so that the cache state, cold or warm, is meaningful.
    """
    compiled = compile_cache(layout, run)
    seed = run.spec.in_round(run.repeat).seed
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "JAX_COMPILATION_CACHE_DIR": str(compiled / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # by default, only compilations above a second are cached
        "CACHEDB": str(compiled / "tinygrad.db"),
    }
    ours = {
        "MPSQ_HOME": str(layout.home),
        "MPSQ_RUN": str(run.id),
        "MPSQ_CACHE": str(layout.cache),
        "MPSQ_OUT": str(folder.out),
        "MPSQ_CWD": run.spec.cwd,
        **caches,
        "MPSQ_PREPARED": str(_prepared(layout, run, compiled)),
        **({} if seed is None else {"MPSQ_SEED": str(seed)}),
        "PYTHONUNBUFFERED": "1",
    }
    if locks_dir := os.environ.get("MPSQ_LOCKS"):
        ours["MPSQ_LOCKS"] = locks_dir
    ours |= of_lane(run.spec)
    if run.spec.device == "cpu":
        ours["CUDA_VISIBLE_DEVICES"] = ""  # a job for the CPU must not use the accelerator
    return {
        **ours,
        **run.spec.env,
        **{k: v for k, v in ours.items() if k.startswith("MPSQ_")},
        **(caches if run.id.is_preflight else {}),  # a cache of the user's must be as the first run expects it
    }


def _prepared(layout: Layout, run: Claimed, compiled: Path) -> Path:
    """Return the file with values that the CPU computes before a run. The rows of a round that differ in device and
    mode share it, so that each seed costs that time once."""
    if run.id.is_preflight:
        return compiled / "prepared.json"
    question = run.spec.in_round(run.repeat).changed(device=None, compile=None, compile_mode="")
    return layout.cache / "prepared" / f"{question.content_hash()[:16]}.json"


def of_lane(spec: JobSpec) -> dict[str, str]:
    """Return the variables of a job's lane: the GPUs that it sees, and how many threads its libraries start."""
    variables = dict.fromkeys(_THREADS, str(spec.threads)) if spec.threads else {}
    if lanes.kind(spec.lane) == "cuda":
        variables["CUDA_VISIBLE_DEVICES"] = spec.lane
    return variables


def compile_cache(layout: Layout, run: Claimed) -> Path:
    """Return the folder of a run's compiler caches: its question's, or for a preflight one that is thrown away."""
    name = preflight_cache(str(run.id)) if run.id.is_preflight else run.spec.content_hash()[:16]
    return without_spaces(layout.cache / "compile") / name


def without_spaces(folder: Path) -> Path:
    """Return a path of the folder without white space, if one can be made. torch.compile writes the paths of its cache
    unquoted into the compiler's command line: in a home with a space every compilation for the CPU fails."""
    if not re.search(r"\s", str(folder)):
        return folder
    try:
        link = locks.lock_dir() / f"cache-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(folder, target_is_directory=True)
    except (OSError, MpsqError):
        return folder  # only compilation for the CPU is affected
    return link
