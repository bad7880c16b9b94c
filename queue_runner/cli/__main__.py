"""Entry point of `mpsq`. Completion is answered apart: it prints for the shell, and never an error."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def entry() -> NoReturn:
    """Run the `mpsq` command."""
    if sys.argv[1:2] == ["__complete"]:
        from queue_runner.cli.complete import main

        main(sys.argv[2:])
        sys.stdout.flush()
        os._exit(0)
    try:
        from queue_runner.cli.main import entry as command
    except KeyboardInterrupt:  # of Ctrl-C in the first moments
        os._exit(130)
    command()


if __name__ == "__main__":
    entry()
