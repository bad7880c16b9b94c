"""What a job will lack is said at submit: packages of its interpreter, and data on a machine without a network."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from queue_runner.paths import Layout, jobs_dir
from queue_runner.spec import JobSpec
from queue_runner.submit import absences
from queue_runner.workloads import catalog
from queue_runner.workloads.manifest import Workload

pytestmark = pytest.mark.process

SPEC = JobSpec(kind="workload", name="nanogpt", python=sys.executable, config="tiny")


@pytest.fixture
def nanogpt() -> Workload:
    return catalog.find(jobs_dir(), "nanogpt", "torch")


def no_network(host: str) -> bool:
    return False


def test_data_that_were_never_fetched_are_named_without_a_network(layout: Layout, nanogpt: Workload) -> None:
    fetched = replace(SPEC, params={"data": "shakespeare"})
    [said] = absences.sentences(layout, [(fetched, nanogpt)] * 2, no_network)
    assert "data=shakespeare is not on this machine" in said and "raw.githubusercontent.com cannot be reached" in said
    assert str(layout.cache / "data" / "tinyshakespeare.txt") in said
    assert absences.sentences(layout, [(fetched, nanogpt)], lambda host: True) == []
    (layout.cache / "data").mkdir(parents=True)
    (layout.cache / "data" / "tinyshakespeare.txt").write_text("kept")
    assert absences.sentences(layout, [(fetched, nanogpt)], no_network) == []


def test_a_preset_says_what_is_fetched_too_and_a_proxy_is_trusted(layout: Layout, nanogpt: Workload) -> None:
    gpt2 = replace(SPEC, config="gpt2")
    assert len(absences.sentences(layout, [(gpt2, nanogpt)], no_network)) == 2  # the text and the vocabulary
    behind = replace(gpt2, env={"https_proxy": "http://127.0.0.1:3128"})
    assert absences.sentences(layout, [(behind, nanogpt)], no_network) == []
    assert absences.sentences(layout, [(SPEC, nanogpt)], no_network) == []


def test_data_in_a_folder_that_a_variable_names_are_on_this_machine(
    layout: Layout, nanogpt: Workload, tmp_path: Path
) -> None:
    bpe = replace(SPEC, params={"tokens": "bpe"}, env={"TIKTOKEN_CACHE_DIR": str(tmp_path)})
    [said] = absences.sentences(layout, [(bpe, nanogpt)], no_network)
    kept = tmp_path / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"
    assert f"at {kept}" in said
    kept.touch()
    assert absences.sentences(layout, [(bpe, nanogpt)], no_network) == []


def test_only_what_the_settings_need_is_needed(nanogpt: Workload) -> None:
    assert absences.packages(SPEC, nanogpt) == ("torch", "numpy")
    assert absences.packages(replace(SPEC, params={"tokens": "bpe"}), nanogpt) == ("torch", "numpy", "tiktoken")
    other = "linux" if sys.platform == "darwin" else "darwin"
    mlx = catalog.find(jobs_dir(), "nanogpt", "mlx")
    assert absences.packages(SPEC, mlx)[0] == "mlx" and other not in absences.packages(SPEC, mlx)


def test_a_missing_package_of_the_interpreter_is_named_with_the_command(layout: Layout, tmp_path: Path) -> None:
    script = tmp_path / "lacking.py"
    script.write_text(
        "# /// script\n# dependencies = [\n#   'pytest>=8',\n#   'no-such-package>=1',\n# ]\n# ///\n"
        'WORKLOAD = {"name": "lacking", "framework": "torch", "about": "", "source": "", "params": {}, "configs": {}}\n'
    )
    lacking = catalog.find(jobs_dir(), "lacking", own=tmp_path)
    wanted = "lacking torch needs no-such-package, which its interpreter lacks: "
    [said] = absences.sentences(layout, [(SPEC, lacking)], no_network)
    assert said == f"{wanted}{sys.executable} -m pip install no-such-package"
    link = tmp_path / "python"  # another interpreter, which is asked
    link.symlink_to(sys.executable)
    [said] = absences.sentences(layout, [(replace(SPEC, python=str(link)), lacking)], no_network)
    assert "no-such-package" in said
    assert absences.sentences(layout, [(replace(SPEC, python=str(tmp_path / "gone")), lacking)], no_network) == []
