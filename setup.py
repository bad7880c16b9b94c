"""List the packages, and make README's relative links absolute in the metadata. The rest is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
FOLDERS = {
    **{name: name for name in ("queue_runner", "mpsq")},
    **{name: f"queue_runner._{name}" for name in ("jobs", "migrations")},
}
"""The name of each folder in the installed package."""


def packages() -> list[str]:
    """Return the package name of every folder that has modules."""
    names = set()
    for folder, name in FOLDERS.items():
        parents = {path.relative_to(ROOT / folder).parent for path in (ROOT / folder).rglob("*.py")}
        names |= {".".join((name, *parent.parts)) for parent in parents}
    return sorted(names)


def absolute(text: str) -> str:
    """Return Markdown whose links and pictures lead to the files at `SOURCE`."""
    text = re.sub(r"(!\[[^]]*)\]\((?![a-z]+:)([^)\s]+)\)", rf"\1]({SOURCE}/raw/main/\2)", text)
    text = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({SOURCE}/blob/main/\1)", text)
    return re.sub(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"', rf'\1="{SOURCE}/raw/main/\2"', text)


setup(
    packages=packages(),
    long_description=absolute((ROOT / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
