"""JobSpec: the complete definition of a job as it was submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from queue_runner.decoding import from_json
from queue_runner.model import Condition
from queue_runner.units import typed_duration

Value = str | int | float | bool
DEFAULT_SEED = 1337
"""The seed of nanoGPT's train.py."""
DTYPES = ("fp32", "bf16", "fp16")
"""Default dtypes of a workload ("dtypes" in its literal)."""
MOST_NAME, MOST_TAG = 200, 100
"""Characters of the name of a job, and of a tag."""
COMPILE_MODES = ("reduce-overhead", "max-autotune", "no-cudagraphs")
"""Modes of torch.compile besides its default; the last is torch's max-autotune-no-cudagraphs."""

_PLACE = frozenset(
    {
        *("cwd", "env", "env_file", "python", "snapshot", "name", "copy", "allow_changed", "stall_s"),
        *("tree", "code", "root", "inside", "resume", "packages", "find_max", "template", "secrets"),
        *("preflight", "seed_by_round"),
        *("metrics", "gate", "gate_s", "on", "lane", "affinity", "within"),
    }
)
"""Fields that describe where and with what a job runs, not what it computes: left out of the hash."""
_LATER = {
    **{"env_name": "", "mps": {}, "variables": {}, "merged": {}, "compile_mode": ""},
    **{"gpus": 1, "cores": 0, "threads": 0, "warmup": 0, "prepare": ""},
}
"""Fields hashed only where they differ from this, so that hashes stored before they existed stay valid."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_HASHED = json.JSONEncoder(sort_keys=True)
_NO_ENV = '"env":null'
NO_CODE = hashlib.sha256().hexdigest()
"""The `code` of a command in a folder without code."""


def mode_word(compiles: bool | str | None) -> str:
    """Return a mode in a word: "eager", "compiled", "compiled(max-autotune)"; empty if it is not known."""
    if isinstance(compiles, str):
        return f"compiled({compiles})"
    return "" if compiles is None else "compiled" if compiles else "eager"


MOST_TASKS = 20
"""Tasks of a submission on a cluster at once, without --nodes-at-once."""
OF_NODE = ("SLURM_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Beginnings of the names of variables that a scheduler sets for a job."""


class EnvironmentJson:
    """The JSON of the environment that was asked for last: the jobs of a submission share theirs, half of the JSON."""

    def __init__(self) -> None:
        self._last: Mapping[str, str] = {}
        self._text = "{}"

    def of(self, env: Mapping[str, str]) -> str:
        """Return its canonical JSON. It must not change as long as this object is used."""
        if env is not self._last:
            self._last, self._text = env, _CANONICAL.encode(env)
        return self._text


