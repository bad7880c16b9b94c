"""A block on its node: `python -m queue_runner.remote FOLDER`."""

import sys

from queue_runner.remote.node import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
