"""Only this user and root may write what a worker obeys: mpsq tightens its own files and refuses those of others."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_runner.cli import common
from queue_runner.client import Client
from queue_runner.doctor import queue_checks
from queue_runner.errors import OwnershipError
from queue_runner.host import ownership
from queue_runner.host.home import ensure_home
from queue_runner.paths import Layout

SOMEBODY = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def shared() -> Iterator[None]:
    """The umask of systems on which every user has a group of their own."""
    old = os.umask(0o002)
    yield
    os.umask(old)


@pytest.fixture
def place(home: Path, shared: None) -> Layout:
    """A home made by hand under umask 002, with settings and a database in it."""
    home.mkdir()
    layout = ensure_home(home)
    (layout.home / "workloads").mkdir()
    for path in (*files(layout), layout.workloads / "own_torch.py"):
        path.write_text("")
    return layout


def files(layout: Layout) -> list[Path]:
    return [layout.config, *(layout.db.with_name(layout.db.name + end) for end in ("", "-wal", "-shm"))]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_ours_is_tightened(place: Layout) -> None:
    place.home.chmod(0o777)
    place.config.chmod(0o666)
    common.home()
    assert mode(place.home) == 0o755
    assert [mode(path) for path in files(place)] == [0o644] * 4
    assert mode(place.workloads) == 0o755 and mode(place.workloads / "own_torch.py") == 0o644


def test_folders_of_results_are_this_users_alone(place: Layout) -> None:
    """Also those that an earlier version, or a hand, left readable."""
    run = place.runs / "1.1"
    run.mkdir()
    place.secrets.mkdir()
    folders = (place.runs, place.logs, place.backups, place.secrets, run)
    for folder in folders:
        folder.chmod(0o755)
    common.home()
    ownership.secure_runs(place)
    assert [mode(folder) for folder in folders] == [0o700] * len(folders)


@pytest.mark.parametrize("opened", [ensure_home, Client, lambda home: common.home()])
def test_every_way_in_tightens(place: Layout, opened: object) -> None:
    place.home.chmod(0o777)
    assert callable(opened)
    opened(place.home)
    assert mode(place.home) == 0o755


@as_root
@pytest.mark.parametrize(
    "name", ["", "config.toml", "mpsq.db", "mpsq.db-wal", "runs", "workloads", "workloads/own_torch.py"]
)
def test_what_another_user_owns_is_refused(place: Layout, name: str) -> None:
    path = place.home / name
    os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.raises(OwnershipError, match=f"user {SOMEBODY} owns") as caught:
        common.home()
    assert str(path) in caught.value.message and "chown" in caught.value.hint
    with pytest.raises(OwnershipError):
        Client(place.home)
    with pytest.raises(OwnershipError):
        ensure_home(place.home)
    (check,) = (check for check in queue_checks.home(place) if check.name == "home")
    assert check.verdict == "fail" and str(path) in check.finding and "chown" in check.fix


@as_root
def test_a_run_that_another_user_left_is_refused(place: Layout) -> None:
    (place.runs / "1.1").mkdir()
    ownership.secure_runs(place)
    os.chown(place.runs / "1.1", SOMEBODY, SOMEBODY)
    with pytest.raises(OwnershipError, match=r"runs/1\.1"):
        ownership.secure_runs(place)


def test_a_run_that_everybody_may_write_is_tightened(place: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints are code for the job that resumes from them."""
    folder = place.runs / "1.1"
    folder.mkdir()
    folder.chmod(0o777)
    ownership.secure_runs(place)
    assert mode(folder) == 0o700
    folder.chmod(0o777)
    monkeypatch.setattr(os, "chmod", lambda *_, **__: None)
    with pytest.raises(OwnershipError, match=r"everybody may write .*runs/1\.1"):
        ownership.secure_runs(place)


def test_a_run_that_is_removed_meanwhile_stops_no_worker(place: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """mpsq gc beside a worker that starts: it ended with FileNotFoundError."""
    for name in ("1.1", "1.2"):
        (place.runs / name).mkdir()
    seen, owned = [], ownership._refuse_owner

    def removes_the_rest(path: Path, status: os.stat_result) -> None:
        seen.append(path)
        for other in set(place.runs.iterdir()) - {path}:
            other.rmdir()
        owned(path, status)

    monkeypatch.setattr(ownership, "_refuse_owner", removes_the_rest)
    ownership.secure_runs(place)
    assert len(seen) == 1


@as_root
def test_a_link_of_another_user_is_refused_and_ones_own_is_followed(place: Layout, tmp_path: Path) -> None:
    dotfile = tmp_path / "mpsq.toml"
    dotfile.write_text("")
    place.config.unlink()
    place.config.symlink_to(dotfile)
    dotfile.chmod(0o644)
    common.home()
    os.lchown(place.config, SOMEBODY, SOMEBODY)
    with pytest.raises(OwnershipError, match="owns"):
        common.home()


def test_what_cannot_be_tightened_is_refused_if_others_may_write(
    place: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a home of root's, or one on a disk that keeps no modes."""
    monkeypatch.setattr(os, "chmod", lambda *_, **__: None)
    place.home.chmod(0o775)
    monkeypatch.setattr(ownership, "_has_others", lambda _: False)
    common.home()  # the group that may write has no other member
    monkeypatch.setattr(ownership, "_has_others", lambda _: True)
    with pytest.raises(OwnershipError, match=r"group .* may write") as caught:
        common.home()
    assert "chmod g-w" in caught.value.hint
    monkeypatch.undo()


def test_a_world_writable_place_that_stays_so_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    home.chmod(0o1777)  # the sticky bit keeps files, but not a file that does not exist yet
    monkeypatch.setenv("MPSQ_HOME", str(home))
    monkeypatch.setattr(os, "chmod", lambda *_, **__: None)
    with pytest.raises(OwnershipError, match="everybody may write") as caught:
        common.home()
    assert "chmod o-w" in caught.value.hint


def test_a_group_without_other_members() -> None:
    assert ownership._has_others(2**31 - 7)  # nobody knows who is in it


def test_a_parent_that_others_may_write_is_warned_of(home: Path) -> None:
    home.parent.chmod(0o777)
    (check,) = (check for check in queue_checks.home(Layout(home)) if check.name == "home")
    assert check.verdict == "warn" and str(home.parent) in check.finding
    home.parent.chmod(0o1777)
    (check,) = (check for check in queue_checks.home(Layout(home)) if check.name == "home")
    assert check.verdict == "ok"
