"""The report ops: coverage, what is not native and why, the slowest fallbacks, and what a version of torch changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store, words


class Checks(Store):
    """A store with runs as jobs/harness/opcheck/run.py reports them."""

    offset = 0

    def opcheck(
        self,
        cells: Mapping[str, str],
        notes: Mapping[str, str] | None = None,
        times_s: Mapping[str, float] | None = None,
        **run: Any,
    ) -> int:
        """`cells`: "add fp32 forward" to a verdict; `notes` the detail of the same."""
        told = {
            "workload": "opcheck",
            "config": "full",
            "dtype": "fp32",
            "median_s": 1.0,
            "summary": {"median_s": None},
        }
        run_id = self.run(**{**told, **run})
        for cell, verdict in cells.items():
            self.offset += 1
            value = (times_s or {}).get(cell)
            name = f"op/{cell.replace(' ', '/')}/{verdict}"
            self._insert("metrics", run_id=run_id, offset=self.offset, name=name, value=value, unit="s", i=0)
            if verdict != "native":
                detail = f"{cell} {verdict} (2 of 8 samples)" + (f": {notes[cell]}" if notes and cell in notes else "")
                self._insert("notes", run_id=run_id, offset=self.offset, kind="opcheck", text=detail)
        return run_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Checks]:
    made = Checks(tmp_path / "home")
    yield made
    made.db.close()


def shown(store: Store, **options: Any) -> str:
    text = printing.as_text("ops", store.report("ops", **options), "table")
    assert max(map(len, text.splitlines())) <= 80, text
    return text


OLD = {"svd fp32 forward": "fallback", "add fp32 forward": "native", "cumsum fp32 forward": "native",
       "poisson fp32 forward": "missing", "old fp32 forward": "native"}  # fmt: skip
NEW = {"svd fp32 forward": "native", "add fp32 forward": "native", "cumsum fp32 forward": "wrong",
       "poisson fp32 forward": "fallback", "new fp32 forward": "native"}  # fmt: skip
WHY = {"svd fp32 forward": "aten::linalg_svd", "cumsum fp32 forward": "3 of 8 elements differ"}


def versions(store: Checks, **run: Any) -> None:
    store.opcheck(OLD, WHY, {"svd fp32 forward": 2e-3}, device="mps", version="2.9.1", **run)
    store.opcheck(NEW, WHY, device="mps", version="2.13.0", **run)


def test_without_a_run_it_says_so(store: Checks) -> None:
    store.run()
    assert "no run of" in shown(store)


def test_verdicts_are_counted_by_dtype_and_direction(store: Checks) -> None:
    cells = {"add fp32 forward": "native", "add fp32 backward": "native", "sin fp32 forward": "wrong",
             "add int64 forward": "missing"}  # fmt: skip
    store.opcheck(cells, {"sin fp32 forward": "4 of 4 elements differ"}, {"add fp32 forward": 1e-5})
    result = store.report("ops")
    rows = {(row["op"], row["dtype"], row["direction"]): row for row in result.rows}
    assert rows["add", "fp32", "forward"]["median_s"] == 1e-5 and rows["add", "fp32", "forward"]["verdict"] == "native"
    assert rows["sin", "fp32", "forward"]["detail"] == "4 of 4 elements differ"
    (coverage, broken, others) = result.sections
    assert [(row.dtype, row.direction, row.verdicts.total(), row.verdicts["native"]) for row in coverage.rows] == [
        ("fp32", "forward", 2, 1), ("fp32", "backward", 1, 1), ("int64", "forward", 1, 0),
    ]  # fmt: skip
    assert [all(x in line for x in ("sin, fp32, forward", "wrong: 4 of 4")) for line in broken.lines] == [True]
    assert [(row.op, row.verdict) for row in others.rows] == [("add", "missing")]
    text = shown(store)
    assert "native: 50.0 % of 4" in text and "opcheck full, cpu" in text and "2.13.0 (run 1.1)" in text


def test_two_versions_are_compared_the_older_one_first(store: Checks) -> None:
    versions(store)
    result = store.report("ops")
    changes = result.sections[-1]
    assert changes.title.startswith("mps, torch 2.9.1 -> mps")
    counted = ("2.13.0: 1 became native", "1 no longer native", "1 changed, 1 new, 1 gone")
    assert all(x in changes.title for x in counted)
    told = [(row.op, row.was.verdict, row.now.verdict) for row in changes.rows]
    assert told == [("cumsum", "native", "wrong"), ("poisson", "missing", "fallback"), ("svd", "fallback", "native")]
    after = {row["op"]: row["change"] for row in result.rows if row["before_of"]}
    assert after == {"svd": "became native", "add": "", "cumsum": "no longer native", "poisson": "changed",
                     "new": "new", "old": "gone"}  # fmt: skip
    text = shown(store)
    assert "slowest fallbacks" in text and "2.00 ms" in text and "aten::linalg_svd" in text


def test_the_baseline_can_be_chosen(store: Checks) -> None:
    versions(store)
    store.opcheck({"svd fp32 forward": "native"}, device="cpu")
    changes = store.report("ops", vs="device=cpu").sections[-2:]
    assert all(section.title.startswith("cpu, torch 2.13.0 -> ") for section in changes)
    assert store.report("ops", vs="torch=2.9.1,device=mps").sections[-1].title.startswith("mps, torch 2.9.1 -> ")
    for vs, said in (("device=tpu", "fits none"), ("device=mps", "fits 2")):
        with pytest.raises(UsageError, match=said) as refused:
            store.report("ops", vs=vs)
        assert "mps, torch 2.9.1" in refused.value.hint
    with pytest.raises(UsageError, match='no table has a "colour"'):
        store.report("ops", vs="colour=red")


def test_environments_and_chosen_runs_are_told_apart(store: Checks) -> None:
    versions(store, env_name="stable")
    store.opcheck(OLD, device="mps", env_name="nightly", version="2.13.0")
    titles = [section.title for section in store.report("ops").sections if "->" in section.title]
    assert [title.split(":")[0] for title in titles] == [
        "mps, torch 2.9.1, env=stable -> mps, torch 2.13.0, env=nightly",
        "mps, torch 2.13.0, env=nightly -> mps, torch 2.13.0, env=stable",
    ]


def test_the_newest_verdict_counts_and_fewer_samples_never_stand_in(store: Checks) -> None:
    run_id = store.opcheck({"cos fp32 forward": "missing"}, device="mps")
    store.offset += 1
    name = "op/cos/fp32/forward/fallback"
    store._insert("metrics", run_id=run_id, offset=store.offset, name=name, value=1e-3, unit="s", i=0)
    store.opcheck({"cos fp32 forward": "native"}, device="mps", params={"samples": 2})
    store.opcheck({"cos fp32 forward": "native"}, device="mps", config="toy")
    store.opcheck({"sin fp32 forward": "native"}, device="mps", params={"types": "fp32"})
    full = [row for row in store.report("ops", where=["config=full"]).rows if row["run"] == "1.1"]
    assert [(row["op"], row["verdict"]) for row in full] == [("cos", "fallback")]
    assert len([s for s in store.report("ops").sections if s.title.startswith("opcheck")]) == 3


def test_runs_that_failed_are_named_and_hostile_names_change_nothing(store: Checks) -> None:
    store.opcheck({"add fp32 forward": "native"}, device="mps", outcome="FAILED", exit_code=1)
    store.opcheck({"add fp32 forward": "excellent", "a/b fp32 forward": "native", "sub fp32 forward": "native"})
    result = store.report("ops")
    assert [row["op"] for row in result.rows] == ["sub"] and "log rewritten): 1.1" in words(result)


def test_csv_and_json_have_all_of_what_the_table_shows_the_first(store: Checks) -> None:
    store.opcheck({f"op{k} fp32 forward": "missing" for k in range(45)}, {"op3 fp32 forward": "x" * 300})
    result = store.report("ops")
    assert "... and 15 more" in shown(store)
    assert len(json.loads(printing.as_text("ops", result, "json"))["rows"]) == 45
    assert len(printing.as_text("ops", result, "csv").splitlines()) == 46
