"""The documents say what the program does: columns, commands, links."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
import typer

from queue_runner.ingest import parsers
from queue_runner.paths import Layout
from queue_runner.store.schema import metadata
from tests import recipes_support
from tests.project import prose

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_every_column_of_every_view_is_documented(layout: Layout) -> None:
    page = (ROOT / "docs" / "schema.md").read_text()
    with sqlite3.connect(layout.db) as connection:
        for (view,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall():
            for column in connection.execute(f"SELECT name FROM pragma_table_info('{view}')"):
                assert re.search(rf"\b{column[0]}\b", page), f"{view}.{column[0]}"
    assert all(f"`{table}`" in page for table in metadata.tables)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_machine_and_no_registry_is_named(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"/(?:root|home/\w+|work)/\S", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_in_blocks_exist(page: Path) -> None:
    if page.name in ("CHANGELOG.md", "LOG.md", "cli.md"):
        pytest.skip("a record of commands as they were, or their synopsis")
    for _mpsq, *words in recipes_support.in_code(page):
        try:
            recipes_support.parse(words)
        except typer.Exit:  # of --help
            pass
        except typer.BadParameter as error:
            if type(error).__name__ != "MissingParameter":  # else it stands for `...`
                raise


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text and "make test" in text


def test_the_readme_names_each_parser() -> None:
    sentence = re.search(
        r"`--parser` names the format of the log: ([^.]*\.py[^.]*)\.", (ROOT / "README.md").read_text()
    )
    assert sentence and sorted(re.findall(r"`([^`]+)`", sentence[1].replace("`time`", ""))) == parsers.names()


def test_no_page_leads_into_swap_or_to_a_verb_that_is_another_ones() -> None:
    """docs/macos.md told owners to lift Metal's limit and to train with a batch of 4,096; docs/finetune.md to go
    on with a training that was cut by `mpsq resume`, which ends a pause."""
    assert "--mps high_watermark=0.0" not in (ROOT / "docs" / "macos.md").read_text()
    assert "mpsq resume" not in "".join(page.read_text() for page in (ROOT / "docs").rglob("*finetune*.md"))


@pytest.mark.parametrize("name", ["reliability", "security"])
def test_a_test_that_is_named_exists(name: str) -> None:
    named = re.findall(r"`(?:tests/)?([\w/]+/test_\w+\.py)`", (ROOT / "docs" / f"{name}.md").read_text())
    assert named and all((ROOT / "tests" / path).is_file() for path in named), named


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert all(page.name in listed for page in folder.glob("*.md") if page.name != "README.md")


def test_documents_are_short() -> None:
    """Words as `wc -w` counts them, tables and code included. `python -m tests.project.prose` prints each page."""
    total = prose.sums()
    assert total.by_hand <= 42_000 and total.generated <= 15_000


def test_sentences_are_short() -> None:
    total = prose.sums()
    assert total.long_share <= 0.1 and max(total.lengths) <= 40


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("One two three. Four (five). six", [3, 2, 1]),
        ("A claim (Fearnhead et al. 2012). Another one", [6, 2]),
        ("# A heading\n\n- one item\n- two\n  lines here\n", [2, 3]),
        ("Text:\n\n    code is not read\n\n```text\nnor this\n```\n\nend `a b c` here\n", [1, 3]),
        ("- an item\n\n    of two paragraphs\n", [2, 3]),
        ("| a table | cell |\n|---|---|\n\n<!-- hidden -->\n[two words](link.md#x)\n", [2]),
    ],
)
def test_sentences_are_those_of_prose(text: str, lengths: list[int]) -> None:
    assert prose.lengths(text) == lengths
