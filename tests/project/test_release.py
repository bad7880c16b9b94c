"""What `make release` refuses, and what it finds here; its whole course is for a release, minutes long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import release

CHANGELOG = "# Changelog\n\n<!-- towncrier release notes start -->\n\n## 0.2.0 (2026-11-22)\n\n- New.\n\n## 0.1.0\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "changelog.d").mkdir()
    (tmp_path / "changelog.d" / "README.md").write_text("# Changes\n")
    return tmp_path


def test_a_collected_changelog_of_this_version_is_ready(checkout: Path) -> None:
    release.changelog(checkout, "0.2.0")


def test_a_change_that_waits_refuses_with_the_remedy(checkout: Path) -> None:
    (checkout / "changelog.d" / "+gate.added.md").write_text("A gate.\n")
    with pytest.raises(release.ReleaseError, match=r"1 changes are not in CHANGELOG\.md yet: make changelog"):
        release.changelog(checkout, "0.2.0")


def test_a_version_without_a_section_is_refused(checkout: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"not that of 0\.3\.0"):
        release.changelog(checkout, "0.3.0")


def test_every_fragment_has_a_kind_that_towncrier_knows() -> None:
    """And says something, as an item of a list without its dash."""
    for path in sorted((release.ROOT / "changelog.d").glob("*.md")):
        if path.name != "README.md":
            assert path.name.split(".")[-2] in {"added", "changed", "fixed", "removed"}, path.name
            assert path.read_text("utf-8").strip() and not path.read_text("utf-8").startswith("- "), path.name


def test_nothing_is_added_to_the_changelog_by_hand() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text("utf-8")
    assert "towncrier release notes start" in text and "(unreleased)" not in text.lower()


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(release.ReleaseError, match=r"ended with 3:\nno such thing"):
        release.run(sys.executable, "-c", "print('no such thing'); raise SystemExit(3)")


def test_a_placeholder_for_the_address_is_named(tmp_path: Path) -> None:
    page = tmp_path / "pyproject.toml"
    page.write_text('[project.urls]\nSource = "https://mpsq.example/mpsq"\n')
    assert "repository's address for https://mpsq.example/mpsq" in release.by_hand(tmp_path)[0]
    page.write_text('[project.urls]\nSource = "https://code.invalid/mpsq"\n')
    assert release.by_hand(tmp_path)[0].startswith("git tag v")
