"""What the templates make of hostile values, and what a page admits."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from queue_runner.pages import render

pytestmark = pytest.mark.fast

HOSTILE = {
    "ends a script": "</script><script>alert(1)</script>",
    "comment": "<!--<script>",
    "picture": '"><img src=x onerror=alert(1)>',
    "attribute": "' onmouseover='alert(1)",
    "entity": "&lt;b&gt; & &#x3c;",
    "template": "{{ 7 * 7 }}{% raw %}",
    "right to left": "\u202eabc\u2066def",
    "letters from right to left": "שלום mps",
    "NUL": "a\0b",
    "escape": "\x1b[31mred\x1b[0m\x1b]8;;http://example.org\x07link",
    "surrogate": "a\udcffb",
    "line separators": "a\u2028b\u2029c",
}


class Seen(HTMLParser):
    """The elements and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(source: str, **values: object) -> str:
    return render._environment().from_string(source).render(**values)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_becomes_text(text: str) -> None:
    seen = Seen(rendered('<p title="{{ text }}">{{ text }}</p>', text=text))
    assert seen.tags == ["p"]
    assert seen.attributes == [("title", render.shown(text))]
    assert seen.text == render.shown(text)
    assert not re.search(r"[\x00-\x08\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", seen.text)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_value_for_a_script_stays_in_its_element(text: str) -> None:
    page = rendered(
        '{% import "macros.html.j2" as m %}{{ m.data("runs", value) }}<p>after</p>', value={text: [text, None, 1.5]}
    )
    seen = Seen(page)
    assert seen.tags == ["script", "p"]
    inner = page[page.index(">") + 1 : page.index("</script>")]
    assert json.loads(inner) == {text: [text, None, 1.5]}
    assert inner.isascii() and not set(inner) & set("<>&")


def test_markup_of_ours_is_not_escaped_twice_and_nothing_is_a_dash() -> None:
    assert rendered('{% import "macros.html.j2" as m %}{{ m.badge("<b>", "bad") }}{{ x }}', x=None) == (
        '<span class="badge bad">&lt;b&gt;</span>-'
    )


def test_a_page_admits_its_own_styles_and_scripts_alone() -> None:
    page = render.page("base.html.j2", scripts=[render.UPLOT])
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))
    for element, rule in (("style", "style-src"), ("script", "script-src")):
        texts = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert texts and rules[rule] == " ".join(f"'sha256-{found}'" for found in hashes)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy[1]
    assert page.index("Content-Security-Policy") < page.index("<style>")


def test_a_page_of_a_server_has_nothing_inline() -> None:
    page = render.page("base.html.j2", static="/static", scripts=[render.UPLOT])
    seen = Seen(page)
    assert "style" not in seen.tags and "Content-Security-Policy" not in page
    assert ("src", f"/static/{render.UPLOT}") in seen.attributes
    assert ("href", "/static/style.css") in seen.attributes
    assert "unsafe" not in render.WEB_POLICY and "frame-ancestors 'none'" in render.WEB_POLICY


def test_no_file_of_ours_names_another_host() -> None:
    for path in (*render.STATIC.glob("*.*"), *(render.FOLDER / "templates").rglob("*.j2")):
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", path.read_text("utf-8")))
        assert addresses <= {"http://www.w3.org"}, path  # the name of SVG


def test_nothing_inlined_can_end_its_element() -> None:
    for path in render.STATIC.rglob("*.*"):
        assert not re.search(r"</(script|style)|<!--", path.read_text("utf-8"), re.IGNORECASE), path


UPLOT = {
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files of uPlot 1.6.32 as the npm registry has them."""


def test_uplot_is_as_released() -> None:
    folder = Path(render.STATIC / "uPlot")
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()} == UPLOT
    assert "(v1.6.32)" in render.asset(render.UPLOT)[:100]
    assert "MIT" in (folder / "LICENSE").read_text()


def test_jinja2_is_imported_when_a_page_is_made_and_not_before() -> None:
    for path in render.FOLDER.glob("*.py"):
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {alias.name for node in top for alias in node.names} | {getattr(node, "module", "") for node in top}
        assert not {"jinja2", "markupsafe"} & names, path


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("k=שלום, 0.012 vs 0.018 s", "k=<bdi>שלום</bdi>, 0.012 vs 0.018 s"),
        ("שלום עולם 2: 3 runs", "<bdi>שלום עולם</bdi> 2: 3 runs"),
        ("mps <b> & مرحبا", "mps &lt;b&gt; &amp; <bdi>مرحبا</bdi>"),
        ("mps is 2.00 x faster", "mps is 2.00 x faster"),
    ],
)
def test_words_from_right_to_left_turn_no_number_around(text: str, page: str) -> None:
    assert rendered("{{ text | sentence }}", text=text) == page
