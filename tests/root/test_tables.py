"""Tables, CSV and JSON: words for the eye, raw values for programs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from queue_runner import tables, units
from queue_runner.errors import UsageError
from queue_runner.reports._common import printing
from queue_runner.reports._common.document import Result, Section
from queue_runner.tables import Column

COLUMNS = [Column("name", "name"), Column("median_s", "ms/iter", words=units.ms, right=True)]
ROWS = [{"name": "a", "median_s": 0.2}, {"name": "b\x1b[31m\nc", "median_s": None}]


def test_a_table_is_harmless_and_lined_up() -> None:
    lines = tables.table(ROWS, COLUMNS).splitlines()
    assert lines == ["name  ms/iter", "----  -------", "a       200.0", "b c         -"]


def test_numbers_that_look_like_words_stay_as_they_are() -> None:
    assert "12.30" in tables.table([{"run": "12.30"}], [Column("run", "run")])
    assert "1e3" in tables.table([{"run": "1e3"}], [Column("run", "run")])


def test_an_empty_table_has_its_head() -> None:
    assert tables.table([], COLUMNS).startswith("name")


def test_markdown_escapes_nothing_away() -> None:
    assert tables.table(ROWS[:1], COLUMNS, "md").splitlines()[0].startswith("| name")


def test_csv_is_raw_and_safe() -> None:
    rows = [
        {"name": '=cmd|"x"', "median_s": 0.1},
        {"name": 'a,"b"\n', "median_s": None},
        {"name": "-1", "median_s": -1.0},
    ]
    read = list(csv.reader(io.StringIO(tables.table(rows, COLUMNS, "csv"))))
    assert read == [["name", "median_s"], ['\'=cmd|"x"', "0.1"], ['a,"b"\n', ""], ["'-1", "-1.0"]]


def test_json_has_no_nan() -> None:
    text = tables.envelope("mpsq.x/1", rows=[{"a": float("nan"), "b": float("-inf"), "c": 1.5}], name="ü")
    assert json.loads(text) == {"schema": "mpsq.x/1", "rows": [{"a": "nan", "b": "-inf", "c": 1.5}], "name": "ü"}


def test_every_format_of_tabulate_works() -> None:
    for name in tables.formats():
        if name not in ("json", "csv"):
            assert "200.0" in tables.table(ROWS, COLUMNS, name), name


def test_an_unknown_format_has_a_near_name() -> None:
    with pytest.raises(UsageError) as error:
        tables.table(ROWS, COLUMNS, "githb")
    assert 'mean "github"' in error.value.hint


def test_facts_line_up_and_are_harmless() -> None:
    assert tables.facts([("a", "1"), ("long", "x\ny\x1b[2J")]) == "a     1\nlong  x\n      y"


@pytest.mark.parametrize(("text", "shown"), [("abcdef", "abc…"), ("abcd", "abcd"), ("a\nb", "a b")])
def test_shorten(text: str, shown: str) -> None:
    assert tables.shorten(text, 4) == shown


RESULT = Result(COLUMNS, ROWS, [Section("By name", COLUMNS[:1], ROWS, ["below"])], ["a is faster"], ["note"])


def test_a_result_in_every_format() -> None:
    table = printing.as_text("x", RESULT, "table")
    assert table.startswith("By name\nname") and table.endswith("below\n\na is faster\n\nnote")
    assert "### By name" in printing.as_text("x", RESULT, "md") and "- a is faster" in printing.as_text(
        "x", RESULT, "md"
    )
    assert printing.as_text("x", RESULT, "csv").splitlines()[0] == "name,median_s"
    said = json.loads(printing.as_text("x", RESULT, "json"))
    assert said["report"] == "x" and said["rows"][0]["median_s"] == 0.2 and said["observations"] == ["a is faster"]
    only_text = Result(COLUMNS, ROWS, text="real 1.00")
    assert printing.as_text("x", only_text, "table") == "real 1.00"
    assert "200.0" in printing.as_text("x", only_text, "md")


def test_wide_letters_take_two_columns() -> None:
    rows = [{"name": "漢字", "n": 1}, {"name": "abcd", "n": 2}, {"name": "\x1b[31mé\x00", "n": 3}]
    shown = tables.table(rows, [tables.Column("name", "name"), tables.Column("n", "n")])
    assert shown.splitlines()[2:] == ["漢字  1", "abcd  2", "é     3"]
    assert tables.elide("漢字漢字漢字", 7) == "漢…漢字" and tables.shorten("漢字漢字", 6) == "漢字…"
    assert tables.shorten("a\n\tb", 9) == "a b"


def test_a_heading_gives_way_with_its_column() -> None:
    columns = [Column("name", "against " + "b" * 40, flexible=True), Column("x", "x" * 50)]
    assert max(map(len, tables.table([{"name": "a", "x": "1"}], columns).splitlines())) <= 80


@pytest.mark.parametrize("took", ["1.50 s", "59 min 59 s"])
def test_an_outcome_stays_whole_while_another_column_has_room(monkeypatch: pytest.MonkeyPatch, took: str) -> None:
    """A time that grew by a few letters broke the outcome of every list at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    row = {"what": "a name: gradient_accumulation=12 batch_size=16", "state": "DEVICE_UNAVAILABLE", "took": took}
    columns = [Column(name, name, flexible=name != "took") for name in row]
    lines = tables.table([row], [*columns, Column("rest", "x" * 33, value=lambda _: "")]).splitlines()
    assert any("DEVICE_UNAVAILABLE" in line for line in lines) and max(map(len, lines)) <= 80


def test_a_word_that_is_too_long_breaks_at_a_mark_and_is_indented() -> None:
    row = {"name": "toy optimizer=adamw_with_a_long_name", "x": "x" * 58}
    text = tables.table([row], [Column("name", "", flexible=True), Column("x", "")])
    assert [line[:20].rstrip() for line in text.splitlines()[2:]] == [
        *("toy", "  optimizer=adamw_", "  with_a_long_name"),
    ]  # fmt: skip


def test_a_heading_of_wide_letters_is_lined_up() -> None:
    rule, row = tables.table([{"a": "1", "b": "x"}], [Column("a", "数据数据"), Column("b", "b")]).splitlines()[1:]
    assert rule.index(" ") == 8 and row.index("x") == 10
