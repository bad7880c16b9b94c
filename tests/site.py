"""`make site`: the documents as a site in build/site, by zensical, without a network. A broken link ends it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("build") / "site-source"
"""Where zensical.toml looks for the pages: below one root, since pages of docs/ link to files outside of it."""

_LINK = re.compile(r"\]\(([^)\s]+)\)|<img [^>]*?src=\"([^\"]+)\"|<source [^>]*?srcset=\"([^\"]+)\"")
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


def pages(root: Path = ROOT) -> list[Path]:
    """Every document of the repository."""
    named = [path for name in ("changelog.d", "var") if (path := root / name / "README.md").is_file()]
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md"), *named])


def links(page: Path) -> Iterator[tuple[str, str]]:
    """The file and the heading that each link and picture of a page names, without those of other hosts.

    The file is "" in a link to the page itself, the heading in one to a whole file."""
    for link in _LINK.finditer(_FENCED.sub("", page.read_text("utf-8"))):
        target = next(filter(None, link.groups()))
        if "://" not in target and not target.startswith("mailto:"):
            name, _, heading = target.partition("#")
            yield name, heading


def stage(target: Path, root: Path = ROOT) -> None:
    """Copy the pages, and the files that they link to, to the same places below `target`.

    Raises FileNotFoundError for a file that is not there: zensical misses no picture."""
    shutil.rmtree(target, ignore_errors=True)
    for page in pages(root):
        for path in (page, *(page.parent / name for name, _ in links(page) if name)):
            if not path.exists():
                raise FileNotFoundError(
                    f"{page.relative_to(root)} links to {path.relative_to(root)}, which is not there"
                )
            place = target / path.resolve().relative_to(root)
            if path.is_file() and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, place)


def main() -> int:
    stage(ROOT / SOURCE)
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    return subprocess.run(build, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
