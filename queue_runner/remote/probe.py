"""On a node: say what a block would find there, into answer.json (`mpsq doctor --on slurm --smoke`).

python -m queue_runner.remote.probe FOLDER [LOCAL]
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from queue_runner import __version__
from queue_runner.host.filesystem import network_kind
from queue_runner.remote import block
from queue_runner.remote.node import about_here


def main(folder: Path, local: str) -> None:
    """Write the answer. Raises: OSError."""
    answer: dict[str, str | int | None] = {
        "question": (folder / "question").read_text(),
        **about_here(),
        "python": platform.python_version(),
        "version": __version__,
        "local": local or tempfile.gettempdir(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES"),
    }
    try:
        place = Path(tempfile.mkdtemp(prefix="mpsq-probe-", dir=local or None))
        answer |= {"kind": network_kind(place), "free_bytes": shutil.disk_usage(place).free}
        place.rmdir()
    except OSError as error:
        answer["trouble"] = error.strerror or str(error)
    block.write_json(folder / "answer.json", answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "".join(sys.argv[2:3]))
