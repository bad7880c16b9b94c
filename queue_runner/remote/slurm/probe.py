"""On a node: write the conditions for a block there into answer.json (`mpsq doctor --on slurm --smoke`).

`python -m queue_runner.remote.slurm.probe FOLDER [LOCAL]`
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from queue_runner import __version__
from queue_runner.host.filesystem import network_kind
from queue_runner.remote.json_files import write_json
from queue_runner.remote.node import about_here


class ProbeAnswer(Struct):
    """The conditions for a block on a node. `kind` is that of a network file system, `trouble` why `local`, the folder
    for its home, cannot be written."""

    question: str
    host: str
    node: str | None
    job: str | None
    python: str
    version: str
    local: str
    devices: str | None
    kind: str | None = None
    free_bytes: int | None = None
    trouble: str = ""


def main(folder: Path, local: str) -> None:
    """Write the answer. Raises: OSError."""
    here = about_here()
    answer = ProbeAnswer(
        question=(folder / "question").read_text(),
        host=here.host or "",
        node=here.node,
        job=here.job,
        python=platform.python_version(),
        version=__version__,
        local=local or tempfile.gettempdir(),
        devices=os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("ROCR_VISIBLE_DEVICES"),
    )
    try:
        place = Path(tempfile.mkdtemp(prefix="mpsq-probe-", dir=local or None))
        answer.kind, answer.free_bytes = network_kind(place), shutil.disk_usage(place).free
        place.rmdir()
    except OSError as error:
        answer.trouble = error.strerror or str(error)
    write_json(folder / "answer.json", answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "".join(sys.argv[2:3]))
