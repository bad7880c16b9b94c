"""The documents as a site: every link of every page leads somewhere, nothing is fetched, no page is forgotten."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import site

pytestmark = pytest.mark.process
zensical = Path(sys.executable).with_name("zensical")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the staged pages, and zensical's settings."""
    folder = tmp_path_factory.mktemp("site")
    site.stage(folder / site.SOURCE)
    shutil.copy(site.ROOT / "zensical.toml", folder)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    if not zensical.exists():
        pytest.skip("needs zensical: pip install -e '.[docs]'")
    command = [str(zensical), "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def navigation(entries: list[Any]) -> list[str]:
    """The pages that a navigation names."""
    names = []
    for entry in entries:
        for place in entry.values():
            names += navigation(place) if isinstance(place, list) else [place]
    return names


def test_it_builds_strictly_and_fetches_nothing(folder: Path) -> None:
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    built = folder / "build" / "site"
    assert (built / "index.html").is_file() and (built / "docs" / "decisions" / "libraries.html").is_file()
    for page in built.rglob("*.html"):
        text = page.read_text("utf-8")
        fetched = [*re.findall(r"<(?:script|img|source|iframe)\b[^>]*\bsrc=\"?([^\" >]+)", text)]
        fetched += re.findall(
            r"<link\b[^>]*\brel=\"?(?:stylesheet|preconnect|preload|icon)\"?[^>]*\bhref=\"?([^\" >]+)", text
        )
        assert fetched and not [each for each in fetched if "//" in each], page
        for each in fetched:
            assert each.startswith("/") or (page.parent / each.partition("?")[0]).is_file(), f"{page.name}: {each}"


def test_a_broken_link_ends_the_build(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "site")
    for name, link in (("queue.md", "[a](nowhere.md)"), ("web.md", "[b](hooks.md#nowhere)")):
        with (tmp_path / "site" / site.SOURCE / "docs" / name).open("a", encoding="utf-8") as page:
            page.write(f"\n{link}\n")
    done = build(tmp_path / "site")
    named = {*re.findall(r"[\w-]+\.md", done.stdout + done.stderr)}
    assert done.returncode != 0 and {"queue.md", "web.md"} <= named, done


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "README.md").write_text("[up](../README.md)")
    page = tmp_path / "README.md"
    page.write_text("![there](var/README.md)\n\n```text\n[an example](nowhere.md)\n```\n")
    site.stage(tmp_path / "out", tmp_path)
    page.write_text('<img alt="a" src="nowhere.png">')
    with pytest.raises(FileNotFoundError, match=r"README.md links to nowhere.png"):
        site.stage(tmp_path / "out", tmp_path)


def test_the_navigation_has_every_page_and_no_other() -> None:
    named = navigation(tomllib.loads((site.ROOT / "zensical.toml").read_text())["project"]["nav"])
    there = {str(page.relative_to(site.ROOT)) for page in site.pages()}
    decisions = {name for name in there if name.startswith("docs/decisions/") and not name.endswith("README.md")}
    assert len(named) == len(set(named))
    assert set(named) == there - decisions  # of which docs/decisions/README.md has the list: test_docs.py
