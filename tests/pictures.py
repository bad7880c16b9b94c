"""`make pictures`: train on this machine, and take docs/pictures of the dashboard meanwhile and of the page afterwards.

The dashboard is what a terminal of 80 x 24 shows, as an SVG by rich, without fonts of other hosts; the page is what
headless Chromium shows of `mpsq report --html`. Nothing in them is drawn by hand: run this on a quiet machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.queue_support import ANY_MACHINE, until
from tests.terminal_support import Terminal

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SETTINGS = "--set n_layer=2,4 --set threads=1 --set eval_interval=0"
JOBS = f"nanogpt --config tiny --device cpu {SETTINGS} --repeats 4 --no-preflight"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 300.0
MEASURED = " iterations: "
"""What the dashboard says as soon as iterations have come in, above their sparkline."""

_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def frame(raw: str) -> str:
    """The last frame that was drawn completely: what lies between the last two times the cursor went home."""
    frames = [each for each in re.split(r"\x1b\[H|\x1b\[\d*A|\x1b\[2J", raw) if MEASURED in each]
    return re.sub(r"\x1b\[\?[0-9]+[hl]|\x1b\[[0-9]*[JKH]|\r", "", frames[-1])


def drawn(text: str, title: str) -> str:
    """A terminal of 80 columns that shows this text, as an SVG that names no other host."""
    console = Console(record=True, width=80, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text.strip("\n")))
    return _FONTS.sub("", console.export_svg(title=title, theme=MONOKAI))


def mpsq(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "queue_runner.cli.main", *words], check=True)


def photographed(page: Path, picture: Path) -> None:
    """The first screen of a page, 1100 pixels wide. Raises FileNotFoundError without a Chromium."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise FileNotFoundError(f"needs one of {', '.join(BROWSERS)} on the PATH")
    with tempfile.TemporaryDirectory(prefix="mpsq-browser-") as profile:
        words = [program, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        words += ["--no-sandbox"] if os.geteuid() == 0 else []  # which Chromium refuses root; the page is our own
        words += ["--window-size=1100,1100", f"--screenshot={picture}", page.as_uri()]
        subprocess.run(words, check=True, timeout=120, capture_output=True)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mpsq-pictures-") as name:
        folder = Path(name)
        os.environ |= {"MPSQ_HOME": str(folder / "home"), "MPSQ_LOCKS": str(folder / "locks")}
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "config.toml").write_text(ANY_MACHINE)
        mpsq("submit", *JOBS.split())
        worker = subprocess.Popen([sys.executable, "-m", "queue_runner.cli.main", "worker", "--until-idle"])
        terminal = Terminal("status", "--watch", COLORTERM="truecolor")
        try:
            until(lambda: MEASURED in terminal.read(), "an iteration on the dashboard", PATIENCE_S)
            (FOLDER / "status-watch.svg").write_text(drawn(frame(terminal.read()), "mpsq status --watch"), "utf-8")
        finally:
            terminal.close()
            worker.wait()
        mpsq("report", "--html", str(folder / "report.html"))
        photographed(folder / "report.html", FOLDER / "report.png")


if __name__ == "__main__":
    main()
