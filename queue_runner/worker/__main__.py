"""The worker as a program: `python -m queue_runner.worker`, which `mpsq worker` becomes."""

import sys

from queue_runner.worker.main_loop import main

sys.exit(main())
