"""Make README's relative links absolute in the package's metadata. Everything else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]


def absolute(text: str) -> str:
    """Return Markdown whose links and pictures lead to the files at `SOURCE`."""
    text = re.sub(r"(!\[[^]]*)\]\((?![a-z]+:)([^)\s]+)\)", rf"\1]({SOURCE}/raw/main/\2)", text)
    text = re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({SOURCE}/blob/main/\1)", text)
    return re.sub(r'\b(src|srcset)="(?![a-z]+:)([^"]+)"', rf'\1="{SOURCE}/raw/main/\2"', text)


setup(
    long_description=absolute((ROOT / "README.md").read_text("utf-8")),
    long_description_content_type="text/markdown",
)
