"""Any log: its iterations are unknown; only `time` output and trouble signs are read."""

from __future__ import annotations

import re

from queue_runner.ingest.log_parser import LogParser

NAME = "plain"
HELP = "any log: no iterations, only the output of time(1) and of the shells' time"
SIGN = re.compile(r"(?!)")  # never matches: this parser is the fallback


class Parser(LogParser):
    """A parser of `time` output only."""
