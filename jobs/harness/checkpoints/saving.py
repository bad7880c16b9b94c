"""Save a training between two iterations: its checkpoint, and at the end its weights for init_from."""

from __future__ import annotations

import os
from pathlib import Path

from harness.checkpoints import weights_file
from harness.command_line import Options
from harness.errors import UsageError
from harness.framework import Framework
from harness.training import Training


def folder_of(options: Options) -> Path | None:
    """Return the folder of checkpoints, None if there is none. Raises: UsageError if checkpoint_interval needs one, or
    if the mode has no checkpoints."""
    if options.mode == "eval" and (options.resume or options.out or options.settings.checkpoint_interval):
        raise UsageError(
            "mode=eval neither reads nor writes checkpoints",
            "remove --resume, --out and checkpoint_interval: the speed of a forward does not depend on the weights",
        )
    folder = options.out or (Path(os.environ["MPSQ_OUT"]) if os.environ.get("MPSQ_OUT") else None)
    if options.settings.checkpoint_interval > 0 and folder is None:
        raise UsageError("checkpoint_interval needs a place for its checkpoints", "give --out DIR")
    return folder


def save(framework: Framework, training: Training, folder: Path | None, done: int) -> None:
    """Write the checkpoint after `done` iterations, unless there is no folder. Raises: JobError."""
    if folder is None or (path := framework.save(training, folder, done)) is None:
        return
    print(f"saved {path} after {done} iterations")
    options = training.options
    # without init_from nothing reads the file of weights, which may be half a gigabyte
    if hasattr(options.settings, "init_from") and options.out is not None and done == options.settings.max_iters:
        weights = framework.weights(training)
        if weights is not None:
            print(f"saved {weights_file.write(folder / 'weights.npz', weights)}, for init_from")
