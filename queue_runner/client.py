"""The queue from Python and notebooks: the verbs, names and errors of the command line.

    from mpsq import Client

    queue = Client()
    group = queue.submit("nanogpt", device=["cpu", "mps"], set={"max_iters": 200}, repeats=4)
    queue.wait(group)
    queue.runs(group).to_pandas().groupby("device").median_s.median()

Jobs, runs and groups are named as on the command line: 12, "12.3", "g4", "@last", or the name of a job; the result of
`submit` stands for its group. A user's mistake raises UsageError, any other failure another MpsqError; both have
`message` and `hint`. Durations are seconds, times of day Unix seconds, sizes bytes; None means unknown.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from msgspec import Struct

from queue_runner import config_file, paths, reports
from queue_runner.control import cancellation as cancelling
from queue_runner.control import changes, pausing
from queue_runner.control import deletion as removing
from queue_runner.control import new_attempts as retrying
from queue_runner.control import resubmission as again
from queue_runner.errors import UsageError
from queue_runner.host import ownership
from queue_runner.host.home import ensure_home
from queue_runner.model import Selector, parse_selector
from queue_runner.monitor import awaiting as waiting
from queue_runner.monitor import explanation as asking
from queue_runner.monitor import listing, run_view
from queue_runner.monitor import queue_status as looking
from queue_runner.monitor.run_view import RunView
from queue_runner.paths import Layout
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from queue_runner.submit import given_options as submit_options
from queue_runner.submit import plan as submitting
from queue_runner.submit.submit_options import Request
from queue_runner.units import parse_duration

if TYPE_CHECKING:
    import pandas

    from queue_runner.store.editing import Where


class Group(Struct, frozen=True):
    """The result of a submission: `id` is the 4 of g4, `jobs` are the ids of its jobs in grid order."""

    id: int
    jobs: tuple[int, ...]

    def __str__(self) -> str:
        return f"g{self.id}"


Time = float | str
"""Seconds, or a text such as "15m"."""
Values = str | bool | Sequence[str | bool]
"""One value, or several that are swept."""
Words = str | Sequence[str]
Pairs = Mapping[str, Any] | str | Sequence[str]
"""Values by name, or texts such as "lr=0.1"."""


class SubmitOptions(TypedDict, total=False):
    """The options of `Client.submit`: those of `mpsq submit`, described by `mpsq submit --help`."""

    device: Values
    compile: Values
    config: Values
    dtype: Values
    framework: Values
    gpus: int
    set: Pairs
    repeats: int
    until: str
    by: str
    same_within: str
    budget: Time
    seed: int
    order_seed: int
    priority: int
    name: str
    tag: Words
    env: Pairs
    secret: Words
    allow_plain: bool
    cwd: str
    python: str
    env_name: Values
    mps: Words
    warmup: int
    prepare: str
    timeout: Time
    parser: str
    metric: Pairs
    allow_daemons: bool
    at: str
    deadline: str
    hold: bool
    note: str
    retries: int
    backoff: Time
    retry_on: Values
    resume: bool
    stall: Pairs
    find_max: str
    snapshot: str
    preflight: bool
    no_gate: bool
    gate_timeout: Time
    on: str
    partition: str
    time: Time
    whole_node: bool
    nodes_at_once: int
    sbatch: str


Id = int | str | Group


class Rows(list[dict[str, Any]]):
    """A list of rows as dicts, with `to_pandas` where pandas is installed."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame with a column for each key. Raises: UsageError without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                "pandas is not installed here", "pip install pandas, or use the rows as they are"
            ) from error
        return pandas.DataFrame(list(self))


