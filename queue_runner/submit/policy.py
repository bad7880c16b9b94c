"""Conditions on when and how often a job runs, from command-line words. Other jobs are still names here."""

from __future__ import annotations

from queue_runner import times, units
from queue_runner.errors import UsageError
from queue_runner.host import redact
from queue_runner.model import RETRY_ON, Condition, Dependency, parse_selector
from queue_runner.spec import MOST_NAME, MOST_TAG, Terms
from queue_runner.submit.submit_options import Request

MOST_RETRIES = 1000
MOST_PRIORITY = 1_000_000
MOST_NOTE = 10_000


def of_request(request: Request, now: float) -> tuple[Terms, tuple[Dependency, ...]]:
    """Return the terms of a submission and its dependencies. Raises: UsageError."""
    terms = Terms(
        priority=check_priority(request.priority),
        tags=tuple(check_tag(tag) for tag in request.tags),
        note=check_note(request.note),
        hold=request.hold,
        not_before_at=times.parse_time(request.at, now) if request.at else None,
        deadline_at=times.parse_time(request.deadline, now, "--deadline") if request.deadline else None,
        retries=check_retries(request.retries),
        backoff_s=request.backoff_s,
        retry_on=retry_on(request.retry_on or (("failed", "lost") if request.resume else ("failed",))),
    )
    if terms.not_before_at and terms.deadline_at and terms.deadline_at <= terms.not_before_at:
        raise UsageError("--deadline is not after --at, so the job would never run", "give a later --deadline")
    if not request.retries and (request.retry_on or request.backoff_s or request.resume):
        raise UsageError("--retry-on, --backoff and --resume need --retries", "for example, add --retries 3")
    return terms, tuple(dependency(text) for text in request.after)


def dependency(text: str) -> Dependency:
    """Read `12`, `g4:any`, `@last:fail`. Raises: UsageError."""
    name, colon, word = text.partition(":")
    selector = parse_selector(name)
    if selector.number is not None:
        raise UsageError(f"--after {text} names a run", f"--after takes a job: --after {selector.job}")
    if colon and word not in tuple(Condition):
        raise UsageError(f'--after {text}: unknown condition "{word}"', "use ok, any or fail; the default is ok")
    return Dependency(selector, Condition(word) if word else Condition.OK)


def retry_on(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words unchanged. Raises: UsageError for one that is not in model.RETRY_ON."""
    for word in words:
        if word not in RETRY_ON:
            raise UsageError(f'--retry-on: unknown outcome "{word}"', f"use a list of {', '.join(RETRY_ON)}")
    return words


def check_priority(priority: int) -> int:
    """Return the number unchanged. Raises: UsageError beyond ±1,000,000."""
    if abs(priority) > MOST_PRIORITY:
        raise UsageError(f"--priority {priority} is out of range", "use -1000000 to 1000000")
    return priority


def no_token(option: str, text: str) -> None:
    """Refuse a token in a text that lists, reports and pages show. Raises: UsageError."""
    if redact.has_token(text):
        raise UsageError(
            f"{option} contains a token or a password", "--secret NAME passes one to the job as a variable"
        )


def check_name(name: str) -> str:
    """Return the name unchanged. Raises: UsageError for one that lists could not show, or that holds a secret."""
    no_token("--name", name)
    if not name.strip():
        raise UsageError("the name is blank", "for example --name baseline")
    if len(name) > MOST_NAME:
        raise UsageError(
            f"a name of {len(name):,} characters is too long",
            f"use at most {MOST_NAME} characters; --note takes longer text",
        )
    if not name.isprintable():
        raise UsageError("--name contains a line break or another control character", "write --name on one line")
    return name


def check_tag(tag: str) -> str:
    """Return the tag unchanged. Raises: UsageError for one that lists could not show or split, or that holds a
    secret."""
    no_token("--tag", tag)
    if len(tag) > MOST_TAG:
        raise UsageError(f"a tag of {len(tag):,} characters is too long", f"use at most {MOST_TAG}")
    if not tag or any(c.isspace() or c == "," or not c.isprintable() for c in tag):
        raise UsageError(f"--tag {tag!r} is not a word", "a tag cannot contain spaces, commas or control characters")
    return tag


def check_note(note: str | None) -> str | None:
    """Return the text unchanged; None for an empty one. Raises: UsageError when it is too long or holds a secret."""
    no_token("--note", note or "")
    if note and len(note) > MOST_NOTE:
        raise UsageError(f"a note of {len(note):,} characters is too long", f"use at most {MOST_NOTE:,}")
    return note or None


def check_timeout(timeout_s: float) -> float:
    """Return the time limit unchanged. Raises: UsageError for 0."""
    if timeout_s <= 0:
        raise UsageError("--timeout must be longer than 0", "for example --timeout 2h")
    return timeout_s


def timeout_of(text: str) -> float | None:
    """Return the seconds of a --timeout that changes another one; None if it is empty. Raises: UsageError."""
    return check_timeout(units.parse_duration(text, "--timeout")) if text else None


def check_retries(retries: int) -> int:
    """Return the number unchanged. Raises: UsageError for a negative or absurd one."""
    if not 0 <= retries <= MOST_RETRIES:
        raise UsageError(f"--retries {retries} is not a valid number of retries", f"give 0 to {MOST_RETRIES}")
    return retries
