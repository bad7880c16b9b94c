"""Any log: nothing is known of its iterations, only what a `time` command wrote and the signs of trouble."""

from __future__ import annotations

import re

from queue_runner.ingest.parsers._base import LogParser

NAME = "plain"
HELP = "any log: no iterations, only the lines of time(1) and shells' time"
SIGN = re.compile(r"(?!)")  # nothing speaks for it: it is what is left


class Parser(LogParser):
    """Reads `time` output only."""
