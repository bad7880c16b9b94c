"""The home is absolute, private, local and writable, or there is a sentence."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from queue_runner import paths
from queue_runner.errors import MpsqError
from queue_runner.host.filesystem import network_kind
from queue_runner.host.home import ensure_home

ROOT = Path(__file__).resolve().parents[2]

MOUNTINFO = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:5 - nfs4 nas:/home rw,vers=4.2
31 30 8:1 / /home/me/local\040disk rw,relatime - ext4 /dev/sda1 rw
32 22 0:41 / /mnt/far rw - fuse.sshfs me@far:/ rw,user_id=0
33 22 0:42 / /mnt/c rw - 9p drvfs rw,aname=drvfs,trans=fd,rfd=8,wfd=8
34 22 0:43 / /sandbox rw - 9p none rw,trans=fd,rfdno=4,wfdno=4
35 22 8:2 / /covered rw - nfs nas:/x rw
36 22 8:2 / /covered rw - xfs /dev/sdb rw
37 22 0:44 / /nas rw master:1 propagate_from:2 - cifs //nas/x rw
"""
MAC_MOUNTS = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse, protect)
//me@nas/my (old) share on /Volumes/my share (smbfs, nodev, nosuid, mounted by me)
me@far:/ on /Volumes/far (macfuse, nodev, nosuid, synchronous, mounted by me)
"""


def test_home_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPSQ_HOME", str(tmp_path / "q"))
    assert paths.home() == tmp_path / "q"
    monkeypatch.setenv("MPSQ_HOME", "~/q")
    assert paths.home() == Path.home() / "q"


@pytest.mark.parametrize("text", ["var", "./var", "../q", "~no-such-user-here/q"])
def test_a_relative_home_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MPSQ_HOME", text)
    with pytest.raises(MpsqError, match="MPSQ_HOME is") as caught:
        paths.home()
    assert "absolute" in caught.value.hint


def test_a_home_that_no_text_can_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPSQ_HOME", os.fsdecode(b"/tmp/\xff"))
    with pytest.raises(MpsqError, match=r"not valid UTF-8: b'/tmp/\\xff'"):
        paths.home()


def test_without_the_variable_it_is_var_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPSQ_HOME", "")
    monkeypatch.chdir(tmp_path)
    assert paths.home() == ROOT / "var"


def test_var_of_a_clone_has_a_page_and_is_closed_by_its_first_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """git makes var/ as the umask says; a queue's folder is its user's alone. Later changes are the user's own."""
    kept = subprocess.run(["git", "ls-files", "var"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert kept.stdout.split() == ["var/README.md"]
    var = tmp_path / "var"
    var.mkdir()
    var.chmod(0o755)
    (var / "README.md").touch()
    monkeypatch.setenv("MPSQ_HOME", str(var))
    ensure_home()
    assert stat.S_IMODE(var.stat().st_mode) == 0o755  # MPSQ_HOME names it: as its user made it
    monkeypatch.delenv("MPSQ_HOME")
    monkeypatch.setattr("queue_runner.paths.checkout", lambda: tmp_path)
    assert ensure_home().home == var and stat.S_IMODE(var.stat().st_mode) == 0o700
    (var / "mpsq.db").touch()
    var.chmod(0o755)
    ensure_home()
    assert stat.S_IMODE(var.stat().st_mode) == 0o755


def test_a_wheel_uses_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "queue_runner"
    (package / "_jobs").mkdir(parents=True)
    monkeypatch.delenv("MPSQ_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.checkout() is None
    assert paths.home().is_absolute() and paths.home().name == "mpsq"
    assert paths.jobs_dir() == package / "_jobs"
    with pytest.raises(MpsqError, match="lacks its migrations"):
        paths.migrations_dir()


def test_another_projects_folder_is_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "migrations").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "vendors-mpsq"\n')
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "queue_runner")
    assert paths.checkout() is None


def test_checkout_has_both_folders() -> None:
    assert paths.checkout() == ROOT
    assert (paths.jobs_dir(), paths.migrations_dir()) == (ROOT / "jobs", ROOT / "migrations")


def test_folders_are_made_and_private(tmp_path: Path) -> None:
    layout = ensure_home(tmp_path / "deep" / "q")
    for folder in (layout.home, layout.runs, layout.logs, layout.backups, layout.snapshots, layout.cache):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert layout.run_dir("12.3") == layout.home / "runs" / "12.3"
    assert ensure_home(layout.home) == layout


def test_a_file_in_the_way_has_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "q").write_text("")
    with pytest.raises(MpsqError, match=r"q is not a folder"):
        ensure_home(tmp_path / "q")
    with pytest.raises(MpsqError, match=r"q is not a folder"):
        ensure_home(tmp_path / "q" / "below")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runs").write_text("")
    with pytest.raises(MpsqError, match=r"runs is not a folder"):
        ensure_home(tmp_path / "home")


def test_a_dangling_link_and_a_circle_have_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "q").symlink_to(tmp_path / "gone")
    with pytest.raises(MpsqError, match="dangling symbolic link"):
        ensure_home(tmp_path / "q")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_place_has_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(MpsqError, match="permission denied"):
        ensure_home(tmp_path / "closed" / "q")


def test_a_refused_folder_has_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MpsqError, match="cannot be created: permission denied"):
        ensure_home(tmp_path / "q")


def test_a_long_name_has_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="name too long"):
        ensure_home(tmp_path / ("q" * 300))


def test_a_full_disk_has_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MpsqError, match="MiB are free on the disk") as caught:
        ensure_home(tmp_path, need_bytes=2**60)
    assert "free some space" in caught.value.hint


def test_root_through_sudo_is_refused_in_a_users_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1000")
    owner = os.stat_result((0o40700, 1, 1, 1, 1000, 1000, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: owner)
    with pytest.raises(MpsqError, match="belongs to user 1000"):
        ensure_home(tmp_path)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/q", None),
        ("/home/me/q", "nfs4"),
        ("/home/me/local disk/q", None),
        ("/homeless", None),
        ("/mnt/far/q", "fuse.sshfs"),
        ("/mnt/c/q", "9p"),
        ("/sandbox/q", None),
        ("/covered/q", None),
        ("/nas", "cifs"),
    ],
)
def test_network_places_on_linux(place: str, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.host.filesystem.nearest_existing", lambda path: path)
    assert network_kind(Path(place), MOUNTINFO, platform="linux") == kind


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/Users/me/q", None), ("/Volumes/my share/q", "smbfs"), ("/Volumes/far", "macfuse"), ("/Volumes/my", None)],
)
def test_network_places_on_macos(place: str, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_runner.host.filesystem.nearest_existing", lambda path: path)
    assert network_kind(Path(place), MAC_MOUNTS, platform="darwin") == kind


def test_a_network_home_is_refused_and_nothing_made(tmp_path: Path) -> None:
    mounts = f"1 0 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path} rw - nfs nas:/x rw\n"
    with pytest.raises(MpsqError, match=r"network file system \(nfs\)"):
        ensure_home(tmp_path / "q", mounts=mounts)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3 - ", " - x y z", "\udcff - \udcff"])
def test_an_unreadable_table_of_mounts_refuses_nothing(tmp_path: Path, text: str) -> None:
    assert network_kind(tmp_path, text, platform="linux") is None
    assert network_kind(tmp_path, text, platform="darwin") is None


def test_importing_paths_is_cheap() -> None:
    program = (
        "import sys, queue_runner.paths; print({'platformdirs', 'subprocess', 'tomllib', 'psutil'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
