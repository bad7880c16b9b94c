"""mpsq on add: a box without mpsq gets it over a real sshd on a loopback port; one that cannot have it says why."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_runner import __version__, config_file
from queue_runner.checks import Check
from queue_runner.errors import MpsqError
from queue_runner.paths import Layout
from queue_runner.remote import box_setup, provision, targets
from queue_runner.remote.link import Link
from tests.cli_support import Cli
from tests.remote.ssh_support import Box, running

pytestmark = [pytest.mark.process, pytest.mark.needs_program("sshd"), pytest.mark.timeout(300)]

BARE = """\
#!/bin/sh
unset PYTHONPATH
export HOME={home} MPSQ_LOCKS={home}/locks PIP_NO_INDEX=1 PIP_COMPILE=0
exec {python} "$@"
"""
"""A Python of a box that has neither mpsq nor anything else, and whose pip reaches no index."""


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    yield from running()


@pytest.fixture
def bare(box: Box, tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir(mode=0o700)
    (tmp_path / "far" / "locks").mkdir(mode=0o700)
    python = tmp_path / "bare"
    python.write_text(BARE.format(home=tmp_path / "far", python=os.path.realpath(sys.executable)))
    python.chmod(0o755)
    return python


def add(mpsq: Cli, layout: Layout, box: Box, python: Path) -> str:
    layout.config.write_text(f'[on.new]\nssh = "-F {box.config}"\nfolder = "{box.base}"\n')
    shown = mpsq("on", "add", "new", "--ssh", "box", "--python", str(python), "--yes")
    assert shown.code == 0, shown
    return shown.err + shown.out


def test_a_box_without_mpsq_gets_it_with_its_dependencies(
    mpsq: Cli, layout: Layout, box: Box, bare: Path, tmp_path: Path
) -> None:
    """They are those that are installed here; the second time nothing is copied."""
    shown = add(mpsq, layout, box, bare)
    assert "no mpsq" in shown and "copied to ~/.mpsq/" in shown
    profile = config_file.load(layout.config).on["new"]
    assert (profile["kind"], profile["host"]) == ("ssh", "box")
    installed = Path(profile["python"])
    assert installed.is_relative_to(tmp_path / "far" / ".mpsq") and not (installed.parents[1] / "wheels").exists()
    assert f"{__version__} in {installed}" in " ".join(shown.split())
    inode = installed.parents[1].stat().st_ino
    assert "nothing will be" in add(mpsq, layout, box, installed)
    add(mpsq, layout, box, bare)
    assert installed.parents[1].stat().st_ino == inode  # blocks may run in it


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ('{"python": "3.9.2", "mpsq": null, "makes": true}', "is Python 3.9.2, and mpsq needs 3.11"),
        ('{"python": "3.12.1", "mpsq": null, "makes": false}', "lacks venv or ensurepip"),
        ('{"python": 3}', "python"),
    ],
)
def test_a_python_that_does_not_do_is_named(box: Box, tmp_path: Path, answer: str, says: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '\\nmpsq-answer-1\\n%s\\n' '{answer}'\n")
    python.chmod(0o755)
    with pytest.raises(MpsqError, match=says) as caught:
        provision.look(Link("box", str(python), "", ("-F", str(box.config))))
    assert "--python" in caught.value.hint


def test_a_name_that_no_profile_can_have_is_refused_first(mpsq: Cli, layout: Layout) -> None:
    refused = mpsq("on", "add", "gpubox.lan", "--ssh", "nobody@localhost.invalid", "--yes")
    assert refused.code == 2 and '"gpubox.lan" cannot be' in refused.err, refused
    assert "digits, _ and -" in refused.err


CSH = """\
#!/bin/sh
for command; do :; done
case $command in *'
'*) echo "Unmatched quotation" >&2; exit 1;; esac
exec sh -c "$command"
"""
"""An ssh whose box is this host, with a login shell that refuses a quotation of several lines."""


def test_a_login_shell_may_be_csh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(CSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    link = Link("box", sys.executable, "")
    assert provision.look(link).mpsq == __version__
    with pytest.raises(MpsqError, match="the home of a user that does not exist"):
        provision.install(link, provision.Package(tmp_path, "1", 0, 0), "~no-such-user/mpsq")


def test_programs_in_the_folder_of_a_login_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of Python import others, and so ran a user's ~/random.py."""
    (tmp_path / "ssh").write_text(CSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("base64", "json", "random", "tempfile"):
        (tmp_path / f"{name}.py").write_text("open('was_run', 'w')\n")
    monkeypatch.chdir(tmp_path)
    link = Link("box", sys.executable, "")
    assert provision.look(link).mpsq == __version__
    with link.call("hello", "0" * 32) as answered:
        assert answered.answer["python"]
    assert not (tmp_path / "was_run").exists()


def test_an_environment_made_from_another_has_all_that_the_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of an older mpsq, which has the packages of its own Python by a .pth file: they were missing in the next."""
    before, place = tmp_path / "before", tmp_path / "environment"
    before.mkdir()
    (before / "its.pth").write_text(f"{tmp_path / 'framework'}\n")
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "a_framework.py").touch()
    path_of, create = sysconfig.get_path, venv.create
    monkeypatch.setattr(sysconfig, "get_path", lambda *_, **given: path_of(*_, **given) if given else str(before))
    monkeypatch.setattr(venv, "create", lambda folder, **given: create(folder, **{**given, "with_pip": False}))
    monkeypatch.setattr(box_setup, "_install", lambda *_: "")
    versions = iter([False, True])
    monkeypatch.setattr(box_setup, "_has_mpsq", lambda *_: next(versions))
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(empty.getvalue())))
    python = box_setup.main(place, "1")["python"]
    subprocess.run([python, "-c", "import a_framework"], check=True)


def test_each_python_of_a_box_has_an_environment_of_its_own(
    mpsq: Cli, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second profile got the packages of the first one's Python."""
    places: list[str] = []
    versions = iter(["3.11.2", "3.11.2", "3.12.1"])
    monkeypatch.setattr(provision, "look", lambda _: provision.PythonThere(next(versions), None, makes=True))
    monkeypatch.setattr(provision, "pack", lambda folder: provision.Package(folder, "1", 1, 0))
    monkeypatch.setattr(provision, "install", lambda link, package, place: places.append(place) or link.python)
    monkeypatch.setattr(targets, "checks", lambda *_, **__: [Check("login", "ok", "")])
    for name, python in (("a", "~/a/python"), ("b", "~/b/python"), ("c", "~/b/python")):
        mpsq.ok("on", "add", name, "--ssh", "box", "--python", python, "--yes")
    assert len({*places}) == 3


def test_a_host_that_nobody_answers_at_is_named(tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="nowhere"):
        provision.look(Link("nowhere.invalid", "python3", ""))


def test_the_wheels_are_whole(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also where a build left its mpsq.egg-info in a folder that Python imports from."""
    built = tmp_path_factory.mktemp("built")
    (built / "mpsq.egg-info").mkdir()
    (built / "mpsq.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: mpsq\nVersion: 0.0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(built)
        package = provision.pack(tmp_path)
    wheels = {path.name.partition("-")[0]: path for path in tmp_path.glob("*.whl")}
    assert package.n_wheels == len(wheels) and {"mpsq", "msgspec", "psutil"} <= {name.lower() for name in wheels}
    with zipfile.ZipFile(wheels["mpsq"]) as wheel:
        names = {*wheel.namelist()}
    assert f"mpsq-{metadata.version('mpsq')}.dist-info/METADATA" in names
    assert {"queue_runner/cli/main.py", "queue_runner/_jobs/nanogpt_torch.py", "mpsq_report.py"} <= names
    assert any(name.startswith("queue_runner/_migrations/versions/") for name in names)
    assert not [name for name in names if "__pycache__" in name or "egg-info" in name]
