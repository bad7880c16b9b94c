"""Words and sentences of the documents: `python -m tests.prose` prints a line for each page and the sums.

Words are counted as `wc -w` counts them, with tables and code. Sentences are those of the prose alone: no code, no tables,
no headings. Code inside a sentence counts as one word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ("docs/cli.md", "docs/json.md", "docs/simulations.md")
"""Pages that are written by a program, or, as json.md, are a list of keys that a test reads."""
RECORDS = ("CHANGELOG.md",)
"""A record of the past: its entries are not rewritten."""

_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_TABLE_OR_HEADING = re.compile(r"^ *(?:\||#{1,6} ).*$", re.MULTILINE)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
_INDENTED = re.compile(r"(?:\A|(?<=\n))(?: {4}.*\n| *\n)+", re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[)*\"_]*\s+(?=[A-Z\"*(_])")
_ABBREVIATION = re.compile(r"\b(?:al|e\.g|i\.e|cf|vs|No|p)\.$")


def pages() -> list[Path]:
    """Return every document of the repository, without the files of changelog.d that become lines of CHANGELOG.md."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "var/README.md", ROOT / "changelog.d/README.md"])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's prose."""
    text = _COMMENT.sub("", _FENCE.sub("\n", text))
    text = re.sub(r"(?:^|\n)(?:\n(?: {4,}.*\n?)+)+", _without_code, text)
    text = _TABLE_OR_HEADING.sub("\n", text)
    text = _LINK.sub(r"\1", _CODE.sub("CODE", text))
    for paragraph in re.split(r"\n\s*\n", _ITEM.sub("\n\n", text)):
        rest = " ".join(paragraph.split())
        start = 0
        for end in _END.finditer(rest):
            if not _ABBREVIATION.search(rest[: end.start()]):
                yield rest[start : end.start()]
                start = end.end()
        if rest[start:]:
            yield rest[start:]


def _without_code(block: re.Match[str]) -> str:
    """Remove indented code: lines of four spaces after an empty line, unless they continue a list item."""
    before = block.string[: block.start()].rstrip().rpartition("\n")[2]
    return block[0] if _ITEM.match(before) or before.startswith("  ") else "\n\n"


def lengths(text: str) -> list[int]:
    """Return the number of words of each sentence."""
    return [len(re.findall(r"\w[\w'.,:/%°±-]*", sentence)) for sentence in sentences(text)]


def main() -> None:
    sums = {"by hand": 0, "generated": 0}
    every: list[int] = []
    print(f"{'page':45} {'words':>6} {'sentences':>9} {'> 25':>5} {'> 40':>5}")
    for page in pages():
        text, name = page.read_text("utf-8"), name_of(page)
        sums["generated" if name in GENERATED else "by hand"] += len(text.split())
        found = lengths(text)
        if name not in (*GENERATED, *RECORDS):
            every += found
        long = sum(n > 25 for n in found)
        print(f"{name:45} {len(text.split()):6,} {len(found):9,} {long:5} {sum(n > 40 for n in found):5}")
    print(", ".join(f"{n:,} words {kind}" for kind, n in sums.items()))
    print(f"{len(every):,} sentences by hand, {sum(n > 25 for n in every) / len(every):.1%} over 25 words, longest {max(every)}")


if __name__ == "__main__":
    main()
