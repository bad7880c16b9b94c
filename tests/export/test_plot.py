"""What mpsq report --plot draws: every run and iteration, and labels that are text."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from queue_runner.errors import UsageError
from queue_runner.export import picture
from queue_runner.reports._common.report_options import read_options
from queue_runner.store import read
from tests.cli_support import Cli
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.process

N_ITERATIONS = 3000


@pytest.fixture
def compared(home: Path, tmp_path: Path) -> Store:
    """Seven runs of each of two rows, in turn, one of them not valid; the first iteration of each is not measured."""
    made = Store(home)
    home.chmod(0o700)
    made.layout.db.chmod(0o600)
    for k in range(14):
        bad = {"contended": ("invalid", "others used the CPU")} if k == 3 else {}
        median_s = (0.1 if k % 2 else 0.2) * (1 + k % 5 / 1000)
        run_id = made.run(("cpu", "mps")[k % 2], median_s=median_s, taints=bad)
        made.db.execute("UPDATE runs SET started_at = ? WHERE id = ?", [1e9 + k, run_id])
        made.iterations(run_id, [2.0], phase="compile")
        made.iterations(run_id, [median_s] * (N_ITERATIONS if k == 0 else 20), first=1)
    return made


def plot(store: Store, **options: Any) -> picture.Plot:
    with read.reading(store.layout.db) as connection:
        return picture.read(connection, read_options(**options))


def test_rows_runs_and_intervals_are_those_of_the_report(compared: Store) -> None:
    (one,) = plot(compared).comparisons
    reported = {row["label"]: row for row in compared.report().rows}
    drawn = {arm.label: [drawn.run.run for drawn in one.runs if one.rows[drawn.row] is arm] for arm in one.rows}
    assert drawn == {label: row["runs"] for label, row in reported.items()}
    assert [drawn.run.run for drawn in one.runs if not drawn.used] == ["2.2"]


def test_every_iteration_is_drawn(compared: Store, tmp_path: Path) -> None:
    found = plot(compared)
    assert found.size == f"2 rows, 14 runs, {N_ITERATIONS + 1 + 13 * 21:,} iterations"
    picture.write(found, tmp_path / "a.svg")
    paths = [path.get("d") or "" for path in ET.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}path")]
    longest = sorted(len(re.findall("[ML]", path)) for path in paths)[-2:]
    assert longest == [N_ITERATIONS + 1] * 2  # the time and the loss of the first run
    assert plot(compared, iters="1:10").size == "2 rows, 14 runs, 140 iterations"


def test_a_png_is_a_picture(compared: Store, tmp_path: Path) -> None:
    from PIL import Image

    picture.write(plot(compared), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        image.verify()
        assert image.format == "PNG" and image.size[0] == 1440


def test_axes_have_units_and_what_is_not_valid_is_named(compared: Store, tmp_path: Path) -> None:
    picture.write(plot(compared), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    for words in (
        "median time per iteration (ms)",
        "time (ms, logarithmic)",
        "loss (nats)",
        "times as fast as cpu eager",
        "not valid: in no number of the report",
        "not measured",
        "mps eager  6/7",
    ):
        assert words in text, words


def test_labels_are_text_only(compared: Store, tmp_path: Path) -> None:
    hostile = "<script>$\\frac{1$ & \x1b[31m ]]>"
    compared.db.execute("UPDATE hellos SET config = ?", [hostile])
    compared.db.execute("UPDATE jobs SET config = ?", [hostile])
    found = plot(compared)
    picture.write(found, tmp_path / "a.svg")
    assert "script" not in {node.tag.rpartition("}")[2] for node in ET.parse(tmp_path / "a.svg").iter()}
    assert "\x1b" not in (tmp_path / "a.svg").read_text()


def test_rows_without_iterations_show_their_real_time(home: Path, tmp_path: Path) -> None:
    store = Store(home)
    store.run(workload=None, framework=None, median_s=None, argv=["sleep", "1"])
    found = plot(store)
    assert found.comparisons[0].family.wall
    picture.write(found, tmp_path / "a.svg")
    assert "real time" in (tmp_path / "a.svg").read_text()


def test_many_rows_and_machines(home: Path, tmp_path: Path) -> None:
    store = Store(home)
    for k in range(30):
        store.run(median_s=0.1 + k / 100, params={"lr": k // 2}, machine={"name": "a" if k % 2 else "b"})
    found = plot(store)
    assert [len(one.rows) for one in found.comparisons] == [15] and "1 older comparison" in found.notes[0]
    found = plot(store, where=["device=cpu"])
    assert [len(one.rows) for one in found.comparisons] == [15, 15] and not found.notes
    picture.write(found, tmp_path / "a.png")


def test_the_option_of_report(compared: Store, mpsq: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a.svg"
    assert "2 rows, 14 runs, 3,274 iterations" in mpsq.ok("report", "g1", "--plot", out).err
    before = out.read_bytes()
    for arguments, message in (
        (["--plot", tmp_path / "a.jpg"], "neither .png nor .svg"),
        (["--plot", tmp_path / "b" / "a.png"], "does not exist"),
        (["--plot", out, "--where", "device=cuda"], "no run that ended matches"),
        (["--plot", out, "--where", "devise=cpu"], 'did you mean "device"'),
        (["gallery", "--plot", out], "--plot draws the default report"),
        (["--json", "--plot", out], "--plot draws the default report"),
    ):
        ran = mpsq("report", *arguments)
        assert ran.code == 2 and message in ran.err, (arguments, ran)
    mpsq.ok("report", "--plot", out)
    assert out.read_bytes() == before, "the same picture, byte by byte"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = mpsq("report", "--plot", tmp_path / "c.png")
    assert ran.code == 2 and "not installed" in ran.err and "pip install matplotlib" in ran.err
    assert not (tmp_path / "c.png").exists()


def test_nothing_to_draw(home: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run that ended"):
        plot(Store(home))


def test_a_run_that_a_retry_has_replaced_is_not_drawn(compared: Store) -> None:
    compared.retry(1, "cpu", median_s=0.2)
    (one,) = plot(compared).comparisons
    assert [arm.n_ended for arm in one.rows] == [7, 7] and len(one.runs) == 14