class JobSpec(Struct, frozen=True):
    """A cell of a grid. `kind` is workload (a file of jobs/), command (any argv) or import (a log).

    As stored, `env` and `variables` have keyed hashes for values that are not public (host/job_environments.py), and
    words that earlier versions took for secrets have placeholders (host/job_secrets.py).
    """

    kind: str
    name: str
    workload: str | None = None
    framework: str | None = None
    script: str | None = None  # file name inside the snapshot
    device: str | None = None
    compile: bool | None = None
    dtype: str | None = None
    config: str | None = None
    seed: int | None = None
    params: Mapping[str, Value] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    parser: str | None = None
    python: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)  # those of --env: part of the question
    snapshot: str | None = None
    timeout_s: float | None = None
    allow_daemons: bool = False
    resume: bool = False  # retries granted by Terms resume from the last checkpoint
    copy: bool = False  # --snapshot copy: run the command in a copy of the tree as of submit
    allow_changed: bool = False  # --snapshot off: run its folder as it is
    tree: str = ""  # content hash of a command's tree at submit: snapshots/TREE; "" if it was not stored
    code: str = ""  # the same of the relevant part of it: results stored there do not count as code
    root: str = ""  # the folder hashed in `tree`
    inside: str = ""  # cwd, relative to root
    stall_s: Mapping[str, float] = field(default_factory=dict)  # by phase; "*" stands for all others
    env_name: str = ""  # the environment of mpsq env whose interpreter runs it
    packages: Mapping[str, str] = field(default_factory=dict)  # its packages at submit: versions by name
    mps: Mapping[str, str] = field(default_factory=dict)  # settings of --mps; their variables are in env
    find_max: str = ""  # for a probe: the setting, its first and its largest value, as in search.Asked
    template: tuple[str, ...] = ()  # a probe's command, with the setting in braces
    secrets: tuple[str, ...] = ()  # variables of --secret, whose values the worker reads at the start
    preflight: Mapping[str, Value] = field(default_factory=dict)  # settings of its preflight; empty: it has none
    gate: bool = False  # its runs start on a quiet machine
    gate_s: float | None = None  # how long they wait for that; the setting gate_timeout_s if None
    on: Mapping[str, str] = field(default_factory=dict)  # where its runs are sent: `to` and its options; here if empty
    merged: Mapping[str, str] = field(default_factory=dict)  # of a bundle's job: `kind` and `machine` where it ran
    compile_mode: str = ""  # one of COMPILE_MODES, with compile=True; empty: the compiler's default
    gpus: int = 1  # GPUs of one machine that a run computes on; of a workload on the CPU its processes
    lane: str = ""  # the lane that its submission is bound to; "" until its first run is claimed, and without lanes
    affinity: str = ""  # the lane's processors, 0-3,8
    cores: int = 0  # their number; 0: it may use all
    threads: int = 0  # of each process, by OMP_NUM_THREADS, on a lane
    env_file: str = ""  # of a stored job: the file with its whole environment
    metrics: Mapping[str, str] = field(default_factory=dict)  # read from its log: regular expressions by name
    warmup: int = 0  # starts of a command before its first round, which are not counted
    prepare: str = ""  # a shell command before each start
    seed_by_round: bool = False  # `seed` is that of the first round, and grows by one with each
    within: tuple[str, ...] = ()  # words before its command: the program that starts it

    @property
    def tasks(self) -> int:
        """To how many tasks of a cluster the rounds of its submission are dealt out; 1 here, and on a box."""
        return int(self.on.get("nodes", MOST_TASKS)) if self.on and self.on.get("kind") != "ssh" else 1

    def changed(self, **fields: Any) -> JobSpec:
        """Return the job with other values of these fields; itself if it has them already."""
        if all(getattr(self, name) == value for name, value in fields.items()):
            return self
        return replace(self, **fields)

    def to_json(self, environments: EnvironmentJson | None = None) -> str:
        """Return canonical JSON: sorted keys, no spaces. `environments` encodes one that many jobs share only once."""
        if environments is None:
            return _CANONICAL.encode(asdict(self))
        text = _CANONICAL.encode(asdict(self) | {"env": None})
        return text.replace(_NO_ENV, f'"env":{environments.of(self.env)}', 1)  # in a string its quotes are escaped

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        data: dict[str, Any] = json.loads(text)
        return cls(**data | {name: tuple(data.get(name, ())) for name in ("argv", "template", "secrets", "within")})

    def label(self) -> str:
        """Return a short label by which a person tells runs apart: `nanogpt tiny cpu fp32 compiled max_iters=20`."""
        mode = mode_word(self.compile_mode or self.compile)
        framework = self.framework if self.framework != "torch" else None
        words = [self.name, framework, self.config, self.device, self.dtype, mode]
        with_what = [f"gpus={self.gpus}"] if self.gpus > 1 else []
        with_what += [f"env={self.env_name}"] if self.env_name else []
        with_what += [f"mps_{k}={v}" for k, v in self.mps.items()]
        with_what += [f"{k}={v}" for k, v in self.variables.items()]
        with_what += [f"cores={self.cores}"] if self.cores else []
        with_what += [f"threads={self.threads}"] if self.threads != self.cores else []
        return " ".join([*filter(None, words), *(f"{k}={v}" for k, v in self.params.items()), *with_what])

    def in_round(self, number: int) -> JobSpec:
        """Return the job as its run of this round, from 1, is started: with the seed that the rows of a round share.

        Unless the user has chosen the seed, each round has another. The losses of rounds with one seed would hardly
        differ, and each word about them would be too sure.
        """
        if not self.seed_by_round:
            return self
        return self.changed(seed=(DEFAULT_SEED if self.seed is None else self.seed) + number - 1)

    def for_preflight(self, limit_s: float) -> JobSpec:
        """Return the job as its preflight runs it, for at most `limit_s` seconds."""
        limit_s = limit_s if self.timeout_s is None else min(limit_s, self.timeout_s)
        return self.changed(params={**self.params, **self.preflight}, timeout_s=limit_s, resume=False)

    def content_hash(self) -> str:
        """Return the sha256 (hex) of the job without where it runs: equal jobs have equal hashes."""
        answers = dict(zip(_ASKED, _answers(self), strict=True))
        if (later := _later(self)) != _USUAL:
            answers |= {name: value for name, value in zip(_LATER, later, strict=True) if value != _LATER[name]}
        answers["resume"] = False  # does not matter here; a constant keeps stored hashes valid
        return hashlib.sha256(_HASHED.encode(answers).encode()).hexdigest()


