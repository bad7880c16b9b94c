"""The worker as a program: `python -m queue_runner.worker`, which `mpsq worker` becomes."""

import sys

from queue_runner.worker.main_loop import main

if __name__ == "__main__":
    sys.exit(main())
