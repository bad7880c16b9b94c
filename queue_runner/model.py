"""Job, Run, State and Outcome: the vocabulary of the queue, and its only transition table.

State and Outcome belong to the Run; a Job's state is derived from its runs. Nothing outside `store.jobs`
changes a state, and it does so only along `TRANSITIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from queue_runner.errors import UsageError


class State(StrEnum):
    HELD = "HELD"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    DONE = "DONE"


class Obstacle(StrEnum):
    """The obstacle to starting runs on a lane, for programs; `blocked_reason` describes it to a person."""

    SILENT = "silent"
    """The machine to which a lane sends its runs does not answer."""
    DISK = "disk"
    """The disk is too full for a run."""
    GATE = "gate"
    """The next run waits for a quiet machine."""
    RESERVED = "reserved"
    """A run needs more than is free, which is kept for it."""


class Outcome(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    SPAWN_FAILED = "SPAWN_FAILED"
    DEVICE_UNAVAILABLE = "DEVICE_UNAVAILABLE"
    TIMED_OUT = "TIMED_OUT"
    STALLED = "STALLED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OUTPUT_LIMIT = "OUTPUT_LIMIT"
    DISK_FULL = "DISK_FULL"
    CODE_CHANGED = "CODE_CHANGED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"
    LOST = "LOST"


FAILURES = frozenset(Outcome) - {Outcome.SUCCEEDED, Outcome.CANCELLED, Outcome.SKIPPED}
"""Outcomes that counts and filters call failed."""
FAILURES_SQL = f"({', '.join(sorted(repr(outcome.value) for outcome in FAILURES))})"

NOT_FAILED = "succeeded, and this job requires that it fails"
"""The reason of SKIPPED for a run that required another job to fail (:fail)."""


class Condition(StrEnum):
    """A condition on a job that another waits for: that it is ok, that it has ended, or that it is not ok."""

    OK = "ok"
    ANY = "any"
    FAIL = "fail"


RETRY_ON: dict[str, frozenset[Outcome]] = {
    "failed": frozenset(
        {Outcome.FAILED, Outcome.KILLED, Outcome.SPAWN_FAILED, Outcome.OUT_OF_MEMORY, Outcome.DISK_FULL}
    ),
    "lost": frozenset({Outcome.LOST}),
    "stalled": frozenset({Outcome.STALLED}),
    "timed_out": frozenset({Outcome.TIMED_OUT}),
}
"""Values of --retry-on. Outcomes that were requested (CANCELLED), cannot change (DEVICE_UNAVAILABLE, CODE_CHANGED) or
would only recur (OUTPUT_LIMIT) are not retried automatically."""


class Verb(StrEnum):
    """An event in a run's life; each verb is one row of the transition table."""

    SUBMIT = "submit"
    SUBMIT_HELD = "submit --hold"
    RETRY = "retry"
    HOLD = "hold"
    RELEASE = "release"
    CLAIM = "claim"
    UNCLAIM = "unclaim"
    FINISH = "finish"
    CANCEL = "cancel"
    SKIP = "skip"
    IMPORT = "import"


class Transition(Struct, frozen=True):
    """A transition from `sources` to `target` by a verb; `None` stands for a run that does not exist yet."""

    sources: frozenset[State | None]
    target: State
    why: str


TRANSITIONS: dict[Verb, Transition] = {
    Verb.SUBMIT: Transition(frozenset({None}), State.QUEUED, "the user submitted it"),
    Verb.SUBMIT_HELD: Transition(frozenset({None}), State.HELD, "the user submitted it held, to be released later"),
    Verb.RETRY: Transition(frozenset({None}), State.QUEUED, "an earlier attempt did not succeed"),
    Verb.IMPORT: Transition(frozenset({None}), State.DONE, "the run happened elsewhere and its log was imported"),
    Verb.HOLD: Transition(frozenset({State.QUEUED}), State.HELD, "the user held it"),
    Verb.RELEASE: Transition(frozenset({State.HELD}), State.QUEUED, "the user released it"),
    Verb.CLAIM: Transition(frozenset({State.QUEUED}), State.RUNNING, "the worker claimed it while holding the lane"),
    Verb.UNCLAIM: Transition(frozenset({State.RUNNING}), State.QUEUED, "it never started: no fence was written"),
    Verb.FINISH: Transition(frozenset({State.RUNNING}), State.DONE, "it ended and its lane is clear"),
    Verb.CANCEL: Transition(frozenset({State.HELD, State.QUEUED}), State.DONE, "cancelled before it started"),
    Verb.SKIP: Transition(
        frozenset({State.HELD, State.QUEUED}), State.DONE, "a dependency or its deadline can no longer be met"
    ),
}

