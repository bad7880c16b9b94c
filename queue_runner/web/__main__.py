"""The server as a program: `python -m queue_runner.web`, which `mpsq web` becomes."""

import sys

from queue_runner.web.serve import main

sys.exit(main())
