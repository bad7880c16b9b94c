"""Foreign logs become events: golden logs whole, then each property by itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queue_runner.analysis.points import IterationPoint
from queue_runner.analysis.summary import Summary, summarize
from queue_runner.errors import UsageError
from queue_runner.events import Eval, Hello, Iter, LogEvent, Metric, Note, TimeUsage
from queue_runner.ingest import parsers
from queue_runner.ingest.log_parser import MAX_LINE_BYTES, LogParser
from queue_runner.model import PHASES, SYNC_UNKNOWN
from tests.events_support import fields

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "parsers"
LOGS = sorted(GOLDEN.glob("*.log"))


def spoken(value: Any) -> Any:
    """Fit for JSON, which has no words for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: spoken(item) for key, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def shown(events: list[LogEvent]) -> list[dict[str, Any]]:
    """Events without the fields that say nothing."""
    return [
        {"event": type(e).__name__} | {k: spoken(v) for k, v in fields(e).items() if v is not None and v != {}}
        for e in events
    ]


def log(name: str, **told: object) -> list[LogEvent]:
    return parsers.read_log("nanogpt", (GOLDEN / f"{name}.log").read_bytes(), told)


def of(kind: type, events: list[LogEvent]) -> list[Any]:
    return [e for e in events if type(e) is kind]


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_golden_logs_read_as_expected(path: Path) -> None:
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    assert shown(parsers.read_log("nanogpt", path.read_bytes())) == expected


@pytest.mark.parametrize("path", LOGS, ids=lambda p: p.stem)
def test_a_log_cut_anywhere_with_the_state_stored_between_reads_the_same(path: Path) -> None:
    data = path.read_bytes() + b"\n"
    whole = shown(parsers.load("nanogpt").read_chunk(data)[0])
    at, events = 0, []
    reader, state = parsers.load("nanogpt"), None
    for end in range(37, len(data) + 37, 37):
        if state is not None:
            reader = parsers.load("nanogpt")
            reader.restore(state)
        found, used, _ = reader.read_chunk(data[at:end], at)
        at, events, state = at + used, events + found, reader.state()
    assert at == len(data) and shown(events) == whole


def test_keys_are_unique_within_their_tables() -> None:
    for path in LOGS:
        events = parsers.read_log("nanogpt", path.read_bytes())
        for kind in (Iter, Eval, Metric, Note):
            offsets = [e.offset for e in of(kind, events)]
            assert len(offsets) == len(set(offsets))


def test_phases_of_iterations() -> None:
    assert [i.phase for i in of(Iter, log("metal_post_mps_eager"))] == ["warmup"] + ["measure"] * 6 + ["eval_iter"]
    assert of(Iter, log("metal_post_mps_compile", compile="on"))[0].phase == "compile"
    assert of(Iter, log("metal_post_mps_compile", compile=True))[0].phase == "compile"
    assert of(Iter, log("metal_post_mps_compile", compile="False"))[0].phase == "warmup"
    assert of(Iter, log("small_cpu_compile_cold"))[0].phase == "compile"
    assert not any(i.synced for i in of(Iter, log("small_cpu_eager")))


def test_a_resumed_run_compiles_again_at_its_first_iteration() -> None:
    text = b"Resuming training from out\nusing fused AdamW: True\ncompiling the model... (takes a ~minute)\n"
    text += b"step 500: train loss 2.0, val loss 2.1\niter 500: loss 2.0, time 900.00ms, mfu -100.00%\n"
    assert of(Iter, parsers.read_log("nanogpt", text))[0].phase == "compile"


def test_the_header() -> None:
    hello = of(Hello, log("small_cpu_compile_cold"))[0]
    assert (hello.params, hello.tokens_per_iter, hello.optimizer, hello.compile) == (804_096, 768.0, "AdamW", True)
    assert of(Hello, log("small_cpu_eager"))[0].compile is False
    elided = of(Hello, log("metal_post_mps_eager"))[0]
    assert (elided.params, elided.compile, elided.tokens_per_iter) == (None, None, None)
    noisy = of(Hello, log("noisy"))[0]
    assert (noisy.device, noisy.dtype, noisy.planned_iters, noisy.config) == (
        "mps",
        "fp32",
        21,
        "train_shakespeare_char",
    )


