"""`mpsq` with imports whose transactions have at most MPSQ_TEST_ROWS rows."""

import os
import sys

from queue_runner.bundles import batches
from queue_runner.cli.main import main

if __name__ == "__main__":
    batches._PIECE_ROWS = batches._WAITING_ROWS = int(os.environ["MPSQ_TEST_ROWS"])
    batches.BATCH_S = 60.0
    sys.exit(main())
