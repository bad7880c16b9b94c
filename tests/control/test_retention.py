"""--keep: what each rule keeps, and that what one keeps is kept."""

from __future__ import annotations

import pytest

from queue_runner.control.retention import JobFiles, Keep, parse
from queue_runner.errors import UsageError

NOW = 1_000_000.0
JOBS = [JobFiles(1, NOW - 500, 10), JobFiles(2, NOW - 400, 20), JobFiles(3, NOW - 10, 30), JobFiles(4, NOW - 10, 5)]


@pytest.mark.parametrize(
    ("texts", "dropped"),
    [
        ([], set()),
        (["100s"], {1, 2}),
        (["last:1"], {1, 2, 3}),
        (["last:2"], {1, 2}),
        (["last:0"], {1, 2, 3, 4}),
        (["35B"], {1, 2}),
        (["55B"], {1}),
        (["0B"], {1, 2, 3, 4}),
        (["450s", "last:1"], {1}),
        (["100s", "1GB"], set()),
    ],
)
def test_what_is_dropped(texts: list[str], dropped: set[int]) -> None:
    assert set(parse(texts).dropped(JOBS, NOW)) == dropped


def test_the_reason_names_every_rule() -> None:
    why = Keep(age_s=86400.0, last=3, size_bytes=1 << 30).dropped([JobFiles(n, 0.0, 1 << 30) for n in range(4)], 9e5)
    assert [*why] == [0] and all(x in why[0] for x in ("10 d 10 h", "last 3", "1.00 GiB"))


@pytest.mark.parametrize("text", ["", "20", "2.5", "last", "last:-1", "last 2", "size:", "-3d", "5 parsecs", "30d 5d"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse([text])
    assert raised.value.hint


def test_one_kind_twice() -> None:
    with pytest.raises(UsageError, match="another --keep"):
        parse(["5GB", "3GB"])
