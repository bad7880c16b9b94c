"""`make sizes`: modules and lines of each wing of queue_runner and of jobs, and the largest modules."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = 10


def tokens(text: str) -> int:
    """Count the tokens of code: neither comments, docstrings nor white space."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    documentation = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(each.type not in skipped and each.start not in documentation for each in tokens)


def main() -> None:
    wings: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for top in ("queue_runner", "jobs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            text = path.read_text(encoding="utf-8")
            name = "/".join(parts[: 2 if len(parts) > 2 else 1])
            wings[name].append((len(text.splitlines()), tokens(text), str(path.relative_to(ROOT))))
    print(f"{'wing':28} {'modules':>7} {'lines':>7} {'tokens':>8} {'median':>7} {'largest':>8}")
    for name, modules in sorted(wings.items()):
        lines = [each[0] for each in modules]
        total = sum(each[1] for each in modules)
        print(f"{name:28} {len(modules):7} {sum(lines):7} {total:8} {statistics.median(lines):7.0f} {max(lines):8}")
    everything = sorted((each for modules in wings.values() for each in modules), reverse=True)
    for top in ("queue_runner", "jobs"):
        ours = [each for each in everything if each[2].startswith(top)]
        print(f"{top + ', all':28} {len(ours):7} {sum(e[0] for e in ours):7} {sum(e[1] for e in ours):8}")
    print("\nlargest modules, in lines:")
    for lines_, _, path_ in everything[:LARGEST]:
        print(f"{lines_:6} {path_}")


if __name__ == "__main__":
    main()