def summary(name: str, first: int = 0, last: int = 10**9, **told: object) -> Summary:
    lines = [line for line in of(Iter, log(name, **told)) if first <= line.i <= last]
    points = [IterationPoint(line.i, line.dur_s, line.loss, PHASES.index(line.phase), SYNC_UNKNOWN) for line in lines]
    return summarize(iterations=points)


def test_the_posts_arithmetic_and_what_it_did_not_see() -> None:
    cpu, eager, compiled = (
        summary(f"metal_post_{name}", 10, 50).median_s or 0 for name in ("cpu_eager", "mps_eager", "mps_compile")
    )
    assert [round(r, 2) for r in (cpu / eager, cpu / compiled, compiled / eager)] == [8.99, 6.50, 1.38]
    whole = summary("metal_post_mps_eager")
    assert round(whole.drift_ratio or 0, 2) == 1.25
    assert whole.first_iter_s == pytest.approx(25.85756) and whole.n_measure == 6
    last = of(Iter, log("metal_post_mps_compile"))[-1]
    assert (last.i, last.phase) == (5000, "eval_iter") and last.dur_s == pytest.approx(1255.91573)
    times = [of(TimeUsage, log(f"metal_post_mps_{name}"))[0] for name in ("compile", "eager")]
    assert times[0].real_s / times[1].real_s == pytest.approx(10.88, abs=0.01)
    assert of(TimeUsage, log("metal_post_cpu_eager")) == []


def test_the_printed_mfu_is_kept_and_its_placeholder_is_not() -> None:
    found = of(Metric, log("metal_post_mps_eager"))
    assert [(m.name, m.value, m.unit, m.i) for m in found[:1]] == [("mfu_printed", 1.69, "%", 10)]
    assert all(m.value > 0 for m in found)


TIMES = [
    ("3588.66 real 90.18 user 32.03 sys", (3588.66, 90.18, 32.03, None)),
    (
        "        3.03 real         0.00 user         0.01 sys\n             1327104  maximum resident set size",
        (3.03, 0, 0.01, 1327104),
    ),
    ("    0m25.61s real     0m26.60s user     0m06.45s system", (25.61, 26.6, 6.45, None)),
    ("real 1.23\nuser 0.50\nsys 0.25", (1.23, 0.5, 0.25, None)),
    ("\nreal\t0m25.614s\nuser\t0m26.606s\nsys\t0m6.457s", (25.614, 26.606, 6.457, None)),
    ("real\t83m2,123s\nuser\t0m0,001s\nsys\t0m0,002s", (4982.123, 0.001, 0.002, None)),
    (
        "0.10user 0.02system 0:00.12elapsed 99%CPU (0avgtext+0avgdata 10240maxresident)k\n"
        "0inputs+0outputs (0major+1minor)pagefaults 0swaps",
        (0.12, 0.1, 0.02, 10240 * 1024),
    ),
    ("98.10user 0.02system 1:02:03elapsed ?%CPU", (3723, 98.1, 0.02, None)),
    (
        '\tCommand being timed: "python"\n\tUser time (seconds): 1.50\n\tSystem time (seconds): 0.25\n'
        "\tPercent of CPU this job got: 99%\n"
        "\tElapsed (wall clock) time (h:mm:ss or m:ss): 0:01.77\n"
        "\tMaximum resident set size (kbytes): 9000\n\tExit status: 0",
        (1.77, 1.5, 0.25, 9000 * 1024),
    ),
    ("python train.py  1.23s user 0.05s system 98% cpu 1.301 total", (1.301, 1.23, 0.05, None)),
    ("python train.py  98.10s user 5.05s system 98% cpu 1:45.30 total", (105.3, 98.1, 5.05, None)),
    (
        "________\nExecuted in    1.50 mins      fish           external\n"
        "   usr time   14.65 secs    0.65 millis   14.65 secs\n"
        "   sys time  413.00 millis    0.00 micros  413.00 millis",
        (90.0, 14.65, 0.413, None),
    ),
]


