"""A run as reports, plots and pages read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queue_runner.analysis.summary import RunNumbers
from queue_runner.model import Ending, Outcome, State
from queue_runner.spec import Aim


@dataclass(frozen=True, kw_only=True)
class LastEvaluation:
    """The losses of the last evaluation, and its step: the same number twice for a run, the least and the greatest for
    several runs."""

    eval_step_first: int | None = None
    eval_step_last: int | None = None
    eval_train_loss: float | None = None
    eval_val_loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReportedRun(RunNumbers, LastEvaluation):
    """Columns of v_run, and what reports add to them. None: not reported, or not known."""

    run_id: int
    run: str
    job_id: int = 0
    number: int = 1
    group_id: int | None = None
    kind: str = "workload"
    merged: int = 0
    asked_workload: str | None = None
    log_name: str | None = None
    name: str = ""
    workload: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    device: str | None = None
    device_name: str | None = None
    compile: bool | str | None = None
    """a text is a mode of torch.compile"""
    compile_mode: str | None = None
    dtype: str | None = None
    config: str | None = None
    seed: int | None = None
    seed_by_round: int | bool | None = None
    repeat: int | None = None
    spec_hash: str = ""
    params_json: str = "{}"
    variables_json: str | None = None
    spec_code: str | None = None
    argv_json: str = "[]"
    log_metrics_json: str | None = None
    """the patterns of --metric, by name"""
    env_name: str | None = None
    gpus: int = 1
    cores: int | None = None
    threads: int | None = None
    warmup: int = 0
    prepare: str = ""
    state: str = State.DONE
    outcome: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    attempt: int = 1
    created_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    machine_hash: str | None = None
    software_hash: str | None = None
    optimizer: str | None = None
    data_name: str | None = None
    data_sha256: str | None = None
    compile_cache: str | None = None
    taints: str | None = None
    """kinds, separated by commas"""
    valid: int | bool = True
    invalid: str | None = None
    """why its numbers are not valid"""
    flops_per_iter: float | None = None
    tokens_per_iter: float | None = None
    samples_per_iter: float | None = None
    planned_iters: int | None = None
    real_s: float | None = None
    slept_s: float | None = None
    user_s: float | None = None
    sys_s: float | None = None
    prepared_s: float | None = None
    """seconds of the process before the run"""
    max_rss_bytes: int | None = None
    resumed_from: str | int | None = None
    params: int | None = None
    spec_json: str = ""
    find_max: str | None = None

    subject: str = ""
    """what the run is called"""
    machine: str | None = None
    where: str = ""
    """the machine in words, where there are several"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """requested with --set"""
    factors: Mapping[str, Any] = field(default_factory=dict)
    """the settings, versions and variables that distinguish runs"""
    planned_rows: int = 0
    """how many jobs of its workload the submission planned, and how many of them are compiled"""
    planned_compiled: int = 0
    aim: Aim = field(default_factory=Aim)
    """what its submission asks about"""
    instead_of_rounds: str = ""
    """the next step where its submission takes no further rounds"""
    earlier_levels: float = 0.0
    """the range of the logarithms of the times of earlier runs of the same question, if these have two speeds"""
    swept: frozenset[str] = frozenset()
    """names that the submission swept"""
    sweep: int | None = None
    """the submission that swept them first; this one may be a rerun of it"""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """the last value of each metric that the log or the program names"""
    time_of: str | None = None
    window: tuple[int, int] | None = None
    """the first and last iteration of --iters"""

    @property
    def ending(self) -> str:
        """The state or, once it is DONE, how the run ended: FAILED(1), KILLED(9), SUCCEEDED."""
        return self.state if self.outcome is None else str(self._end)

    @property
    def fate(self) -> str:
        """The same with the reason: "FAILED(1): KeyError: 'x'"."""
        return self.state if self.outcome is None else self._end.fate()

    @property
    def _end(self) -> Ending:
        return Ending(Outcome(self.outcome or ""), self.exit_code, self.signal, self.reason or "")

    def changed(self, **values: Any) -> ReportedRun:
        """Return the run with other values: as dataclasses.replace, in a tenth of its time, for every run of a page."""
        run = object.__new__(ReportedRun)
        run.__dict__.update(self.__dict__)
        run.__dict__.update(values)
        return run

    def work(self, unit: str) -> float | None:
        """Return the tokens or samples per iteration."""
        return self.tokens_per_iter if unit == "token" else self.samples_per_iter
