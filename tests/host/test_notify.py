"""Notifications: a name cannot inject AppleScript, markup or an option; errors that come again are said rarely."""

from __future__ import annotations

from queue_runner.host import notify
from queue_runner.worker.throttled_log import ThrottledLog

EVIL = '" & (do shell script "touch x") & "\x1b[31m\n<b>&amp;'


def test_macos_passes_words_behind_a_script_that_is_always_the_same() -> None:
    argv = notify.argv("mpsq: run 1.1 succeeded", EVIL, "darwin")
    assert argv[0] == "osascript" and argv[-1] == '" & (do shell script "touch x") & " <b>&amp;'
    assert argv[1:-2] == notify.argv("mpsq: idle", "x", "darwin")[1:-2]
    assert not argv[-2].startswith("-")


def test_linux_escapes_markup() -> None:
    argv = notify.argv("mpsq: run 1.1 succeeded", "--urgency " + EVIL, "linux")
    assert argv[:3] == ["notify-send", "--app-name=mpsq", "--"]
    assert argv[-1] == '--urgency " &amp; (do shell script "touch x") &amp; " &lt;b&gt;&amp;amp;'


def test_a_long_text_is_cut() -> None:
    assert len(notify.argv("t", "x" * 9999, "linux")[-1]) == 240


def test_the_same_complaint_is_said_rarely() -> None:
    said: list[str] = []
    now = [0.0]
    complain = ThrottledLog(said.append, every_s=60.0, clock=lambda: now[0])
    for second in range(125):
        now[0] = float(second)
        complain("the disk is full", "traceback\n")
        if second == 3:
            complain("something else")
    assert said == [
        "the disk is full\ntraceback",
        "something else",
        "the disk is full (and 59 more times since the last message)\ntraceback",
        "the disk is full (and 59 more times since the last message)\ntraceback",
    ]


def test_texts_that_never_end_do_not_fill_the_memory() -> None:
    complain = ThrottledLog(lambda _: None)
    for number in range(1000):
        complain(str(number))
    assert len(complain._logged) <= 64
