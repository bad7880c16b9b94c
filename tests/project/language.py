"""The language lint: names and phrases to avoid, long sentences, names that two modules or two classes share.

`make words` prints each place, `make shrink` lowers the counts in language.txt to those of today.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.project.prose import without_code

ROOT = Path(__file__).resolve().parents[2]
BASELINE = Path(__file__).with_name("language.txt")
WORDS_IN_A_SENTENCE = 40

NAMES = frozenset(["found", "said", "told", "asked", "wanted", "one", "of", "own", "kept", "seen"])
"""Names that say nothing about what they hold."""

PHRASES = {
    "is-no": re.compile(r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|less\b|later\b)\w+", re.IGNORECASE),
    "is-of": re.compile(r"\b(?:is|are|was|were) of\b", re.IGNORECASE),
    "what-is": re.compile(r"\bwhat (?:is|was)\b(?![^.;:]*\?)", re.IGNORECASE),
    "said": re.compile(r"\bsaid\b", re.IGNORECASE),
    "told": re.compile(r"\btold\b", re.IGNORECASE),
}
NOT_PROSE = re.compile(
    r"\b(?:SELECT|CREATE|INSERT|UPDATE|DELETE|ALTER)\b|\) AS \w+|\bimport \w+|^function \w+|[{}]\s*$|<\w+[ >]",
    re.MULTILINE,
)
"""SQL, programs, HTML: texts in which no sentence is looked for."""


class Place(NamedTuple):
    """Where a rule is broken."""

    path: str
    rule: str
    line: int
    text: str


def places() -> list[Place]:
    """Return every place in the code, the tests and the pages, in the order of the paths."""
    code = [path for top in ("queue_runner", "jobs", "tests") for path in sorted((ROOT / top).rglob("*.py"))]
    pages = [*ROOT.glob("[A-BD-Z]*.md"), ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += (ROOT / "changelog.d").glob("*.md")
    broken: list[Place] = []
    modules, classes = defaultdict(list), defaultdict(list)
    for path in code:
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        tree = ast.parse(text)
        broken += [] if path == Path(__file__) else _in_code(name, text, tree)
        if name.startswith("queue_runner/"):
            modules[path.stem].append(Place(name, "module", 1, path.stem))
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(Place(name, "class", node.lineno, node.name))
    for path in sorted(pages):
        broken += [] if path.name == "cli.md" else _in_page(path)
    return broken + _shared(modules) + _shared(classes)


def _in_code(name: str, text: str, tree: ast.Module) -> Iterator[Place]:
    nodes = list(ast.walk(tree))  # outer nodes come before inner ones
    in_f_string: set[int] = set()
    targets = [node.target for node in nodes if isinstance(node, ast.comprehension)]
    in_comprehension = {id(node) for target in targets for node in ast.walk(target)}
    for node in nodes:
        match node:
            case ast.Name(id=bound, ctx=ast.Store()) | ast.arg(arg=bound) | ast.ExceptHandler(name=bound):
                if bound in NAMES and id(node) not in in_comprehension:
                    yield Place(name, "name", node.lineno, bound)
            case ast.FunctionDef(name=bound) if bound.startswith("test_"):
                yield from _in_text(name, node.lineno, bound.replace("_", " "))
            case ast.JoinedStr(values=parts):
                in_f_string |= {id(part) for part in parts}
                prose = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)
                yield from _in_text(name, node.lineno, prose)
            case ast.Constant(value=str(prose)) if " " in prose and id(node) not in in_f_string:
                yield from _in_text(name, node.lineno, prose)
    for lineno, line in enumerate(text.splitlines(), start=1):
        if comment := re.search(r"(?:^|\s)#\s(.*)", line):
            yield from _in_text(name, lineno, comment[1])


def _in_page(path: Path) -> Iterator[Place]:
    text = re.sub(r"<[^>]+>", lambda block: "\n" * block[0].count("\n"), without_code(path.read_text("utf-8")))
    lineno = 1
    for part in re.split(r"(\n(?=\s*(?:\n|[-*#|>]|\d+\. )))", text):
        for cell in part.split(" | "):
            yield from _in_text(str(path.relative_to(ROOT)), lineno, re.sub(r"\]\([^)]*\)", "]", cell))
        lineno += part.count("\n")


def _in_text(path: str, line: int, text: str) -> Iterator[Place]:
    prose = re.sub(r"`[^`]*`", "X", text)
    for rule, pattern in PHRASES.items():
        for match in pattern.finditer(" ".join(prose.split())):
            yield Place(path, rule, line, match[0])
    for paragraph in [] if NOT_PROSE.search(prose) else re.split(r"\n\s*\n|\n\s*(?=[-*|]|\d+\. )", prose):
        for sentence in re.split(r"(?<=[.!?])[)\"*_]*\s", paragraph):
            if len(re.findall(r"\S*\w\S*", sentence)) > WORDS_IN_A_SENTENCE:
                yield Place(path, "long", line, " ".join(sentence.split())[:60])


def _shared(by_name: dict[str, list[Place]]) -> list[Place]:
    """Return the modules, or classes, of queue_runner that share their name with another.

    A file of cli/ is named after its command: the other module of that name is the one to rename.
    """
    return [
        place
        for name, holders in by_name.items()
        for place in holders
        if len(holders) > 1
        and not name.startswith("__")
        and name != "Parser"  # each file of ingest/parsers has one
        and not (place.rule == "module" and Path(place.path).parent.name == "cli")
    ]


def counted(broken: list[Place]) -> Counter[tuple[str, str]]:
    """Count places by file and rule."""
    return Counter((place.path, place.rule) for place in broken)


def baseline() -> Counter[tuple[str, str]]:
    """Read the counts that are still allowed."""
    lines = (line.split() for line in BASELINE.read_text("utf-8").splitlines())
    return Counter({(path, rule): int(count) for path, rule, count in lines})


def grown(now: Counter[tuple[str, str]], before: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return by how much each file has more than its baseline.

    A file that is gone hands its count on to those that took its text, so that a rename needs no new baseline.
    """
    gone: Counter[str] = Counter()
    for (path, rule), count in before.items():
        gone[rule] += 0 if (ROOT / path).exists() else count
    more = now - before
    by_rule: Counter[str] = Counter()
    for (_, rule), count in more.items():
        by_rule[rule] += count
    return Counter({key: count for key, count in more.items() if by_rule[key[1]] > gone[key[1]]})


def main() -> int:
    """Print each place, or with --shrink write the counts of today, unless one has grown."""
    broken = places()
    if "--shrink" not in sys.argv:
        for place in broken:
            print(f"{place.path}:{place.line}: {place.rule}: {place.text}")
        return 0
    now = counted(broken)
    if BASELINE.exists() and (more := grown(now, baseline())):
        sys.exit(f"not written: {len(more)} counts have grown, the first in {min(more)}")
    BASELINE.write_text("".join(f"{path} {rule} {n}\n" for (path, rule), n in sorted(now.items())), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
