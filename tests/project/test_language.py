"""The language lint: no file gets more of what language.txt counts, and the rules find what they should."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tests.project import language
from tests.project.language import _in_code, _in_text, baseline, counted, grown, places

LONG = "word " * 41


def test_no_file_has_more_than_its_baseline() -> None:
    broken = places()
    more = grown(counted(broken), baseline())
    lines = [
        f"{place.path}:{place.line}: {place.rule}: {place.text}" for place in broken if (place.path, place.rule) in more
    ]
    if lines:
        pytest.fail("\n".join(["CONTRIBUTING.md, Style. More than language.txt allows, in:", *lines]), pytrace=False)


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("def f(found): pass", ["name"]),
        ("one, (rest, *of) = rows", ["name", "name"]),
        ("with open(path) as own: pass", ["name"]),
        ("[one for one in rows]", []),
        ("print(row.found)", []),
        ("x = 1  # as was said", ["said"]),
        ('x = f"{key} is said twice"', ["said"]),
        ('"""This is no text."""', ["is-no"]),
        ("def test_two_hosts_are_no_pair(): pass", ["is-no"]),
    ],
)
def test_names_comments_and_strings_are_read(code: str, rules: list[str]) -> None:
    assert [place.rule for place in _in_code("a.py", code, ast.parse(code))] == rules


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("it is no text", ["is-no"]),
        ("there is no text, and it is no longer read", []),
        ("the key is of the file", ["is-of"]),
        ("show what is queued", ["what-is"]),
        ("What is queued?", []),
        ("it was told `what is said`", ["told"]),
        (LONG, ["long"]),
        (LONG[:50] + ". " + LONG[50:], []),
        (f"SELECT {LONG} FROM runs", []),
    ],
)
def test_phrases_and_long_sentences(text: str, rules: list[str]) -> None:
    assert [place.rule for place in _in_text("a.md", 1, text)] == rules


def test_a_renamed_file_takes_its_count_along() -> None:
    before = Counter({("gone.py", "name"): 3, ("Makefile", "name"): 1})
    assert not grown(Counter({("new.py", "name"): 3, ("Makefile", "name"): 1}), before)
    assert grown(Counter({("new.py", "name"): 4}), before) == {("new.py", "name"): 4}
    assert grown(Counter({("Makefile", "name"): 2}), Counter({("Makefile", "name"): 1})) == {("Makefile", "name"): 1}


def test_modules_and_classes_share_no_name() -> None:
    shared = {
        "list": [
            language.Place(f"queue_runner/{folder}/list.py", "module", 1, "list") for folder in ("cli", "monitor")
        ],
        "Row": [language.Place(f"queue_runner/{name}.py", "class", 1, "Row") for name in ("a", "b")],
        "alone": [language.Place("queue_runner/alone.py", "module", 1, "alone")],
    }
    assert [place.path for place in language._shared(shared)] == [
        "queue_runner/monitor/list.py",
        "queue_runner/a.py",
        "queue_runner/b.py",
    ]
