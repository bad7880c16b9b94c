"""Rendering of the templates: escaping, values for scripts, and the policy that admits our scripts and styles alone.

The only importer of Jinja2, inside of functions: other commands start without it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from queue_runner import __version__, times, units
from queue_runner.text import plain

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
"""The files that mpsq web serves under /static."""
UPLOT = "uPlot/uPlot.iife.min.js"

_IN_SCRIPTS = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""What ends a script element, opens a comment in one, or ends a line of JavaScript (HTML 4.12.1.3; ECMA-262 12.3)."""

_LETTERS = "\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
_RIGHT_TO_LEFT = re.compile(rf"([{_LETTERS}]+(?:[\s'\"-]+[{_LETTERS}]+)*)")
"""Words of Hebrew, Arabic and other letters of Unicode's classes R and AL."""

_CLOSED = (
    "default-src 'none'; base-uri 'none'; form-action {form}; img-src {img}; style-src {style}; script-src {script}"
)
WEB_POLICY = (
    _CLOSED.format(form="'self'", img="'self' data:", style="'self'", script="'self'")
    + "; connect-src 'self'; frame-ancestors 'none'"
)
"""The header Content-Security-Policy of mpsq web: nothing inline, nothing from elsewhere, in no frame."""


def page(template: str, *, static: str | None = None, **values: Any) -> str:
    """Return a page. `static` is the address of the folder STATIC; None puts styles and scripts into the page."""
    return _environment().get_template(template).render(static=static, version=__version__, **values)


def shown(value: Any) -> Any:
    """Return a value as pages show it: text without control characters, "-" for None."""
    if value is None:
        return units.MISSING
    return plain(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def sentence(value: Any) -> Markup:
    """Return a sentence of ours with names of users in it: letters from right to left, which would turn the numbers
    after them around, stand apart."""
    from markupsafe import Markup, escape

    text = shown(value).replace(" %", "\N{NO-BREAK SPACE}%")
    parts = _RIGHT_TO_LEFT.split(text)  # the odd ones are right-to-left words
    apart = Markup("<bdi>{}</bdi>")
    return Markup("").join(apart.format(part) if at % 2 else escape(part) for at, part in enumerate(parts))


def in_words(command: str) -> Markup:
    """Return a command whose lines break between its words: a browser would break them after a hyphen, too."""
    from markupsafe import Markup

    return Markup(" ").join(Markup('<span class="word">{}</span>').format(word) for word in shown(command).split(" "))


_WITH_PAGE = re.compile(
    r"mpsq (?:(status)|logs ([\d.]+)(?: -f)?|why ([\d.]+)|report g(\d+)(?: --vs ([\w.=+-]+)(?: --by \w+)?)?)"
    r"(?= (?!-)|;|$)"
)
"""A command whose output a page of mpsq web shows."""


def linked(step: str) -> Markup:
    """Return a next step for mpsq web: a link in place of each command whose output has a page."""
    from markupsafe import Markup, escape

    def link(command: re.Match[str]) -> str:
        _, log, job, group, baseline = command.groups()
        if log:
            return f'<a href="/log/{log}">the log</a>'
        if baseline:
            return f'<a href="/compare?ids=g{group}&amp;vs={quote(baseline)}">the comparison with {baseline}</a>'
        if group:
            return f'<a href="/group/{group}">the page of g{group}</a>'
        return (
            f'<a href="/job/{job}">{"run" if "." in job else "job"} {job}</a>' if job else '<a href="/">the queue</a>'
        )

    return Markup(_WITH_PAGE.sub(link, str(escape(shown(step)))))


def as_json(value: Any) -> Markup:
    """Return a value without nan and inf as JSON that may stand in a script element."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_IN_SCRIPTS))  # ASCII, and nothing in it can end the element


@cache
def asset(name: str) -> str:
    """Return a file of STATIC."""
    return (STATIC / name).read_text("utf-8")


def policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """Return the Content-Security-Policy of a page that holds these styles and scripts, and requests nothing."""
    return _CLOSED.format(form="'none'", img="data:", style=_hashes(styles), script=_hashes(scripts))


def _hashes(names: Iterable[str]) -> str:
    return " ".join(f"'sha256-{_hash(name)}'" for name in names) or "'none'"


@lru_cache
def _hash(name: str) -> str:
    return base64.b64encode(hashlib.sha256(asset(name).encode()).digest()).decode()


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats: dict[str, Callable[..., str]] = {
        "short_duration": units.short_duration,
        "duration": units.duration,
        "rough": units.rough,
        "size": units.size,
        "count": units.count,
        "counted": units.counted,
        "percent": units.percent,
        "ms_plus_minus": units.ms_plus_minus,
        "clock": times.clock,
    }
    made.filters.update(formats, json=as_json, linked=linked, sentence=sentence, in_words=in_words)
    made.globals.update(policy=policy, asset=lambda name: Markup(asset(name)))
    return made