_ASKED = tuple(name for name in JobSpec.__struct_fields__ if name not in _PLACE and name not in _LATER)
_answers = attrgetter(*_ASKED)
_later = attrgetter(*_LATER)
_USUAL = tuple(_LATER.values())


class Terms(Struct, frozen=True):
    """Scheduling terms of a job: when it may run and how often it is tried, but not what it computes.

    `after` holds pairs of (id of another job, condition). Times are Unix seconds. `retry_on` holds values of
    model.RETRY_ON; the n-th retry waits `backoff_s` * 2 ** (n - 1) seconds.
    """

    priority: int = 0
    tags: tuple[str, ...] = ()
    note: str | None = None
    hold: bool = False
    not_before_at: float | None = None
    deadline_at: float | None = None
    after: tuple[tuple[int, Condition], ...] = ()
    retries: int = 0
    backoff_s: float = 0.0
    retry_on: tuple[str, ...] = ("failed",)
    rerun_of: int | None = None
    schedule_id: int | None = None


DECIDED = "decided"
"""The goal of --until that each row of a submission has its word."""
MOST_ROUNDS = 20
"""Rounds of a submission with --until."""
MOST_OFFERED = 40
"""More rounds than this are not offered: the rows hardly differ, or vary too much for an answer."""
FIRST_ROUNDS = 3
"""Rounds that are queued at first with --until: no word is given earlier."""
BUDGET_S = 600.0
"""The default of --budget. It does not cut the first rounds short: who gave none wants an answer."""


def command_name(argv: Sequence[str]) -> str:
    """Return the name of a command that was given none: that of its script, else of its program."""
    script = next((word for word in argv[1:] if word.endswith((".py", ".sh"))), argv[0])
    return PurePath(script).name[:MOST_NAME]


def more_rounds(group: object, count: int = FIRST_ROUNDS) -> str:
    """Return the command that adds rounds to a submission."""
    return f"mpsq rerun g{group} --rounds {count}"


def more_time(selector: object, timeout_s: float) -> str:
    """Return the command that queues jobs again with twice their --timeout."""
    return f"mpsq rerun {selector} --timeout {typed_duration(2 * timeout_s)}"


OF_TIME = ""
"""The key of the margin of times, among those of metrics, and the time as what --by compares."""


def compared_by(text: str) -> str:
    """Return the metric that --by names; OF_TIME for the word `time`."""
    return OF_TIME if text.strip() == "time" else text.strip()


class Aim(Struct, frozen=True):
    """The subject of a question. `by` is the metric that compares its rows first: OF_TIME for the time, None where
    nobody says it. `margins` are those of "the same" (--same-within): of a metric in its unit, of times as a share."""

    by: str | None = None
    margins: Mapping[str, float] = field(default_factory=dict)

    @property
    def metrics(self) -> set[str]:
        """The metrics that are named: each needs a word."""
        return {self.by or OF_TIME, *self.margins} - {OF_TIME}

    def to_json(self) -> str | None:
        """Return it as it is stored; None where nothing differs from the defaults."""
        return json.dumps({"by": self.by or OF_TIME, "margins": self.margins}) if self.by or self.margins else None

    @classmethod
    def from_json(cls, text: str) -> Aim:
        return from_json(text, cls)

    def over(self, stored: Aim) -> Aim:
        """Return this aim, completed by a stored one."""
        return Aim(stored.by if self.by is None else self.by, {**stored.margins, **self.margins})


class Until(Struct, frozen=True):
    """When no further round follows those of a submission (--until): `goal` is DECIDED, or the width of the intervals
    such as "1%".

    Once `budget_s` have passed since the first start, no run of the first rounds starts, and no further round; None:
    BUDGET_S, and the first rounds run whole.
    """

    goal: str = DECIDED
    budget_s: float | None = None

    @property
    def limit_s(self) -> float:
        """The time after which no round is added."""
        return BUDGET_S if self.budget_s is None else self.budget_s


class NewJob(Struct, frozen=True):
    """A job to be stored: its spec, its number of repeats, and its place among the others."""

    spec: JobSpec
    repeats: int = 1
    terms: Terms = field(default_factory=Terms)
