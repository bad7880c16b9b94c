"""The worker under its name in version 0.1, which services installed by that version still start."""

import sys

from queue_runner.worker.main_loop import main

if __name__ == "__main__":
    sys.exit(main())