class Client:
    """A queue. `home` is its folder; MPSQ_HOME or the default location when omitted."""

    def __init__(self, home: str | Path | None = None) -> None:
        self._layout = Layout(paths.expanded(home).absolute()) if home is not None else paths.layout()
        ownership.secure(self._layout)
        self._has_home = False

    def submit(
        self,
        workload: str | None = None,
        *,
        command: Sequence[str] = (),
        after: Sequence[Id | tuple[Id, str]] = (),
        **options: Unpack[SubmitOptions],
    ) -> Group:
        """Queue a workload or a `command` over a grid of settings; a list of values is swept.

        `options` are those of `mpsq submit` in Python's types: device=["cpu", "mps"], set={"lr": [1e-3, 1e-4]},
        repeats=4, timeout=90, ... `after` holds ids, or pairs of an id and ok, any or fail.

        Raises: UsageError for invalid or missing input; nothing is stored then.
        """
        waits = [f"{id[0]}:{id[1]}" if isinstance(id, tuple) else str(id) for id in after]
        given = {"workload": workload, "command": command or None, "after": waits or None, **options}
        fields = {name: value for name, value in submit_options.read(given, whole=True).items() if value is not None}
        planned = submitting.plan(Request(**fields, title="Client.submit", home=str(self._layout.home)))
        if not (self._has_home and self._layout.db.exists()):  # it takes a tenth of a call
            ensure_home(self._layout.home)
            self._has_home = True
        stored = submitting.store(self._layout, planned)
        return Group(stored.group, stored.jobs)

    def __repr__(self) -> str:
        return f"Client({str(self._layout.home)!r})"

    def wait(self, *ids: Id, timeout: float | str | None = None, timeout_s: float | None = None) -> bool:
        """Wait until the named jobs have ended, at most `timeout` (seconds, or "15m"; `timeout_s` is its older name).
        Return whether all succeeded. Warn if something keeps them from starting: no worker, a pause, a hold.
        Raises: WaitTimeout, which says how many have not ended."""
        if timeout is not None:
            timeout_s = parse_duration(timeout, "timeout") if isinstance(timeout, str) else float(timeout)
        warned: set[str] = set()

        def warn(awaited: waiting.Awaited) -> None:
            for sentence in set(awaited.hindrances()) - warned:
                warned.add(sentence)
                warnings.warn(sentence, stacklevel=4)

        return not waiting.until_done(self._layout, _selectors(ids), timeout_s, warn).failed

    def runs(self, *ids: Id, tag: str | None = None, state: str | None = None) -> Rows:
        """Return runs, oldest first, as described in docs/json.md; all runs when nothing is named."""
        named = _selectors(ids) if ids else []
        filter = listing.Filter(tuple(named), state, (tag,) if tag else ())
        with read.reading(self._layout.db) as connection:
            return Rows(run.as_json() for job in listing.runs(connection, filter, RunView) for run in job.runs)

    def iterations(self, *ids: Id) -> Rows:
        """Return all iterations of the named: run, i, dur_s, loss, phase, synced, allocated_bytes, reserved_bytes."""
        with read.reading(self._layout.db) as connection:
            runs = run_view.select(connection, _selectors(ids))
            sql = "SELECT * FROM v_iteration WHERE run_id = ? ORDER BY offset"
            return Rows(row for run in runs for row in connection.execute(sql, [run.run_id]))

    def report(self, name: str = reports.DEFAULT, *ids: Id, **options: Any) -> Rows:
        """Return the rows of a report, raw and in SI units; `options` as on the command line: vs, where, tag, ...; with
        `newest` and no selection, only those of the newest comparisons, as a terminal shows them."""
        for option, known_as in (("tag", "tags"), ("where", "where")):
            given = options.pop(option, None)
            options |= {} if given is None else {known_as: [given] if isinstance(given, str) else given}
        options.setdefault("peak_tflops", config_file.load(self._layout.config).peak_tflops)
        with read.reading(self._layout.db) as connection:
            query = read_options(selectors=[str(one) for one in ids], **options)
            return Rows(dict(row) for row in reports.run(name, connection, query).rows)

    def status(self) -> looking.Status:
        """Return what runs, what waits and why, and whether a worker is present."""
        return looking.read_status(self._layout)

    def why(self, *ids: Id) -> list[asking.Why]:
        """Return an explanation and the next step for each of the named jobs."""
        with read.reading(self._layout.db) as connection:
            return asking.explain_all(self._layout, connection, _selectors(ids))

    def cancel(self, *ids: Id, grace_s: float | None = None, within_s: float = 12.0) -> list[cancelling.Cancelled]:
        """Cancel the named jobs and wait up to `within_s` seconds for the result."""
        return cancelling.cancel(self._layout, _selectors(ids), grace_s=grace_s, within_s=within_s)

    def retry(self, *ids: Id, succeeded_too: bool = False, resumed: bool = False) -> list[retrying.Retried]:
        """Run again what did not succeed; with `resumed`, from its last checkpoint."""
        return retrying.retry(self._layout, _selectors(ids), succeeded_too=succeeded_too, resumed=resumed)

    def rerun(
        self,
        *ids: Id,
        repeats: int | None = None,
        hold: bool = False,
        snapshot: str | None = None,
        timeout: str | None = None,
    ) -> Group:
        """Queue jobs again with the code that they ran; None leaves a value unchanged."""
        options = again.RerunOptions(repeats, hold, snapshot, timeout)
        done = again.rerun(self._layout, _selectors(ids), options, "Client.rerun")
        return Group(done.group, done.jobs)

    def delete(self, *ids: Id, results: bool = False) -> None:
        """Remove the files of ended jobs and hide the jobs; with `results`, delete their results too."""
        removing.delete(self._layout, _selectors(ids), results=results)

    def move(self, *ids: Id, where: Where, beside: Id | None = None) -> list[pausing.Changed]:
        """Reorder waiting jobs; `where` is a queue_runner.store.editing.Where."""
        return changes.move(self._layout, _selectors(ids), where, _selectors([beside]) if beside is not None else ())

    def edit(
        self,
        *ids: Id,
        priority: int | None = None,
        after: Sequence[str] | None = None,
        at: str | None = None,
        deadline: str | None = None,
        note: str | None = None,
        tags: Sequence[str] = (),
        untags: Sequence[str] = (),
        retries: int | None = None,
        name: str | None = None,
        timeout: str | None = None,
    ) -> list[int]:
        """Change jobs; None leaves a value unchanged, and an empty `after`, `at`, `deadline` or `timeout` removes it.
        Return the ids of the jobs on which it has an effect."""
        edit = changes.Edit(priority, after, at, deadline, note, tags, untags, retries, name, timeout)
        return changes.edit(self._layout, _selectors(ids), edit)

    def pause(self, *ids: Id, now: bool = False, reason: str = "by hand") -> list[pausing.Changed]:
        """Start nothing until `resume`; with ids, only not these. With `now`, also suspend those that run."""
        if ids:
            return pausing.pause(self._layout, _selectors(ids), now=now)
        return pausing.pause_queue(self._layout, reason, now=now)[1]

    def resume(self, *ids: Id) -> list[pausing.Changed]:
        """Undo `pause`: for the queue and its suspended jobs; with ids, for these jobs."""
        if ids:
            return pausing.resume(self._layout, _selectors(ids))
        return pausing.pause_queue(self._layout, None)[1]


def _selectors(ids: Sequence[Id]) -> list[Selector]:
    if not ids:
        raise UsageError("no job was named", 'name a job, run or group, such as 12, "12.3", "g4" or "@last"')
    return [parse_selector(str(one)) for one in ids]
