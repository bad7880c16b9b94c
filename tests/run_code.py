"""`python -c CODE ARGUMENTS` as a module, so that it can be forked (forked_programs)."""

import sys

if __name__ == "__main__":
    exec(sys.argv.pop(1), {"__name__": "__main__"})
