"""A request becomes the cells of its grid, each a whole question."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from queue_runner.errors import UsageError
from queue_runner.spec import EnvironmentJson, JobSpec
from queue_runner.submit import expand
from tests.cli_support import use_toy_workloads
from tests.submit_support import requested


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_toy_workloads(tmp_path / "jobs", monkeypatch)
    monkeypatch.chdir(tmp_path)


def test_a_workload_has_defaults() -> None:
    (spec,) = expand.expand(requested(workload="toy"))
    assert (spec.device, spec.compile, spec.dtype, spec.config, spec.seed) == ("auto", False, "fp32", "tiny", 1337)
    assert (spec.workload, spec.framework, spec.script, spec.params) == ("toy", "torch", "toy_torch.py", {})
    assert spec.python == sys.executable and spec.cwd == str(Path.cwd())


def test_each_round_has_its_own_seed_unless_one_is_chosen() -> None:
    (spec,) = expand.expand(requested(workload="toy"))
    assert [spec.in_round(number).seed for number in (1, 2, 7)] == [1337, 1338, 1343]
    (chosen,) = expand.expand(requested(workload="toy", seed=1337))
    assert [chosen.in_round(number).seed for number in (1, 2, 7)] == [1337, 1337, 1337]
    assert chosen.content_hash() == spec.content_hash()  # one question: reports compare the seeds of the runs
    older = {name: value for name, value in asdict(spec).items() if name != "seed_by_round"}
    assert JobSpec(**older).in_round(2).seed == 1337  # a job of an earlier version repeats its seed


@pytest.mark.parametrize(
    ("parser", "asked", "written"),
    [
        ("nanogpt", "both", ["False", "True"]),
        ("nanogpt", "on", ["True"]),
        (None, "both", ["off", "on"]),
        (None, "True,False", ["True", "False"]),
    ],
)
def test_a_command_gets_compile_in_the_words_that_it_understands(
    parser: str | None, asked: str, written: list[str]
) -> None:
    specs = expand.expand(requested(argv=("sh", "x.sh", "--compile={compile}"), compile=asked, parser=parser))
    assert [spec.argv[-1] for spec in specs] == [f"--compile={word}" for word in written]
    assert [spec.compile for spec in specs] == [word in ("on", "True") for word in written]


def test_what_reports_know_is_no_setting_of_a_command() -> None:
    """As a setting it would be told as another than it is: compile=True as eager."""
    with pytest.raises(UsageError, match="compile is an option, not"):
        expand.expand(requested(argv=("sh", "x.sh", "--compile={compile}"), sets=("compile=True,False",)))


def test_a_workload_grid() -> None:
    request = requested(
        workload="toy", framework="torch,mlx", device="cpu,mps", compile="both", sets=("lr=1e-3,1e-4", "data=a")
    )
    specs = expand.expand(request)
    assert len(specs) == 16 and len({spec.content_hash() for spec in specs}) == 16
    assert {spec.params["data"] for spec in specs} == {"a"}
    assert {spec.script for spec in specs} == {"toy_torch.py", "toy_mlx.py"}


def test_equal_questions_have_equal_hashes(tmp_path: Path) -> None:
    (one,) = expand.expand(requested(workload="toy"))
    (other,) = expand.expand(requested(workload="toy", name="other", cwd=str(tmp_path / "jobs")))
    assert one.content_hash() == other.content_hash()
    assert JobSpec.from_json(one.to_json()) == one


def test_an_environment_that_is_encoded_once_changes_no_json() -> None:
    """Also where words of the command look like the place of the environment."""
    words = ("sh", '"env":null', ',"env":null,')
    specs = [
        JobSpec("command", "x", argv=words, cwd='/"env":null', env=env)
        for env in ({}, {"A": '"env":null'}, {"A": '"env":null'}, {"\\": "é\udcff\n"})
    ]
    environments = EnvironmentJson()
    assert [spec.to_json(environments) for spec in specs] == [spec.to_json() for spec in specs]


def test_a_command_says_its_device_and_mode_in_nanogpts_way() -> None:
    (spec,) = expand.expand(requested(argv=("sh", "train.sh", "--device=mps", "--compile=False")))
    assert (spec.kind, spec.name, spec.device, spec.compile) == ("command", "train.sh", "mps", False)
    (spec,) = expand.expand(requested(argv=("sh", "--device=tpu")))
    assert (spec.name, spec.device, spec.compile) == ("sh", None, None)
    (spec,) = expand.expand(requested(argv=("sh", "--device=mps"), device="cpu"))
    assert spec.device == "cpu"


def test_a_command_is_swept_by_its_braces() -> None:
    request = requested(argv=("sh", "--lr={lr}", "{device}", "{{other}}"), device="cpu,mps", sets=("lr=1,2",))
    argvs = {spec.argv for spec in expand.expand(request)}
    assert argvs == {("sh", f"--lr={lr}", device, "{other}") for lr in "12" for device in ("cpu", "mps")}


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{s}", "0.2"),
        ("--n={s},{s}", "--n=0.2,0.2"),
        ("{{s}}", "{s}"),
        ("{{s}={s}", "{s}=0.2"),
        ('{"a": {"s": {s}}}', '{"a": {"s": 0.2}}'),
        ("{print $1}", "{print $1}"),
        ("{{ x }} {{other}} {} { ${HOME}", "{{ x }} {other} {} { ${HOME}"),
    ],
)
def test_only_swept_keys_are_replaced_in_a_command(word: str, filled: str) -> None:
    (spec,) = expand.expand(requested(argv=("echo", "{s}", word), sets=("s=0.2",)))
    assert spec.argv == ("echo", "0.2", filled)


@pytest.mark.parametrize(
    ("words", "sets", "message", "hint"),
    [
        (("go.py", "{kk}"), ("k=3",), "contains {kk}, but no option sets its value", 'did you mean "k"'),
        (("go.py", "{k}", "--out={kk}.json"), ("k=3",), "contains {kk}, but no option sets its value", "mean"),
        (("-c", "print {k}; {whole}"), ("k=3",), "contains {whole}, but", "{{whole}} for the literal text {whole}"),
        (("go.py", "--lr={lr}"), (), "contains {lr}, but no option sets", "add --set lr=VALUE"),
        (("go.py", "--out=result_{kk}.json"), (), "contains {kk}, but", "add --set kk=VALUE"),
        (("go.py", "optim.lr={lr}"), (), "contains {lr}, but", "add --set lr=VALUE"),
        (("go.py", "on_{device}"), (), "contains {device}, but", "add --device VALUE"),
        (("go.py", "--device=mps", "on_{device}"), (), "contains {device}, but", "add --device VALUE"),
        (("go.py",), ("k=3",), "the command does not use {k}, which is set to 3", "--k={k}"),
        (("go.py", "{{k}}"), ("k=3",), "the command does not use {k}", "--k={k}"),
    ],
)
def test_a_place_without_a_value_and_a_value_without_a_place(
    words: tuple[str, ...], sets: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as error:
        expand.expand(requested(argv=("echo", *words), sets=sets))
    assert message in error.value.message and hint in error.value.hint


@pytest.mark.parametrize(
    ("word", "stored"),
    [
        *((word, word) for word in ("{print}", "NR==1{print}", "{ print }", "{x}", "{{k}}", "{}", '{"a":1}', "{a,b}")),
        *((word, word) for word in ("${HOME}", "%{code}", "--f=%{code}", "HEAD@{upstream}", "{cwd}/a", "--a={cwd}")),
        ("awk '{print}' ${HOME}; f'{x}'", "awk '{print}' ${HOME}; f'{x}'"),
        ("--lr={{lr}}", "--lr={lr}"),
        ("{{device}}", "{device}"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--device=mps",)])
def test_without_values_a_command_runs_as_typed(word: str, stored: str, more: tuple[str, ...]) -> None:
    """Only where a word asks for a value is a brace doubled to mean itself."""
    (spec,) = expand.expand(requested(argv=("sh", word, *more)))
    assert spec.argv[1] == stored


def test_a_value_with_braces_is_not_filled_again_and_an_escaped_key_is_no_place() -> None:
    (spec,) = expand.expand(requested(argv=("echo", "{a} {b}"), sets=("a={b}", "b=1")))
    assert spec.argv[1] == "{b} 1"
    with pytest.raises(UsageError, match="does not use"):
        expand.expand(requested(argv=("echo", "{{s}}"), sets=("s=1,2",)))


def test_an_interpreter_keeps_its_links(tmp_path: Path) -> None:
    """A virtual environment is where the link to its python lies."""
    link = tmp_path / "venv-python"
    link.symlink_to(sys.executable)
    (spec,) = expand.expand(requested(workload="toy", python="./venv-python"))
    assert spec.python == str(link)


def test_the_environment_is_the_submitters_with_additions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], "A": "1", "HF_TOKEN": "x", "MPSQ_HOME": "/x"})
    (spec,) = expand.expand(requested(workload="toy", env=("A=2", "HF_TOKEN=said")))
    assert spec.env == {"PATH": os.environ["PATH"], "A": "2", "HF_TOKEN": "said"}


def test_a_program_is_looked_for_in_the_jobs_folder(tmp_path: Path) -> None:
    program = tmp_path / "jobs" / "run.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (spec,) = expand.expand(requested(argv=("./run.sh",), cwd="jobs"))
    assert spec.cwd == str(tmp_path / "jobs")
    with pytest.raises(UsageError, match="no program"):
        expand.expand(requested(argv=("./run.sh",)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workload": "toy", "argv": ("sh",)},
        {"argv": ("sh",), "device": "cpu,mps"},
        {"argv": ("sh",), "sets": ("lr=1,2",)},
        {"argv": ("sh",), "timeout_s": -1.0},
        {"workload": "toy", "config": "tiny,none"},
        {"workload": "toy", "sets": ("max_iters=1,",)},
        {"workload": "toy", "sets": ("max_iters=1", "max_iters=2")},
        {"workload": "toy", "env": ("A=1", "A=2")},
        {"workload": "toy", "cwd": "~no-such-user/code"},
        {"workload": "toy", "python": "~no-such-user/bin/python"},
        {"workload": "toy", "stall": ("10m", "20m")},
        {"argv": ("sh",), "metrics": ("loss=loss (.*)", "loss=val (.*)")},
    ],
)
def test_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        expand.expand(requested(**options))
    assert error.value.hint


def test_a_setting_that_is_given_twice_is_refused_with_the_sweep() -> None:
    with pytest.raises(UsageError, match="--set s is given twice") as error:
        requested(argv=("sleep", "{s}"), sets=("s=1", "s=2"))
    assert "--set s=1,2" in error.value.hint


def test_the_prepare_of_a_workload_has_the_values_of_each_cell() -> None:
    given: dict[str, Any] = {"workload": "toy", "device": "cpu,mps", "sets": ("max_iters=1,2", "fused=true")}
    cells = expand.expand(requested(prepare="rm -r {device}-{max_iters}-{fused} {{lr}}", **given))
    assert [spec.prepare for spec in cells] == [
        f"rm -r {device}-{iters}-true {{lr}}" for device in ("cpu", "mps") for iters in (1, 2)
    ]
    assert expand.expand(requested(workload="toy", prepare="awk '{print}' x"))[0].prepare == "awk '{print}' x"
    awk = "awk '{print} {{n}}' x > {max_iters}"
    assert expand.expand(requested(prepare=awk, **given))[0].prepare == "awk '{print} {n}' x > 1"
    for unset in ({**given, "prepare": "rm -r {lr}"}, {"argv": ("sh", "{a}"), "sets": ("a=1",), "prepare": "rm {lr}"}):
        with pytest.raises(UsageError, match=r"--prepare contains \{lr\}"):
            expand.expand(requested(**unset))


@pytest.mark.parametrize("what", [{"workload": "toy"}, {"argv": ("sleep", "{max_iters}")}])
def test_a_searched_setting_is_not_for_prepare(what: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--prepare cannot use"):
        expand.expand(requested(find_max="max_iters=1:4", prepare="rm -r {max_iters}", **what))
