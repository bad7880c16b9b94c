"""What forms do to the queue, by the functions that the command line calls. The history names `web` as who did it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import parse_qs

from msgspec import Struct

from queue_runner import units
from queue_runner.analysis.stats import by_key
from queue_runner.control import cancellation as cancelling
from queue_runner.control import changes, pausing
from queue_runner.control import new_attempts as retrying
from queue_runner.errors import UsageError
from queue_runner.host import ownership
from queue_runner.model import Selector, parse_selector
from queue_runner.paths import Layout

ACTOR = "web"
FORM_BYTES = 4096
MOST_NAMED = 3
"""Runs with the same result that are named one by one."""
_WITHIN_S = 3.0
"""How long a page waits for a run to end that was cancelled; it goes on ending after that."""
_WILL_END = {cancelling.CancelResult.CANCELLED, cancelling.CancelResult.ENDING, cancelling.CancelResult.UNWATCHED}


class Form(Struct, frozen=True):
    """A form as it was sent: what to do (`verb`) to what (`id`)."""

    verb: str
    id: str
    csrf: str
    back: str
    where: str


def read_form(verb: str, body: bytes) -> Form:
    """Return the form of a request's body. Raises: UsageError for anything else than a form of ours."""
    if verb not in VERBS:
        raise UsageError(f'unknown action "{verb}"', f"the actions are {', '.join(VERBS)}")
    try:
        given = parse_qs(body.decode("ascii"), max_num_fields=8, errors="strict")
    except ValueError as error:
        raise UsageError("the form cannot be read", "use the buttons of mpsq web") from error
    if any(len(values) > 1 for values in given.values()):
        raise UsageError("the form has a field twice", "use the buttons of mpsq web")
    fields = {name: values[0] for name, values in given.items()}
    back = _local(fields.get("back", "/"))
    return Form(verb, fields.get("id", ""), fields.get("csrf", ""), back, fields.get("where", ""))


def _local(back: str) -> str:
    """Return where to go afterwards: the queue or the page of a job or submission, and the place on it."""
    return back if re.fullmatch(r"/(job/[0-9]+(\.[0-9]+)?|group/[0-9]+)?(#[a-z]+(-[0-9]+(\.[0-9]+)?)?)?", back) else "/"


def do(layout: Layout, form: Form) -> str:
    """Do what a form asks for. Returns what came of it. Raises: MpsqError, as the command does."""
    ownership.secure(layout)
    return VERBS[form.verb](layout, [parse_selector(form.id)], form)


def _cancel(layout: Layout, selectors: list[Selector], _form: Form) -> str:
    runs = cancelling.cancel(layout, selectors, grace_s=None, within_s=_WITHIN_S, actor=ACTOR)
    return _sentences([(run.run, run.result) for run in runs], any(run.result in _WILL_END for run in runs))


def _hold(layout: Layout, selectors: list[Selector], _form: Form) -> str:
    return _changed(pausing.pause(layout, selectors, actor=ACTOR))


def _release(layout: Layout, selectors: list[Selector], _form: Form) -> str:
    return _changed(pausing.resume(layout, selectors, actor=ACTOR))


def _move(layout: Layout, selectors: list[Selector], form: Form) -> str:
    from queue_runner.store.editing import Where

    words: Mapping[str, Where] = {"top": Where.TOP, "bottom": Where.BOTTOM}
    if form.where not in words:
        raise UsageError(f'a run cannot be moved to "{form.where}"', f"use {' or '.join(words)}")
    return _changed(changes.move(layout, selectors, words[form.where], actor=ACTOR))


def _retry(layout: Layout, selectors: list[Selector], _form: Form) -> str:
    notes: list[str] = []
    runs = retrying.retry(layout, selectors, note=notes.append, actor=ACTOR)
    if len(runs) > MOST_NAMED:
        return ". ".join([*_each([run.old for run in runs], "is retried"), *notes])
    return ". ".join([_sentences([(run.old, f"is retried as run {run.new}") for run in runs]), *notes])


def _changed(runs: Sequence[pausing.Changed]) -> str:
    return _sentences([(run.run, run.result) for run in runs], any(run.did for run in runs))


def _sentences(results: Sequence[tuple[str, str]], is_done: bool = True) -> str:
    """Return what came of each run. Raises: UsageError if that is not what the form asked for: it came too late."""
    alike = by_key(results, lambda item: item[1])
    text = "; ".join(sentence for result, runs in alike.items() for sentence in _each([run for run, _ in runs], result))
    if not is_done:
        raise UsageError(text)
    return text


def _each(runs: Sequence[str], result: str) -> list[str]:
    """Return what came of these runs, in a few sentences: "run 5.1 is held (and 19 more runs)"."""
    if len(runs) <= MOST_NAMED:
        return [f"run {run} {result}" for run in runs]
    return [f"run {runs[0]} {result} (and {units.counted(len(runs) - 1, 'more run')})"]


VERBS: Mapping[str, Callable[[Layout, list[Selector], Form], str]] = {
    "cancel": _cancel,
    "hold": _hold,
    "release": _release,
    "move": _move,
    "retry": _retry,
}
