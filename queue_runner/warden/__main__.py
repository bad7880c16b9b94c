"""Start the warden from the copy in a run's folder: `python -I -S -B RUN/program/queue_runner/warden RUN`."""

import sys

sys.path[0] = sys.path[0].removesuffix("/queue_runner/warden")
from queue_runner.warden.supervise import main  # noqa: E402

del sys.path[0]  # the trainer can write there
sys.exit(main(sys.argv))