PHASES = ("setup", "compile", "warmup", "measure", "eval", "checkpoint", "eval_iter")
"""Phase names, in the order in which the store numbers them. `eval_iter`, only ever the phase of an iteration, is an
iteration of a foreign log that includes an evaluation."""

SYNC_UNKNOWN = 2
"""`synced` of an iteration in the store, beside 0 and 1, where the trainer did not say it."""

EXIT_DEVICE_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h: a workload reports that its device is missing
EXIT_OUT_OF_MEMORY = 71  # EX_OSERR of sysexits.h: a workload caught its framework's out-of-memory error

DEFAULT_LANE = "machine"

IN_COPY = "in_copy"
"""The note and the caveat of a run that started in a copy of its code, because of an edit or of an earlier run."""
WROTE_OUTSIDE = "wrote_outside"
"""The note and the caveat of a judged run that changed files outside its copy."""
OWN_NOTE = (1 << 62) - 1
"""The first place of the queue's own notes and metrics: after all lines of a trainer."""
NEIGHBOUR_BUSY = "neighbour_busy"
"""The taint of a run that was beside another one while it was measured."""
PREFLIGHT = 0
"""Number and attempt of a preflight: run 12.0 tries job 12 with one iteration before its first repeat. Every attempt at
that repeat supersedes it, so that it never counts as a run."""


class RunId(Struct, frozen=True, order=True):
    """The name of a run, `12.3`: the third attempt of job 12."""

    job: int
    number: int

    def __str__(self) -> str:
        return f"{self.job}.{self.number}"

    @property
    def is_preflight(self) -> bool:
        """Whether the run only tries its job."""
        return self.number == PREFLIGHT


IDS = "12 is a job, 12.3 a run, g4 a group, @last the newest group; mpsq list shows numbers and names"
"""The ways to select jobs and runs, as a hint."""


class Selector(Struct, frozen=True):
    """A user's selection: a job `12`, a run `12.3`, a group `g4`, `@last` (the newest group), or the jobs of a name; of
    these, or of all jobs, those with all of the `tags`."""

    text: str
    job: int | None = None
    number: int | None = None
    group: int | None = None
    last: bool = False
    name: str | None = None
    tags: tuple[str, ...] = ()

    def with_tags(self, tags: Sequence[str]) -> Selector:
        """Return the part of this selection that has all of the tags."""
        return replace(self, text=" ".join([self.text, *_tag_options(tags)]), tags=tuple(tags)) if tags else self


def _tag_options(tags: Sequence[str]) -> list[str]:
    return [f"--tag {tag}" for tag in tags]


def parse_selector(text: str) -> Selector:
    """Parse `12`, `12.3`, `g4` or `@last`; any other word is a name. Raises: UsageError for other words with @ or no
    word."""
    if text == "@last":
        return Selector(text, last=True)
    if match := re.fullmatch(r"g([0-9]{1,18})", text):
        return Selector(text, group=int(match[1]))
    if match := re.fullmatch(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?", text):
        return Selector(text, job=int(match[1]), number=int(match[2]) if match[2] else None)
    if not text or text.startswith("@"):
        raise UsageError(f'"{text}" does not name a job', IDS)
    return Selector(text, name=text)


def parse_selectors(words: Sequence[str], tags: Sequence[str] = ()) -> tuple[Selector, ...]:
    """Return what `words` select, with `tags` only the jobs that have all of them: of all jobs if there are no words.

    Raises: UsageError, see `parse_selector`.
    """
    if tags and not words:
        return (Selector(" ".join(_tag_options(tags)), tags=tuple(tags)),)
    return tuple(parse_selector(word).with_tags(tags) for word in words)


class Ending(Struct, frozen=True):
    """The end of a run: the outcome, its number (exit code or signal) and a reason in words."""

    outcome: Outcome
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.outcome is Outcome.FAILED:
            return f"FAILED({self.exit_code})"
        if self.outcome is Outcome.KILLED:
            return f"KILLED({self.signal})"
        if self.outcome in (Outcome.LOST, Outcome.SKIPPED) and self.reason:
            return f"{self.outcome}({self.reason.split(':')[0]})"
        return str(self.outcome)

    def fate(self, after: str = "") -> str:
        """Return how the run ended and why: `FAILED(1): no data`, `SKIPPED(dependency): job 7 did not succeed`. `after`
        is inserted between the two: ` after 3.2 s`."""
        kind, _, rest = self.reason.partition(": ")
        reason = rest if str(self).endswith(f"({kind})") else self.reason
        return f"{self}{after}: {reason}" if reason else f"{self}{after}"


class Taint(Struct, frozen=True):
    """A mark of a run: its kind, whether it makes the numbers invalid or is a caveat, and why."""

    kind: str
    severity: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Dependency(Struct, frozen=True):
    """`ID[:ok|any|fail]` as written by the user; the jobs are looked up when the new ones are stored."""

    selector: Selector
    condition: Condition
