"""Layout randomisation: the size of a run's environment, drawn anew for each run.

The environment lies above the stack, so its size shifts every address of the stack. That alone made unchanged programs
up to tens of percent faster or slower (Mytkowicz, Diwan, Hauswirth and Sweeney, "Producing wrong data without doing
anything obviously wrong!", ASPLOS 2009). Where CPU times are compared, the runs of an arm therefore differ in it, and
the spread of an arm contains its effect. Paths and cache folders stay as they are.
"""

from __future__ import annotations

import hashlib

from queue_runner.model import PREFLIGHT, RunId
from queue_runner.spec import JobSpec

PADDING = "MPSQ_PADDING"
PADDING_BYTES = 4096
"""The padding is shorter: a page, after which the alignment of the stack repeats."""


def draw(spec: JobSpec, run: RunId) -> dict[str, int]:
    """Return the padding in bytes and the hash seed drawn for a run; {} where nothing is drawn.

    It depends on the seed of the submission, the question and the number of the run alone, so that it can be repeated.
    """
    if spec.layout_seed is None or run.number == PREFLIGHT:
        return {}
    digest = hashlib.sha256(f"{spec.layout_seed}:{spec.content_hash()}:{run.number}".encode()).digest()
    drawn = {"env_padding_bytes": int.from_bytes(digest[:4]) % PADDING_BYTES}
    if spec.randomize and "PYTHONHASHSEED" not in spec.env:
        drawn["hash_seed"] = 1 + int.from_bytes(digest[4:8]) % (2**32 - 1)  # 0 would switch the hashing's seed off
    return drawn


def variables(spec: JobSpec, run: RunId) -> dict[str, str]:
    """Return the environment variables of a run that are drawn."""
    drawn = draw(spec, run)
    padding = {PADDING: "x" * drawn["env_padding_bytes"]} if drawn else {}
    return padding | ({"PYTHONHASHSEED": str(drawn["hash_seed"])} if "hash_seed" in drawn else {})
