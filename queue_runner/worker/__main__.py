"""The worker as a program: `python -m queue_runner.worker`, which launchd, systemd and `mpsq worker` start."""

import sys

from queue_runner.worker.main import main

sys.exit(main())
