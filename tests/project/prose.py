"""Words and sentences of the documents: `python -m tests.project.prose` prints a line for each page and the sums.

Words are counted as `wc -w` counts them, with tables and code. Sentences are those of the prose alone, without code,
tables and headings. Code inside a sentence counts as one word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("docs/benchmarks.md", "docs/cli.md", "docs/json.md", "docs/simulations.md")
"""Written by `make bench`, `make docs` and `make simulate`; json.md is a list of keys that a test reads."""
RECORDS = ("CHANGELOG.md", "docs/LOG.md")
"""They grow and are not rewritten: their words are not counted."""
LONG_SENTENCE = 25
"""Words that nine sentences of ten must not exceed."""

_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_TABLE_OR_HEADING = re.compile(r"^ *(?:\||#{1,6} ).*$", re.MULTILINE)
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ", re.MULTILINE)
_INDENTED = re.compile(r"(?:^|(?<=\n))\n(?: {4,}.*\n|\n(?= {4,}))+")
_END = re.compile(r"(?<=[.!?])[)*\"_]*\s+")
_ABBREVIATION = re.compile(r"\b(?:al|e\.g|i\.e|cf|vs|No|p)\.$")


def pages() -> list[Path]:
    """Return every document of the repository, without the files of changelog.d that become lines of CHANGELOG.md."""
    notes = [ROOT / name / "README.md" for name in ("changelog.d", "var")]
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *notes])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    """Return a page without its comments and code, each replaced by as many empty lines."""
    for pattern in (_FENCE, _COMMENT):
        text = pattern.sub(_empty_lines, text)
    return _INDENTED.sub(lambda block: block[0] if _continues_item(block) else _empty_lines(block), text)


def _empty_lines(block: re.Match[str]) -> str:
    return "\n" * block[0].count("\n")


def _continues_item(block: re.Match[str]) -> bool:
    before = block.string[: block.start()].rstrip().rpartition("\n")[2]
    return _ITEM.match(before) is not None or before.startswith("  ")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page's prose."""
    text = _TABLE_OR_HEADING.sub("\n", without_code(text))
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


def lengths(text: str) -> list[int]:
    """Return the number of words of each sentence."""
    return [len(re.findall(r"\w[\w'.,:/%°±-]*", sentence)) for sentence in sentences(text)]


class Sums(NamedTuple):
    """Of all pages."""

    by_hand: int
    """Words of the pages that people write, without records."""
    generated: int
    lengths: list[int]
    """Words in each sentence that people write."""

    @property
    def long_share(self) -> float:
        return sum(n > LONG_SENTENCE for n in self.lengths) / len(self.lengths)


def sums() -> Sums:
    """Read all pages."""
    by_hand = generated = 0
    every: list[int] = []
    for page in pages():
        name, text = name_of(page), page.read_text("utf-8")
        if name in GENERATED:
            generated += len(text.split())
        elif name not in RECORDS:
            by_hand += len(text.split())
            every += lengths(text)
    return Sums(by_hand, generated, every)


def main() -> None:
    print(f"{'page':46} {'words':>6} {'sentences':>9} {'> 25':>5} {'> 40':>5}")
    for page in pages():
        text = page.read_text("utf-8")
        counts = lengths(text)
        over = [sum(n > limit for n in counts) for limit in (LONG_SENTENCE, 40)]
        print(f"{name_of(page):46} {len(text.split()):6,} {len(counts):9,} {over[0]:5} {over[1]:5}")
    total = sums()
    print(f"{total.by_hand:,} words by hand, {total.generated:,} in generated pages")
    print(
        f"{len(total.lengths):,} sentences by hand, {total.long_share:.1%} over 25 words, longest {max(total.lengths)}"
    )


if __name__ == "__main__":
    main()
