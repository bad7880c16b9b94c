"""One submission, one table: swept keys are its rows, commands are compared by wall time, names are what rows say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queue_runner.reports._common import printing
from tests.reports.report_fixture import Store, rows, words

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "home")
    yield made
    made.db.close()


def command(store: Store, real_s: float, argv: tuple[str, ...] = ("sleep", "1"), **told: object) -> int:
    """A run of a command that reports no iterations."""
    exit_ = {"real_s": real_s, "user_s": 0.01, "sys_s": 0.02, "max_rss_bytes": 2**20}
    known = {"framework": None, "config": None, "dtype": None, "device": None, "compile": None, "name": "sleep"}
    return store.run(median_s=None, workload=None, argv=argv, exit=exit_, **{**known, **told})  # type: ignore[arg-type]


def shown(store: Store, **options: object) -> str:
    text = printing.as_text("devices", store.report(**options), "table")
    assert max(map(len, text.splitlines())) <= 80, text
    return text


def sweep(store: Store, group: int, *texts: str) -> None:
    """A submission of these command lines, which took 0.1 s, 0.2 s and so on."""
    for k in range(4):
        for at, text in enumerate(texts, 1):
            command(store, 0.1 * at + k * 1e-3, tuple(text.split()), name=text, group=group)


def test_submissions_of_other_commands_are_tables_of_their_own(store: Store) -> None:
    """One table had the verdicts of sleep against python."""
    sweep(store, 1, "sleep 0.2", "sleep 0.4")
    sweep(store, 2, "python a.py", "python b.py", "python c.py")
    sweep(store, 3, "sleep 0.4", "sleep 0.8")
    result = store.report()
    titles = [section.title for section in result.sections if section.title]
    assert [(title[:2], title[-4:]) for title in titles] == [("A:", "(g3)"), ("B:", "(g2)"), ("C:", "(g1)")]
    assert [title[3:].split(", ")[:-1] for title in titles] == [
        ["sleep 0.4", "sleep 0.8"],
        ["python a.py", "python b.py", "python c.py"],
        ["sleep 0.2", "sleep 0.4"],
    ]
    assert [row["table"] for row in result.rows] == [1, 1, 2, 2, 2, 3, 3]
    assert [row["is_baseline"] for row in result.rows] == [True, False, True, False, False, True, False]
    assert {row["n_rounds"] for row in result.rows} == {4, None}
    assert store.report(selectors=["g1"]).rows == [{**row, "table": 1} for row in result.rows[5:]]
    assert len({row["table"] for row in store.report(selectors=["g1", "g2"]).rows}) == 2
    together = store.report(vs="name=python a.py")
    assert len({row["table"] for row in together.rows}) == 1, "this asks about all"


def test_sweeps_of_one_setting_by_two_scripts_are_two_tables(store: Store) -> None:
    """Both are called python3. Their code stands in the titles, the value in the rows, and no row differs in both."""
    for group, code in enumerate(("time.sleep({n})", "print({n})"), 1):
        for n in ("1", "2"):
            for k in range(4):
                argv = ("python3", "-c", code.format(n=n))
                command(store, float(n) + k * 1e-3, argv, name="python3", params={"n": n}, group=group)
    result = store.report()
    titles = [section.title for section in result.sections if section.title]
    assert [(title[:10], title[-4:]) for title in titles] == [("A: python3", "(g2)"), ("B: python3", "(g1)")]
    assert [title.split(", ")[1] for title in titles] == ["print({n})", "time.sleep({n})"]
    assert [row["label"] for row in result.rows] == ["n=1", "n=2"] * 2
    assert "also differ" not in words(result)


def test_a_rerun_of_a_submission_or_a_part_of_it_adds_to_its_table(store: Store) -> None:
    sweep(store, 1, "sleep 0.2", "sleep 0.4")
    sweep(store, 2, "sleep 0.2", "sleep 0.4")
    sweep(store, 3, "sleep 0.2")
    (title,) = [section.title for section in store.report().sections if section.title]
    assert title == "sleep 0.2, sleep 0.4"
    assert {label: row["n_runs"] for label, row in rows(store.report()).items()} == {"sleep 0.2": 12, "sleep 0.4": 8}
    by_device = store.run("cpu", params={"batch_size": 8}, group=4), store.run("cpu", params={"batch_size": 9}, group=4)
    store.run("mps", params={"batch_size": 8}, group=5), store.run("mps", params={"batch_size": 9}, group=5)
    assert by_device and len({row["table"] for row in store.report(where=["name=nanogpt"]).rows}) == 1


def test_a_swept_command_is_compared_by_wall_time_in_one_table(store: Store) -> None:
    for k in range(4):
        for s in ("0.2", "0.4"):
            command(store, float(s) + k * 1e-3, ("sleep", s), params={"s": s})
    result = store.report()
    found = rows(result)
    assert list(found) == ["s=0.2", "s=0.4"] and {row["time_of"] for row in result.rows} == {"run"}
    assert found["s=0.4"]["verdict"] == "slower" and found["s=0.4"]["speedup"] == pytest.approx(0.5, rel=0.01)
    assert found["s=0.4"]["speedup_low"] < 0.5 < found["s=0.4"]["speedup_high"] + 0.01
    assert found["s=0.2"]["median_s"] == pytest.approx(found["s=0.2"]["real_s"], rel=1e-3)
    text = shown(store)
    assert text.splitlines()[0] == "sleep, 4 runs each"
    for title in ("wall s", "user", "sys", "RSS", "95 % CI", "verdict"):
        assert title in text.splitlines()[1], title
    text = " ".join(text.split())
    assert "s=0.2 is 1.99 x faster than s=0.4, 0.2015 vs 0.4015 s (95 % CI" in text
    turned = rows(store.report(vs="s=0.4"))
    assert turned["s=0.2"]["verdict"] == "faster" and turned["s=0.4"]["is_baseline"]


@pytest.mark.parametrize("told", ["variables", "software"])
def test_commands_with_other_variables_are_rows_of_their_own(store: Store, told: str) -> None:
    """One thread and two threads were one median: "sh 4/4 0.032 ± 0.010"."""
    for k, real_s in (("1", 0.02), ("2", 0.04)):
        variables = {"OMP_NUM_THREADS": k}
        for _ in range(2):
            command(store, real_s, **{told: variables if told == "variables" else {"env": variables}})
    assert list(rows(store.report())) == ["OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"]


def test_a_grid_of_a_workload_is_one_table_and_a_second_submission_another(store: Store) -> None:
    for batch in (8, 16):
        for k in range(4):
            store.run(median_s=0.1 * batch * (1 + k / 100), params={"batch_size": batch, "lr": 0.1})
    store.run(params={"batch_size": 8, "lr": 0.2}, group=2)
    result = store.report()
    titles = [section.title for section in result.sections if section.title]
    assert [(title[:2], title[-4:]) for title in titles] == [("A:", "(g2)"), ("B:", "(g1)")]
    assert "batch_size=8, lr=0.2" in titles[0] and "cpu eager, lr=0.1" in titles[1] and "batch_size" not in titles[1]
    assert {row["label"]: row["is_baseline"] for row in result.rows[1:]} == {
        "batch_size=8": True,
        "batch_size=16": False,
    }
    assert "B: batch_size=8 is 2.000 x faster than batch_size=16" in words(result)


def test_what_a_submission_swept_does_not_depend_on_what_is_looked_at(store: Store) -> None:
    for config in ("small", "tiny"):
        store.run(config=config)
    (row,) = store.report(where=["config=tiny"]).rows
    (title,) = [section.title for section in store.report(where=["config=tiny"]).sections if section.title]
    assert title.startswith("nanogpt tiny") and row["label"] == "cpu eager"
    assert [row["label"] for row in store.report().rows] == ["small", "tiny"]


def test_a_name_is_what_rows_say_although_the_hello_names_a_workload(store: Store) -> None:
    for name in ("before", "after"):
        store.run(name=name)
        store.run(workload=None, name=f"my {name}", hello={"workload": "nanogpt"}, group=2)
    assert sorted(row["workload"] for row in store.report(where=["group=1"]).rows) == ["after", "before"]
    assert sorted(rows(store.report(where=["group=1"]))) == ["after", "before"]
    found = store.report(where=["group=2"])
    assert sorted(rows(found)) == ["my after", "my before"]
    assert "my before tiny" in " ".join(str(row["label"]) for row in store.report("time").rows)
    other = store.run(name="evals", params={"mode": "eval"}, hello={"workload": "nanogpt-eval"}, group=3)
    assert other and [row["workload"] for row in store.report(where=["group=3"]).rows] == ["evals-eval"]


def test_ours_against_a_script_of_the_users_per_token(store: Store) -> None:
    """A declared baseline is compared although config and settings have other names there; FLOP are not known."""
    for k in range(4):
        in_turn = 1e9 + 10 * k + 5 * (k % 2)  # of two submissions: A B, B A, A B, B A
        hello = {"tokens_per_iter": 100.0}
        store.run(median_s=0.1 * (1 + k / 100), params={"lr": 0.1}, hello=hello, ended_at=in_turn)
        theirs = {"workload": "nanogpt", "tokens_per_iter": 200.0, "flops_per_iter": None}
        store.run(
            workload=None, median_s=0.3 * (1 + k / 100), config=None, hello=theirs, group=2, ended_at=1e9 + 10 * k + 2
        )
    assert not any(row["verdict"] for row in store.report().rows), "not compared unless the user says so"
    result = store.report(vs="name=train.py")
    (ours,) = [row for row in result.rows if row["workload"] == "nanogpt"]
    assert ours["speedup"] == pytest.approx(1.5) and ours["verdict"] == "faster"
    assert "per token" in words(result) and "than train.py" in words(result)
    assert "nanogpt is 1.50 x faster" in words(result)


def test_a_workload_and_a_command_of_one_submission_are_one_table(store: Store) -> None:
    for k in range(4):
        store.run(median_s=0.1, exit={"real_s": 10.0 + k / 100})
        command(store, 20.0 + k / 100, ("python", "mine.py"), name="mine.py")
    result = store.report()
    assert len([section for section in result.sections if section.title]) == 1
    found = rows(result)
    assert len(found) == 2 and {row["time_of"] for row in result.rows} == {"run"}, "mine.py reports no iterations"
    assert sorted(row["speedup"] for row in result.rows) == [
        pytest.approx(1.0),
        pytest.approx(2.0, rel=0.01),
    ] or sorted(row["speedup"] for row in result.rows) == [pytest.approx(0.5, rel=0.01), pytest.approx(1.0)]


def test_times_of_whole_runs_are_never_compared_with_those_of_iterations(store: Store) -> None:
    store.run(median_s=0.1)
    command(store, 20.0, name="mine.py", group=2)
    result = store.report()
    assert not any(row["speedup"] for row in result.rows)
    assert [row["time_of"] for row in result.rows] == ["run", "iteration"]


@pytest.mark.parametrize("kind", ["wrong_clock", "unsynced"])
def test_a_clock_that_cannot_be_trusted_makes_all_rows_compared_by_wall_time(store: Store, kind: str) -> None:
    """mps reports a tenth of the time that its measured phase took: not 20 x faster, but 2 x."""
    for k in range(4):
        for device, told_s, phase_s in (("cpu", 0.2, 20.0 + k / 10), ("mps", 0.01, 10.0 + k % 3 / 10)):
            taints = {kind: ("caveat", "the detail")} if device == "mps" and k == 3 else {}
            store.run(device, median_s=told_s, summary={"measure_s": phase_s, "n_measure": 100}, taints=taints)
    compared = rows(store.report())
    assert {row["time_of"] for row in compared.values()} == {"phase"}
    assert compared["mps eager"]["median_s"] == pytest.approx(0.1, rel=0.02)
    assert (compared["mps eager"]["verdict"], compared["mps eager"]["speedup"]) == (
        "faster",
        pytest.approx(2, rel=0.02),
    )
    assert "doubtful: mps" in words(store.report())
    assert "median of a run" not in words(store.report())
    store.db.execute("UPDATE summaries SET measure_s = NULL")
    assert {row["time_of"] for row in rows(store.report()).values()} == {"run"}


def test_a_trainer_that_reports_every_tenth_iteration_is_not_ten_times_slower(store: Store) -> None:
    for device, every in (("cpu", 1), ("mps", 10)):
        taints = {"wrong_clock": ("caveat", "the detail")} if device == "mps" else {}
        run_id = store.run(device, summary={"measure_s": 10.0, "n_measure": 100 // every}, taints=taints)
        for i in range(0, 100, every):
            store.iterations(run_id, [0.1], first=i)
    assert [row["median_s"] for row in store.report().rows] == pytest.approx([0.1, 0.1], rel=0.1)


def test_rows_that_are_all_unsynced_keep_their_iterations(store: Store) -> None:
    for device in ("cpu", "mps"):
        store.run(device, taints={"unsynced": ("caveat", "the detail")})
    assert {row["time_of"] for row in store.report().rows} == {"iteration"}


def test_grouping_commands_by_a_setting_pools_the_rest(store: Store) -> None:
    for s in ("0.2", "0.4"):
        for n in ("1", "2"):
            command(store, float(s), params={"s": s, "n": n})
    assert sorted(rows(store.report(group_by="s"))) == ["s=0.2", "s=0.4"]
    assert "differ in n:" in words(store.report(group_by="s"))


def test_in_short_invalidity_stays_and_explanations_do_not(store: Store) -> None:
    for device, time_s in (("cpu", 2.0), ("mps", 0.2)):
        for _ in range(4):
            store.run(device, median_s=time_s, taints={"battery": ("caveat", "the machine ran on battery")})
    store.run("mps", median_s=0.9, taints={"contended": ("invalid", "other programs used 40 % of the cores")})
    store.run("mps", median_s=None, outcome="FAILED", exit_code=1, reason="boom")
    text = shown(store)
    assert all(x in text for x in ("! 2 runs left", "out (contended, FAILED)", "a = battery"))
    assert "rerun g1 --missing" in text and "4/6" in text and "--explain" in text
    assert "median" not in text and "real" not in text
    whole = printing.as_text("devices", store.report(), "table", explain=True)
    for line in ("2.6 FAILED(1): boom", "a = battery: the machine ran on battery", "real, user, sys"):
        assert line in " ".join(whole.split())
    assert "--explain" not in whole


def test_no_label_is_cut_in_80_columns(store: Store) -> None:
    swept = [("cuda", "reduce-overhead", 8), ("cuda", "max-autotune", 8), ("cpu", False, 16)]
    for k in range(8):
        for device, mode, steps in swept:
            run = {"params": {"gradient_accumulation_steps": steps}, "median_s": 0.1 * steps * (1 + k / 100)}
            store.run(device, mode, taints={"contended": ("invalid", "busy")} if k > 5 else {}, **run)
    text = shown(store)
    whole = "".join(line[:30].strip() for line in text.splitlines())  # a long label goes on below itself
    assert "\N{HORIZONTAL ELLIPSIS}" not in text and "..." not in text, text
    for mode in ("compiled(reduce-overhead)", "compiled(max-autotune)"):
        assert mode in whole, text


def test_rows_stand_in_the_order_of_their_numbers(store: Store) -> None:
    for s in ("16", "8", "0.5", "a10", "a9", "1e-3"):
        command(store, 1.0, ("sleep", s), params={"s": s})
    assert list(rows(store.report())) == ["s=1e-3", "s=0.5", "s=8", "s=16", "s=a9", "s=a10"]


@pytest.mark.parametrize(
    ("shown", "whole"),
    [({"where": ["n=0,3"]}, {}), ({"where": ["n=1,3"]}, {"vs": "n=1"}), ({"selectors": ["1", "4"]}, {})],
)
def test_a_pair_has_the_same_answer_whatever_else_is_shown(
    store: Store, shown: dict[str, Any], whole: dict[str, Any]
) -> None:
    """A filter to two of four rows turned "faster" into "undecided": the noise of the others was not used."""
    for noise in (0.0, 0.004, -0.003):
        for n, time_s in enumerate((0.1, 0.15, 0.22, 0.31)):
            store.run(median_s=time_s * (1 + noise * (n % 2)), params={"n": n})
    keys = ("speedup", "speedup_low", "speedup_high", "verdict", "n_rounds")
    part, all_rows = (rows(store.report(**options))["n=3"] for options in (shown, whole))
    assert [part[key] for key in keys] == [all_rows[key] for key in keys] and part["verdict"] == "slower"


def test_hidden_rows_change_neither_the_unit_nor_the_times(store: Store) -> None:
    """Sizes that are hidden made the sentence one of tokens; a command without iterations, one of whole runs."""
    for noise in (0.00012345, 0.0041237, -0.0031111):
        for device, time_s in (("cpu", 0.1), ("mps", 0.05)):
            for size in (8, 16):
                noisy_s = time_s * math.exp(noise * (size if device == "mps" else 1) / 8) * size / 8
                hello = {"tokens_per_iter": 64.0 * size}
                store.run(device, median_s=noisy_s, params={"batch_size": size}, hello=hello)
        for name, time_s, real_s in (("a", 0.01, 10.0), ("b", 0.02, 5.0)):
            run_s = {"real_s": real_s * math.exp(noise)}
            store.run(median_s=time_s * math.exp(noise * real_s), name=name, workload=None, exit=run_s, group=2)
        command(store, 1.0 + noise, name="c", group=2)
    assert all(x in shown(store, where=["batch_size=8"]) for x in ("mps eager is 2.00 x", "cpu eager, 50"))
    assert "a is 2.0" in (text := shown(store, where=["name=a,b"])) and " x faster than b" in text


def test_the_disturbed_rounds_of_a_part_are_judged_with_the_noise_of_the_whole(store: Store) -> None:
    """A filtered report had the caveat that without them a verdict would change, the whole one did not."""
    for k, noise in enumerate((0.0001, 0.0042, -0.0031, 0.0017)):
        for n, time_s in enumerate((0.1, 0.15, 0.22, 0.31)):
            taints = {"contended": ("caveat", "other programs used 40 % of the cores")} if k == 3 else None
            store.run(median_s=time_s * math.exp(noise * (n % 2 + 1)), params={"n": n}, taints=taints)
    for where in ([], ["n=0,3"]):
        assert "disturbed round" not in words(store.report(where=where))


def test_a_part_is_compared_although_all_rounds_of_a_hidden_row_were_disturbed(store: Store) -> None:
    """Two jobs of three ended with "fmean requires at least one data point"."""
    for noise in (0.0001, 0.0042, -0.0031):
        for n, time_s in enumerate((0.1, 0.15, 0.22)):
            taints = {"contended": ("caveat", "other programs used 40 % of the cores")}
            store.run(median_s=time_s * math.exp(noise * (n % 2 + 1)), params={"n": n}, taints=taints)
    assert "n=0 is 1.50 x faster than n=1" in words(store.report(where=["n=0,1"]))
