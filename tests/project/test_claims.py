"""The claims of docs/claims.md: each has its evidence and commands that mpsq understands."""

from __future__ import annotations

import math
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from queue_runner.analysis.intervals import FIRST_LOOK
from tests.cli_support import ROOT, Cli, empty_queue, stand_in_venv
from tests.recipes_support import RECIPES, blocks, check, commands, in_tables, items

pytestmark = pytest.mark.process

PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
STATUSES = ("holds", "outdated", "false", "needs a Mac", "out of scope")


class Claim(NamedTuple):
    """A claim as the page has it; `recipe` names the recipe of its document."""

    number: int
    recipe: str
    status: str
    basis: str
    evidence: str
    commands: tuple[str, ...]


def read_claims() -> list[Claim]:
    """Read the claims off the page."""
    claims = []
    for document in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        recipe = re.search(r"\(recipes/([\w-]+)\.md\)", document)
        if recipe is None:  # what is out of scope has none
            continue
        for text in re.split(r"^### ", document, flags=re.MULTILINE)[1:]:
            read = re.match(r"(\d+)\. .+\n\n\*\*(.+?)\*\*(?: \((\w+)\))?\. (.+)\n", text)
            assert read, text[:80]
            number, status, basis, evidence = read.groups()
            lines = [
                line for block in re.findall(r"^```text\n(.*?)^```$", text, re.M | re.S) for line in commands(block)
            ]
            claims.append(Claim(int(number), recipe[1], status, basis or "unknown", evidence, tuple(lines)))
    return claims


CLAIMS = read_claims()


@pytest.fixture
def mpsq(capsys: pytest.CaptureFixture[str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    empty_queue(home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return Cli(capsys)


def test_every_claim_is_there_once_with_its_evidence() -> None:
    assert sorted(claim.number for claim in CLAIMS) == list(range(1, 34))
    assert {claim.recipe for claim in CLAIMS} == {page.stem for page in RECIPES}
    for claim in CLAIMS:
        assert claim.evidence and (claim.commands or claim.status == "out of scope"), claim.number
        assert claim.status in STATUSES and claim.basis in ("logs", "run", "read", "unknown"), claim.number
        decided = claim.status in ("holds", "outdated", "false")
        assert not decided or claim.basis != "unknown", f"{claim.number}: decided by nothing"


def test_the_sum_on_the_page_is_that_of_the_claims() -> None:
    counted = {status: sum(claim.status == status for claim in CLAIMS) for status in STATUSES}
    assert f"Of {len(CLAIMS)}: {', '.join(f'{n} {status}' for status, n in counted.items() if n)}." in PAGE


def test_numbers_from_the_results_page_are_on_it() -> None:
    results = (ROOT / "docs" / "results" / "h200.md").read_text(encoding="utf-8")
    cited = [claim for claim in CLAIMS if "docs/results/h200.md" in claim.evidence]
    assert {claim.number for claim in cited} == {9, 23}
    for claim in cited:
        sentences = [one for one in re.split(r"(?<=[.:]) (?=[A-Z])", claim.evidence) if "h200.md" in one]
        numbers = re.findall(r"\d[\d,]*\.?\d* x\b|\d,\d{3}\b|\d{3}\.\d", " ".join(sentences))
        assert len(numbers) == 2 and all(number in results for number in numbers), (claim.number, numbers)
    assert not any("README" in claim.evidence for claim in CLAIMS)  # its report is a sample and changes


def test_the_commands_on_the_posts_logs_give_the_numbers(mpsq: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    outputs: dict[int, str] = {}
    for number in (3, 11):
        for line in CLAIMS[number - 1].commands:
            if line.split()[1] in ("import", "report"):
                outputs[number] = outputs.get(number, "") + mpsq.ok(*shlex.split(line)[1:]).out
    assert "8.99 x" in outputs[3] and "6.50 " in outputs[3]
    assert "3588.66" in outputs[11] and "39039.74" in outputs[11]
    assert "1255.92" in outputs[11]


def test_repeats_are_as_many_as_a_verdict_in_that_table_needs() -> None:
    lines = {line for claim in CLAIMS for line in claim.commands}
    lines |= {line for page in RECIPES for text in blocks(page, "text") for line in commands(text)}
    looked_at = 0
    for words in map(shlex.split, sorted(line for line in lines if line.startswith("mpsq "))):
        if "--repeats" not in words or {"kernels", "matmul"} & {*words}:
            continue
        compared = {name: value for name, value in pairwise(words) if name in ("--device", "--dtype", "--framework")}
        n = math.prod(len(values.split(",")) for values in compared.values()) * max(1, words.count("--mps"))
        twins = n if "--compile" in words else 0
        n_pairs = n + twins - 1 + max(0, twins - 1)
        if (inference := "mode=train,eval" in words) and "bert" in words and "batch_size=64" not in words:
            n_pairs *= 2  # train-vs-infer judges both together
        if not inference or n_pairs > 1:
            assert int(words[words.index("--repeats") + 1]) >= FIRST_LOOK, (words, n_pairs)
            looked_at += 1
    assert looked_at > 8


def test_every_command_of_claims_and_recipes_is_one(mpsq: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "queue_runner.submit.environment_axis.check_program", lambda *_: None
    )  # torchrun need not be here
    for name in ("stable", "nightly"):  # mpsq env create is parsed, and installs nothing here
        stand_in_venv(home, name)
    lines = {line for claim in CLAIMS for line in claim.commands}
    for page in RECIPES:
        lines |= {line for text in blocks(page) for line in commands(text) if line.startswith("mpsq ")}
        lines |= set(in_tables(page))
    lines |= set(in_tables(ROOT / "docs" / "claims.md"))
    assert len(lines) > 60
    for line in sorted(lines):
        check(mpsq, line)


BY_ITEM = ("accelerated-pytorch", "lightning", "metal-post", "pytorch-on-metal-guide", "trainer")


@pytest.mark.parametrize("name", BY_ITEM)
def test_each_item_of_a_document_has_its_command_and_what_was_seen(name: str) -> None:
    (page,) = [page for page in RECIPES if page.stem == name]
    rows = items(page)
    assert len(rows) >= 5
    for item, command, seen in rows:
        assert item and ("`mpsq " in command or "above" in command), item
        assert re.search(r"\bhere\b|H200|needs a|needs an|requirements", seen), (item, seen)