@pytest.mark.parametrize(("text", "expected"), TIMES, ids=[text.strip()[:24] for text, _ in TIMES])
@pytest.mark.parametrize("parser", ["plain", "nanogpt"])
def test_time_lines_of_every_shell(parser: str, text: str, expected: tuple[float, ...]) -> None:
    last = of(TimeUsage, parsers.read_log(parser, text.encode()))[-1]
    assert (last.real_s, last.user_s, last.sys_s, last.max_rss_bytes) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "real 1.23",
        "real 1.23\nuser 0.5",
        "user 1\nsys 2",
        "real 1\nsomething\nuser 2\nsys 3",
        "the real user sys",
        "user 1\nreal 2\nsys 3",
    ],
)
def test_no_time_lines_are_none_and_not_zero(text: str) -> None:
    assert parsers.read_log("plain", text.encode()) == []


def test_the_last_of_several_time_commands_counts_alone() -> None:
    text = b"0.1user 0.2system 0:01.00elapsed 9%CPU (0avgtext+0avgdata 9maxresident)k\nreal 5.0\nuser 1.0\nsys 2.0\n"
    assert of(TimeUsage, parsers.read_log("plain", text))[-1] == TimeUsage(text.index(b"sys 2.0"), 5.0, 1.0, 2.0, None)


def test_trouble_is_noted() -> None:
    assert [(n.kind, n.text.split(" (")[0]) for n in of(Note, log("noisy"))] == [
        ("op_fallback", "aten::linalg_svd ran on the CPU"),
        ("oom", "MPS backend out of memory"),
    ]


def test_a_buffer_that_metal_cannot_have_is_out_of_memory() -> None:
    (note,) = of(Note, parsers.read_log("plain", b"RuntimeError: Invalid buffer size: 19.45 GB\n"))
    assert (note.kind, note.text) == ("oom", "Invalid buffer size: 19.45 GB")


def test_a_last_line_without_end_is_read_unless_it_may_be_cut() -> None:
    line = b"iter 1: loss 3.1, time 2.00ms, mfu 1.00%"
    events, consumed, _ = parsers.load("nanogpt").read_chunk(line, 5, final=False)
    assert (events, consumed) == ([], 0)
    events, consumed, _ = parsers.load("nanogpt").read_chunk(line, 5, final=True)
    assert len(of(Iter, events)) == 1 and consumed == len(line)
    cut = b"step 5: train loss 3.1000, val loss 3.1"
    assert parsers.load("nanogpt").read_chunk(cut, 5, final=True)[:2] == ([], 0)


def test_an_endless_line_is_skipped() -> None:
    line = b"iter 1: loss 3.1, time 2.00ms, mfu 1.00%\n"
    data = b"x" * (5 * MAX_LINE_BYTES) + line + line
    reader, at, events, bad = parsers.load("nanogpt"), 0, [], 0
    for end in range(50_000, len(data) + 50_000, 50_000):
        found, used, counts = reader.read_chunk(data[at : min(end, len(data))], at)
        at, events, bad = at + used, events + found, bad + counts.bad
    assert at == len(data) and len(of(Iter, events)) == 1 and bad == 1


@given(
    st.lists(
        st.sampled_from(
            [
                "iter 1: loss ",
                "step 2: train loss ",
                "3.1",
                "nan",
                ", time ",
                "2.0ms",
                "9" * 40,
                "%",
                "\r",
                "\n",
                "\x1b[1m",
                "\x00",
                "é",
                "real 1\n",
                "Overriding: max_iters = ",
                ", val loss ",
            ]
        ),
        max_size=30,
    ),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_no_log_crashes_a_parser(pieces: list[str], final: bool) -> None:
    data = "".join(pieces).encode() + b"\xff"
    for name in parsers.names():
        reader: LogParser = parsers.load(name)
        events, consumed, _ = reader.read_chunk(data, 0, final=final)
        json.dumps(shown(events), allow_nan=False)
        assert 0 <= consumed <= len(data)
        reader.restore(reader.state())


def test_the_folder_is_the_registry() -> None:
    assert {"lightning", "nanogpt", "plain", "trainer"} <= set(parsers.names())
    with pytest.raises(UsageError) as caught:
        parsers.find("nanogtp")
    assert 'did you mean "nanogpt"' in caught.value.hint
    with pytest.raises(UsageError) as caught:
        parsers.load("../etc/passwd")
    assert "nanogpt, plain" in caught.value.hint


def test_sniffing() -> None:
    assert all(parsers.sniff(path.read_text()) == "nanogpt" for path in LOGS)
    assert parsers.sniff("epoch 1\nreal 1.0\nuser 1.0\nsys 1.0\n") == parsers.sniff("") == "plain"
