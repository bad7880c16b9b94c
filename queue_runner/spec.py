"""JobSpec: the whole question that a job asks, as it was when it was submitted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queue_runner.model import Condition

Value = str | int | float | bool

_PLACE = (
    *("cwd", "env", "python", "snapshot", "name", "copy", "allow_changed", "stall_s"),
    *("tree", "code", "root", "inside", "resume", "packages", "find_max", "template"),
)
"""What says where and with what the question is asked, not what is asked: left out of the hash."""
_LATER = ("env_name", "mps")
"""Part of the question where they say something; hashes that were stored before there were any stay as they are."""


@dataclass(frozen=True)
class JobSpec:
    """One cell of a grid. `kind` is workload (a file of jobs/), command (any argv) or import (a log)."""

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
    snapshot: str | None = None
    timeout_s: float | None = None
    allow_daemons: bool = False
    resume: bool = False  # retries that were agreed on go on from the last checkpoint
    copy: bool = False  # a command runs in a copy of the tree as it was at submit
    allow_changed: bool = False  # a command runs even if its tree is no longer what it was at submit
    tree: str = ""  # content hash of a command's tree at submit: snapshots/TREE; "" where it is not known
    code: str = ""  # the same of what matters in it: results that lie there are no other code
    root: str = ""  # the folder whose content that is
    inside: str = ""  # cwd, relative to root
    stall_s: Mapping[str, float] = field(default_factory=dict)  # by phase; "*" stands for every other one
    env_name: str = ""  # the environment of mpsq env whose interpreter asks it
    packages: Mapping[str, str] = field(default_factory=dict)  # what was in it at submit: versions by name
    mps: Mapping[str, str] = field(default_factory=dict)  # settings of --mps; their variables are in env
    find_max: str = ""  # it is a probe: the setting, its first and its largest value, as search.Asked has them
    template: tuple[str, ...] = ()  # a probe's command, with the setting in braces

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces."""
        return json.dumps(vars(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        data: dict[str, Any] = json.loads(text)
        return cls(**{**data, "argv": tuple(data["argv"]), "template": tuple(data.get("template", ()))})

    def label(self) -> str:
        """The question in a few words, `nanogpt tiny cpu fp32 compiled max_iters=20`, as a person tells runs apart."""
        mode = None if self.compile is None else "compiled" if self.compile else "eager"
        framework = self.framework if self.framework != "torch" else None
        words = [self.name, framework, self.config, self.device, self.dtype, mode]
        with_what = [f"env={self.env_name}"] if self.env_name else []
        with_what += [f"mps_{k}={v}" for k, v in self.mps.items()]
        return " ".join([*filter(None, words), *(f"{k}={v}" for k, v in self.params.items()), *with_what])

    def content_hash(self) -> str:
        """sha256 (hex) of the question without the place it is asked from: equal questions have equal hashes."""
        asked = {k: v for k, v in vars(self).items() if k not in _PLACE and (v or k not in _LATER)}
        asked["resume"] = False  # says nothing, and keeps the hashes that are stored
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Terms:
    """When a job may run, and how often it is tried: everything about it that is not the question.

    `after` are pairs of (the id of another job, condition). Times are Unix seconds. `retry_on` are words of
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


@dataclass(frozen=True)
class NewJob:
    """One job to be stored: the question, how often it is asked, and its place among the others."""

    spec: JobSpec
    repeats: int = 1
    terms: Terms = field(default_factory=Terms)
