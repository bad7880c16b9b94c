"""The default report on one question: at most 15 lines, and nothing in them that misleads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.analysis.finding import Caveat, NextStep
from queue_runner.analysis.peaks import Peak
from queue_runner.errors import UsageError
from queue_runner.model import OWN_NOTE
from queue_runner.reports._common import footnotes, printing
from queue_runner.reports._common.document import Result
from tests.reports.report_fixture import Store

pytestmark = pytest.mark.fast
BATTERY = {"battery": ("caveat", "the machine ran on battery")}
BUSY = {"contended": ("caveat", "other programs used 60 % of the machine's cores")}


@pytest.fixture
def store(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


def grid(store: Store, n_rounds: int = 4) -> None:
    """A grid of two devices and two modes with everything that the report may have to say."""
    times_s = {("cpu", False): 2.0, ("cpu", True): 1.6, ("mps", False): 0.2210, ("mps", True): 0.3057}
    for k in range(n_rounds):
        for (device, compiled), time_s in times_s.items():
            summary = {"val_loss_last": 1.9, "n_measure": 5}
            taints = {**BATTERY, **(BUSY if k == 1 else {})}
            store.run(device, compiled, time_s * (1 + (k + compiled) / 500), taints=taints, summary=summary)
    store.run("mps", False, median_s=None, outcome="FAILED", exit_code=1, reason="boom")


def losses(store: Store, run: int, value: float) -> None:
    for i in range(40):
        at = {"run_id": run, "i": i, "offset": i, "phase": "measure", "synced": 1}
        store._insert("iterations", **at, dur_s=0.1, loss=value)


@pytest.fixture(params=[80, 60])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def short(store: Store, **options: object) -> list[str]:
    return printing.as_text("devices", store.report(**options), "table").splitlines()


def test_a_grid_fits_fifteen_lines(store: Store, columns: int) -> None:
    grid(store)
    lines = short(store)
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns, "\n".join(lines)
    compiled = " ".join(" ".join(lines).split("compiled vs eager: ")[1:])
    assert compiled.startswith("1.2") and "faster on cpu" in compiled and "1.39 x slower on" in compiled
    assert sum(line.startswith("caveats: ") for line in lines) == 1
    assert lines[-1].startswith("next: ") and "; mpsq report --explain" in lines[-1]


@pytest.mark.parametrize("n_rows", [2, 6, 24])
def test_a_sweep_of_any_length_fits_and_keeps_its_baseline_and_its_best(
    store: Store, columns: int, n_rows: int
) -> None:
    for k in range(4):
        for n in range(n_rows):
            store.run(params={"n_layer": n}, median_s=0.1 * (1 + abs(n - 1)) * (1 + (k * n % 3) / 1000))
    lines = short(store)
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns, "\n".join(lines)
    assert any(line.endswith("baseline") for line in lines) and any(line.startswith("n_layer=1 ") for line in lines)
    assert any("more row" in line for line in lines) == (n_rows == 24)


def _marks(lines: list[str], rows: str) -> tuple[set[str], set[str]]:
    """Return the letters of caveats in the rows that begin so, and those that are explained."""
    in_rows = {word for line in lines if line.startswith(rows) for word in re.findall(r" ([ab])  ", line)}
    return in_rows, {*re.findall(r"\b([ab]) = ", "\n".join(lines))}


def test_the_letters_of_caveats_are_those_of_the_table_that_is_shown(store: Store) -> None:
    """With --by, the table of the metric had no letters, and those of the times were explained below it."""
    for k in range(4):
        for n in range(6):
            run = store.run(params={"n_layer": n}, median_s=0.1, taints=BUSY if n == 1 else {})
            store.metric(run, "score", k / 10)
    lines = short(store, by="score")
    assert not any("speedup" in line for line in lines) and _marks(lines, "n_layer=1") == ({"a"}, {"a"})


def test_each_letter_of_a_table_is_explained(store: Store, columns: int) -> None:
    """ "+2 caveats" hid what two of them mean."""
    kinds = ("battery", "contended", "throttled", "neighbours", "no_gate", "gpu_shared", "drifting")
    taints = {kind: ("caveat", f"something about {kind}") for kind in kinds}
    for k in range(4):
        for n in range(2):
            store.run(params={"n_layer": n}, median_s=0.1 * (1 + k * n / 100), taints=taints)
    store.run(params={"n_layer": 0}, median_s=None, outcome="FAILED", exit_code=1)
    lines = short(store)
    letters = next(iter(re.findall(r" !([a-z]+) ", "\n".join(lines))))
    assert len(letters) == len(kinds) and "caveats: ! 1 run left out" in "\n".join(lines)
    assert [*letters] == re.findall(r"\b([a-z]) = ", " ".join(" ".join(lines).split()))
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns


def test_a_metric_that_no_run_has_is_named_below_the_answer(store: Store, columns: int) -> None:
    for k in range(4):
        for n in range(2):
            store.run(params={"n_layer": n}, median_s=0.1 * (1 + k * n / 100), taints=BATTERY)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.metrics', json_object('score', 'x'))")
    assert any(line.startswith("no verdict on score: no run has it") for line in short(store))


@pytest.mark.parametrize("n_rows", [2, 4])
def test_a_metric_whose_table_has_no_room_is_one_step_away(store: Store, columns: int, n_rows: int) -> None:
    for k in range(4):
        for n in range(n_rows):
            run = store.run(params={"n_layer": n}, median_s=(1 + n) * (0.1 + k / 1e5), hello={"seed": k})
            store.metric(run, "score", n + k * (n + 1) / 1000)
    lines = short(store)
    has_table = any("difference" in line for line in lines)
    assert has_table == (n_rows == 2) != ("mpsq report --by score" in lines[-1]), "\n".join(lines)
    if n_rows > 2:
        given = printing.as_text("devices", store.report(), "table", command="mpsq report g1 --by 'a b' --where n=1")
        assert "mpsq report g1 --where n=1 --by score" in given, "one --by, not two"
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns


def scores(store: Store, n_rows: int, group: int = 1, config: str = "tiny") -> None:
    """Rows that are compared with --metric: their times vary, so that only the score is decided."""
    for k in range(4):
        for n in range(n_rows):
            time_s = 0.1234 * (1 + (k * (n + 1)) % 3)
            given = {"params": {"n_layer": n}, "group": group, "config": config, "hello": {"seed": k}}
            store.metric(store.run(median_s=time_s, **given), "score", n + k * (n + 1) / 1000)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.metrics', json_object('score', 'x'))")
    store.db.execute("UPDATE metrics SET offset = ?", [OWN_NOTE])


def test_a_hidden_table_of_a_metric_leaves_the_word_on_each_row(store: Store, columns: int) -> None:
    scores(store, 4)
    lines = short(store)
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= printing.MOST_LINES and not any("difference" in line for line in lines), "\n".join(lines)
    sentence = text.partition(" score against ")[2].partition(" caveats: ")[0]
    assert [f"n_layer={n}" in sentence for n in range(4)] == [True] * 4 and sentence.count("higher") == 3
    assert "time undecided (" in text


def test_a_summary_of_several_questions_names_each_decided_metric(store: Store, columns: int) -> None:
    for group, config in enumerate(("gpt2", "tiny")):
        scores(store, 2, group + 1, config)
    sentences = "\n".join(short(store)).rpartition("\n\n")[2]
    assert all(f"{letter}: score of n_layer=1 is 1" in sentences for letter in "AB")
    assert "A: undecided: n_layer=1" in sentences


def test_the_caveat_of_a_row_without_room_is_not_explained(store: Store) -> None:
    for n in range(24):
        for _ in range(4):
            taints = BATTERY if n == 23 else BUSY if n == 1 else {}
            store.run(params={"n_layer": n}, median_s=0.1 * (1 + abs(n - 1)), taints=taints)
    lines = short(store)
    assert not any(line.startswith("n_layer=23") for line in lines)
    (letters, explained) = _marks(lines, "n_layer=1 ")
    assert len(letters) == 1 and letters == explained


def test_before_a_run_has_ended_there_is_no_more_to_show(store: Store) -> None:
    for n in range(2):
        store.run(params={"n_layer": n}, outcome=None, median_s=None)
    text = "\n".join(short(store))
    assert "no run has ended yet" in text and "next: " in text and "--explain" not in text


def test_a_time_that_no_row_has_gets_no_column(store: Store) -> None:
    for device in ("cpu", "mps"):
        store.run(device, median_s=None, outcome="FAILED", exit_code=1, reason="boom")
    assert "ms/iter" not in "\n".join(short(store))


def test_each_row_with_an_interval_shows_it(store: Store) -> None:
    for k in range(4):
        for device, time_s in (("cpu", 1.024), ("mps", 1.0)):
            store.run(device, median_s=time_s * (1 + (k * (device == "mps")) / 20000))
    row = next(line for line in short(store) if line.startswith("mps eager"))
    ratio, low, high = (float(word.strip("()")) for word in row.replace(" to ", " ").split()[-4:-1])
    assert low < ratio < high


def test_times_that_a_log_rounds_have_no_spread(store: Store) -> None:
    for device in ("cpu", "mps"):
        for _ in range(4):
            store.run(device, median_s=0.1)
    assert "±" not in "\n".join(short(store))


@pytest.mark.parametrize("wrong", [True, False])
def test_a_wrong_final_loss_is_in_the_short_report(store: Store, wrong: bool) -> None:
    for device, loss in (("cpu", 1.9), ("mps", 3.4 if wrong else 1.905)):
        losses(store, store.run(device, median_s=0.1), loss)
    text = "\n".join(short(store))
    assert ("mps eager ends" in text and "ends at 3.4000" in text) == wrong and ("wrong loss" in text) == wrong


def test_rows_of_another_setting_may_end_at_another_loss(store: Store) -> None:
    for rate, loss in ((0.1, 1.9), (0.2, 3.4)):
        losses(store, store.run(params={"learning_rate": rate}, median_s=0.1), loss)
    assert "wrong loss" not in "\n".join(short(store))


def test_another_config_beside_another_device_is_another_table(store: Store) -> None:
    for config, scale in (("gpt2", 10.0), ("shakespeare_char", 1.0)):
        for device, time_s in (("cpu", 1.0), ("mps", 0.1)):
            store.run(device, median_s=time_s * scale, config=config)
    titles = [section.title for section in store.report().sections if not section.explained]
    assert len(titles) == 2 and "gpt2" in titles[0] + titles[1]
    assert {row["n_rounds"] for row in store.report().rows} == {None, 1}


def test_configs_alone_are_the_question(store: Store) -> None:
    for config in ("gpt2", "shakespeare_char"):
        store.run(config=config)
    assert len([section for section in store.report().sections if not section.explained]) == 1


@pytest.mark.parametrize("n_rows", [2, 6])
def test_tables_of_metrics_that_do_not_fit_are_named(store: Store, columns: int, n_rows: int) -> None:
    for k in range(4):
        for n in range(n_rows):
            run = store.run(params={"n_layer": n}, median_s=0.1 * (1 + n) * (1 + (k * n % 3) / 1000))
            store._insert("metrics", run_id=run, offset=1, name="bleu", value=20.0 + n + k / 10, unit="")
    lines = short(store)
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns, "\n".join(lines)
    assert any("bleu" in line for line in lines)
    sentences = [line for line in lines if line.startswith(("bleu of", "n_layer")) and " than " in line]
    assert not sentences[0].startswith("bleu"), "the answer comes first"


def test_a_table_that_does_not_fit_leaves_its_answer(store: Store, columns: int) -> None:
    for k in range(4):
        for n in range(3):
            run = store.run(params={"n_layer": n}, median_s=0.1 * (1 + n) * (1 + (k * n % 3) / 1000))
            store._insert("metrics", run_id=run, offset=1, name="bleu", value=20.0 + 5 * n + k / 10, unit="")
    text = " ".join(short(store))
    assert "bleu of n_layer=2" in text and "was 10" in text


def test_the_reason_why_a_metric_has_no_verdict_is_shown_whole(store: Store, columns: int) -> None:
    """It stood in the line of caveats, which cut it off before what to do."""
    for k in range(4):
        for n in range(2):
            taints = {**BATTERY, **BUSY, "throttled": ("caveat", "the clock was low")}
            run = store.run(params={"n_layer": n}, median_s=0.1 * (1 + n) * (1 + k * n / 1000), taints=taints)
            store._insert("metrics", run_id=run, offset=1, name="bleu", value=20.0 + n, unit="")
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    lines = short(store)
    assert len(lines) <= printing.MOST_LINES and max(map(len, lines)) <= columns, "\n".join(lines)
    text = " ".join(" ".join(lines).split())
    assert all(x in text for x in ("verdict on bleu", "a row repeats it; use MPSQ_SEED as seed"))


def test_a_value_of_three_hundred_letters_is_not_wider_than_the_terminal(store: Store, columns: int) -> None:
    for k in range(4):
        for end in "ab":
            store.run(params={"text": "x" * 300 + end}, median_s=0.1 * (1 + (end == "b")) * (1 + k / 1000))
    lines = printing.as_text("devices", store.report(), "table", explain=True).splitlines()
    text = "\n".join(lines)
    assert max(map(len, lines)) <= columns and all(f"xx{end}" in text for end in "ab")


@pytest.mark.parametrize("n_caveats", [1, 3])
def test_a_caveat_and_a_command_that_fill_a_line_continue_on_the_next(columns: int, n_caveats: int) -> None:
    """They were cut, with an ellipsis, or the command was left out."""
    reason = "no verdict on accuracy: it never varies, " + "as all runs have one seed, " * 3 + "so use MPSQ_SEED"
    command = "mpsq rerun " + " ".join(map(str, range(1000, 1020)))
    notes = [Caveat(reason, ": 1.1"), *(Caveat(f"caveat {n}") for n in range(1, n_caveats)), NextStep("again", command)]
    lines = printing.as_text("devices", Result([], [], [], notes=notes), "table").splitlines()
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= columns and f"caveats: {reason}" in text and f"next: {command}" in text
    assert ("+2 caveats" in text) == (n_caveats == 3)


def test_the_name_of_a_metric_is_not_cut(store: Store, columns: int) -> None:
    name = "accuracy_of_the_validation_set_after_training"
    for k in range(4):
        for n in range(2):
            run = store.run(params={"n_layer": n}, median_s=0.1 * (1 + n) * (1 + k * n / 1000))
            store._insert("metrics", run_id=run, offset=1, name=name, value=20.0 + n + k / 10, unit="")
    lines = printing.as_text("devices", store.report(), "table", explain=True).splitlines()
    assert max(map(len, lines)) <= columns and "n_layer=0" in "\n".join(lines)
    table = [line for line in lines if "accuracy_of_the_" in line and "difference" in line]
    assert len(table) == 1 and "…" not in "".join(lines)


def test_a_hint_that_was_followed_is_not_shown(store: Store) -> None:
    grid(store)
    assert "rerun g1 --missing" in "\n".join(short(store, selectors=["g1"]))
    store.run("mps", False, 0.2213, group=2)  # what --missing has queued, in a submission of its own
    assert "missing" not in "\n".join(short(store, selectors=["g1"]))


def test_a_retry_that_succeeded_leaves_nothing_to_run_again(store: Store) -> None:
    grid(store)
    run = store.run("mps", False, 0.2213)
    (job, failed), *_ = store.db.execute("SELECT job_id, repeat FROM runs WHERE outcome = 'FAILED'").fetchall()
    store.db.execute("UPDATE runs SET repeat = ?, attempt = 2 WHERE id = ? AND job_id = ?", [failed, run, job])
    text = "\n".join(short(store))
    assert "1 run left" in text and "out (FAILED)" in text and "missing" not in text


def test_a_retry_of_runs_that_succeeded_replaces_them(store: Store) -> None:
    """Both attempts were pooled: 4/3 runs, with the times of the disturbed night."""
    for k in range(3):
        store.run("cpu", median_s=0.1 * (1 + k / 1000))
        store.run("mps", median_s=0.2 * (1 + k / 1000))
    before = next(line for line in short(store) if line.startswith("mps"))
    store.retry(1, "cpu", median_s=0.4)
    for options in ({}, {"include_invalid": True}):
        text = "\n".join(short(store, **options))
        assert "4/3" not in text and "left out" not in text
        assert before not in text, "its time counts"


def test_a_narrow_interval_is_asked_about_instead_of_hundreds_of_rounds(store: Store) -> None:
    for k in range(6):
        store.run("cpu", median_s=0.1013)
        store.run("mps", median_s=0.1013 * (0.98 + k % 3 / 50))
    text = "\n".join(short(store))
    assert "undecided" in text and "report g1 --same-within 5%" in text
    assert "the same within 5 %" in "\n".join(short(store, same_within="5%"))


@pytest.mark.parametrize("rounds", [5, 6])
def test_rows_that_rounds_do_not_decide_have_a_next_step(store: Store, rounds: int) -> None:
    """It was "undecided (over 200 more rounds)", then a margin that gave no verdict and the same step again."""
    for k in range(rounds):
        for at, device in enumerate(("cpu", "mps")):
            store.run(device, median_s=0.1013 + 0.0407 * ((k + at) % 2) + k**1.5 / 7e4)
    text = " ".join(" ".join(short(store)).split())
    assert "over 200 more rounds" in text and "next: the runs vary too much" in text
    store.run("cpu", outcome=None)
    assert "the runs vary too much" not in " ".join(" ".join(short(store)).split())


def test_a_row_that_rounds_decide_has_its_rounds_as_next_step(store: Store) -> None:
    """Beside them stood that the runs vary too much, since of another row they do."""
    for k in range(6):
        store.run("cpu", median_s=0.1013 + k / 7e3)
        store.run("mps", median_s=0.1013 + (-1) ** k * 0.0103 + k**1.5 / 7e4)
        store.run("cuda", median_s=0.1013 * (0.98 + k % 3 * 0.0613))
    text = " ".join(" ".join(short(store)).split())
    assert "mpsq rerun g1 --rounds" in text and "vary too much" not in text


@pytest.mark.parametrize(("measured", "iters", "longer"), [(10, 150, True), (200, 150, False), (10, 300, False)])
def test_runs_that_measure_little_are_to_be_longer(store: Store, measured: int, iters: int, longer: bool) -> None:
    """nanogpt on an H200 was undecided after 7 rounds that measured 1 of 13 s each, and decided after 5 of 10 s."""
    for k in range(6):
        for device, s, n in (("cpu", 0.1013 + k / 7e3, 150), ("mps", 0.1013 * (0.98 + k % 3 * 0.0613), iters)):
            store.run(device, median_s=s, hello={"planned_iters": n}, summary={"n_measure": measured})
    text = " ".join(" ".join(short(store)).split())
    assert "undecided" in text
    assert ("of 30 s is measured): --set max_iters=1500" in text) == ("max_iters" in text) == longer
    assert ("mpsq rerun g1 --rounds" in text) != longer


def test_held_runs_have_the_command_that_releases_them_as_next_step(store: Store) -> None:
    store.run("cpu")
    store.run("mps", outcome=None)
    assert store.report().next_steps == ["mpsq status"]
    store.db.execute("UPDATE runs SET state = 'HELD' WHERE state = 'QUEUED'")
    assert store.report().next_steps == ["mpsq resume g1"]


def test_rounds_are_offered_for_a_metric_that_somebody_asks_about(store: Store) -> None:
    """Only an open verdict on the time named the command."""
    for k, scores in enumerate(((1.0, 1.3), (1.1, 1.25), (1.05, 1.42))):
        for device, score in zip(("cpu", "mps"), scores, strict=True):
            store.metric(store.run(device, median_s=0.1013 * (2 - (device == "mps")) + k / 1e5), "score", score)
    store.db.execute("UPDATE jobs SET spec_json = json_set(spec_json, '$.seed_by_round', 1)")
    text = " ".join(" ".join(short(store, by="score")).split())
    assert "that of cpu" in text and "undecided: " in text and "mpsq rerun g1 --rounds" in text
    assert "mpsq rerun" not in " ".join(short(store))


def test_a_single_row_shows_the_metric_that_somebody_asks_about(store: Store) -> None:
    """It was refused: "these runs are not compared by score", with advice to submit what had been submitted."""
    store.metric(store.run(), "score", 2.5)
    result = store.report(by="score")
    assert result.rows[0]["metrics"]["score"]["value"] == 2.5
    assert any(line.split() == ["cpu", "eager", "2.500"] for line in short(store, by="score"))
    with pytest.raises(UsageError, match="no selected run has the metric") as refused:
        store.report(by="other")
    assert '"other"?' not in refused.value.hint  # it offered the word that it refused


def undecided(store: Store) -> None:
    """Store three rounds that decide nothing."""
    for k in range(3):
        for device in ("cpu", "mps"):
            store.run(device, median_s=0.1013 * (1 + k * (device == "cpu") / 7))


def close(store: Store, why: str, at: float = 2e9) -> None:
    """Store why no further round follows."""
    store.db.execute("UPDATE groups SET until = 'decided', closed_at = ?, closed_why = ?", [at, why])


def test_no_further_rounds_are_offered_while_some_wait(store: Store) -> None:
    undecided(store)
    close(store, "about 31 more rounds would be needed: mpsq rerun g1 --rounds 31 adds them")
    text = "\n".join(short(store))
    assert "next: mpsq rerun" in text and "g1 --rounds" in text and "further round of g1" in text
    store.run("cpu", median_s=None, outcome=None)
    text = "\n".join(short(store))
    assert "mpsq rerun" not in text and "no further" not in text and "next: mpsq status" in text


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ("deadline_at = 1", "mpsq rerun g1"),
        ("deleted_at = 1", "submit the jobs again"),
        ("spec_json = json_set(spec_json, '$.find_max', 'n=2:8')", "mpsq report scaling g1"),
    ],
)
def test_rounds_are_offered_only_where_they_are_accepted(store: Store, change: str, step: str) -> None:
    undecided(store)
    store.db.execute(f"UPDATE jobs SET {change} WHERE id = 1")
    text = "\n".join(short(store))
    assert "undecided" in text and f"next: {step};" in text and "--rounds" not in text


def test_the_losses_of_compiled_rows_fit_eighty_columns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for compiled in (False, True):
        summary = {"projected_real_s": 3750.0}
        store.run("cpu", compiled, 0.2, summary=summary)
    lines = printing.as_text("devices", store.report(), "table", explain=True).splitlines()
    assert not {"cpu", "eager", "compil"} & {line.strip() for line in lines} and max(map(len, lines)) <= 80
    assert any("projected full run" in line for line in lines)


def test_peaks_of_devices_without_a_name_are_listed() -> None:
    """Names that are not known were compared with texts."""
    known = [(None, None, Peak(2e12, "measured")), ("H200", "bf16", Peak(1e15, "sourced")), (None, "fp32", None)]
    assert [*footnotes.peaks(known, "MFU: relative to")] == [
        "MFU: relative to 2.00 TFLOP/s, (measured)",
        "MFU: relative to 1.00 PFLOP/s, H200 bf16 (sourced)",
    ]


def test_what_ended_the_rounds_is_not_repeated_after_further_ones(store: Store) -> None:
    """ "About 31 more rounds would be needed" stood beside "about 12 more rounds"."""
    undecided(store)
    close(store, "about 31 more rounds would be needed: mpsq rerun g1 --rounds 31 adds them", at=1e9 + 5)
    assert "g1: about 31 more" in "\n".join(short(store))
    for device in ("cpu", "mps"):
        store.run(device, median_s=0.1013, ended_at=1e9 + 9)
    text = "\n".join(short(store))
    assert "no further" not in text and "mpsq rerun g1 --rounds" in text


def test_a_deleted_submission_names_no_refused_command(store: Store) -> None:
    undecided(store)
    close(store, "a run of round 3 was cancelled: mpsq rerun g1 --rounds 3 adds rounds")
    assert "mpsq rerun g1 --rounds" in "\n".join(short(store))
    store.db.execute("UPDATE jobs SET deleted_at = 1 WHERE id = 1")
    text = "\n".join(short(store))
    assert "round 3 was cancelled" in text and "--rounds" not in text
    assert "next: submit the" in text


def test_a_row_that_always_failed_leads_to_its_log_before_it_runs_again(store: Store) -> None:
    """The command that runs it again was offered although a crash stays; then only one that led to the next command."""
    for _ in range(2):
        store.run("cpu", median_s=None, outcome="FAILED", exit_code=1, reason="boom")
    (last,) = (line for line in short(store, selectors=["g1"]) if line.startswith("next: "))
    assert last.startswith("next: mpsq logs 1.2; again after a fix: mpsq rerun g1 --missing")


def test_a_failure_that_was_submitted_again_leads_to_the_new_submission(store: Store) -> None:
    """Its report had no next step."""
    store.run("cpu", median_s=None, outcome="FAILED", exit_code=1)
    for group in (2, 3):
        store.run("cpu", median_s=None, outcome="FAILED", exit_code=1, group=group)
    store.db.execute("UPDATE jobs SET rerun_of = id - 1 WHERE id > 1")
    for selectors in (["g1"], ["g1", "g2"]):
        text = "\n".join(short(store, selectors=selectors))
        assert "next: mpsq report g3" in text and "--missing" not in text
    assert "next: mpsq logs" in "\n".join(short(store, selectors=["g1", "g3"]))
    store.db.execute("UPDATE jobs SET deleted_at = 1 WHERE group_id = 3")
    assert "next: mpsq report g2" in "\n".join(short(store, selectors=["g1"]))


def test_a_row_without_iterations_leads_to_its_log_alone(store: Store) -> None:
    """Such as with a wrong --parser: today's code would report none either."""
    store.run("mps", median_s=None, taints={"unobserved": ("invalid", "it reported no iteration")})
    text = "\n".join(short(store, selectors=["g1"]))
    assert "next: mpsq logs 1.1" in text and "missing" not in text


def test_the_command_that_runs_again_names_every_submission(store: Store) -> None:
    for group in range(1, 8):
        store.run("cpu", median_s=None, outcome="LOST", group=group)
    (step,) = (step for step in store.report(where=["device=cpu"]).next_steps if "missing" in step)
    assert step.endswith(" rerun g1 g2 g3 g4 g5 g6 g7 --missing")
