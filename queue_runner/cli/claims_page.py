"""docs/claims.md from the claims: `python -m queue_runner.cli.claims_page > docs/claims.md` (make docs)."""

from __future__ import annotations

from queue_runner.cli.claims_list import CLAIMS
from queue_runner.cli.claims_text import page

if __name__ == "__main__":
    print(page(CLAIMS), end="")
