"""The folders that macOS guards, by their paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_runner.host import protected
from queue_runner.submit import plan
from tests.submit_support import requested


@pytest.mark.parametrize(
    ("path", "known_as"),
    [
        ("HOME/Documents", "~/Documents"),
        ("HOME/Desktop/code/train.py", "~/Desktop"),
        ("HOME/downloads/data", "~/Downloads"),  # the file system ignores case
        ("HOME/Library/Mobile Documents/com~apple~CloudDocs/code", "~/Library/Mobile Documents"),
        ("HOME/link/code", "~/Documents"),
        ("/Volumes/disk/code", "another volume"),
        ("HOME/src/Documents", None),
        ("HOME/Documents2/code", None),
        ("HOME/Library/Caches", None),
    ],
)
def test_what_is_guarded(path: str, known_as: str | None, tmp_path: Path) -> None:
    (tmp_path / "Documents").mkdir()
    (tmp_path / "link").symlink_to("Documents")
    place = path.replace("HOME", str(tmp_path))
    assert protected.found([place, "/usr"], system="darwin", user_home=tmp_path) == (
        {place: known_as} if known_as else {}
    )
    assert protected.found([place], system="linux", user_home=tmp_path) == {}


def test_a_submit_warns_of_its_folder_program_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protected, "found", lambda paths: {p: "~/Documents" for p in paths if str(tmp_path) in p})
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    request = requested(argv=(str(program), "--data", f"{tmp_path}/data"), cwd=str(tmp_path))
    said = [text for text in plan.plan(request).warnings if "macOS protects" in text]
    assert [text.partition(" is in ~/Documents, ")[0] for text in said] == [
        str(tmp_path),
        str(program),
        f"{tmp_path}/data",
    ]
    (tmp_path / "code").mkdir()
    beside = requested(argv=("/usr/bin/true", "../data", "--data=../more"), cwd=str(tmp_path / "code"), snapshot="copy")
    said = [text for text in plan.plan(beside).warnings if "macOS protects" in text]
    assert [text.partition(" is in ~/Documents, ")[0] for text in said] == [
        f"{tmp_path}/code",
        f"{tmp_path}/code/../data",
        f"{tmp_path}/code/../more",
    ]
