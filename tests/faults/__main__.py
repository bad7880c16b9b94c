"""Run the simulator: `python -m tests.faults` for five minutes, with `--seed N` one seed and its log.

Whatever fails names its seed. A seed decides everything, so that `--seed N` shows the same again, step by step.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults import calls, planted


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how much processor time to spend")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed only, and print its log")
    parser.add_argument("--world", choices=("queues", "blocks"), help="one kind of machine only")
    parser.add_argument("--traces", type=int, help="print the traces of so many seeds as JSON (test_traces.py)")
    parser.add_argument("--plant", choices=sorted(planted.BUGS), help="plant this bug, and succeed once it is found")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts is part of what a seed decides
        words = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "PYTHONHASHSEED": "0"})
    if options.plant:
        planted.plant(options.plant)
        options.world = planted.BUGS[options.plant].world
    calls.install()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mpsq-faults-", dir=memory if memory.is_dir() else None) as name:
        if options.traces:
            from tests.faults import traces

            pairs = traces.simulated(Path(name), range(options.traces))
            print(json.dumps({role: sorted(each) for role, each in pairs.items()}))
            return 0
        return search(options, Path(name))


def search(options: argparse.Namespace, folder: Path) -> int:
    """Try seeds until one fails or the time is over. Return the exit code."""
    runs = worlds(folder, options.world)
    gc.collect()
    gc.freeze()  # modules stay: else each collection walks over them
    n_steps = n_seeds = n_points = 0
    began = time.process_time()  # how busy the machine is with other things does not count
    seed = options.first if options.seed is None else options.seed
    while True:
        world = None
        place = folder / str(seed)
        place.mkdir()
        gc.collect()
        gc.disable()
        try:
            world = runs[seed % len(runs)](seed, place)
            world.run()
            failure = ""
        except Exception as error:
            failure = f"{error}"
            if type(error).__name__ != "Violation":
                failure = traceback.format_exc()
        finally:
            if world is not None:
                world.close()
        gc.enable()
        shutil.rmtree(place, ignore_errors=True)
        if world is not None:
            n_steps += world.machine.n_steps
            n_points += world.machine.n_points
        n_seeds += 1
        passed_s = time.process_time() - began
        if options.seed is not None and world is not None:
            print("\n".join(world.machine.log))
        if failure:
            more = [f"--world {options.world}"] * bool(options.world and not options.plant)
            more += [f"--plant {options.plant}"] * bool(options.plant)
            again = " ".join(["python -m tests.faults --seed", str(seed), *more])
            print(f"seed {seed} fails after {passed_s:.1f} s: {failure}\nagain: {again}")
            return 0 if options.plant else 1
        if options.seed is not None or passed_s >= options.seconds:
            rate = n_steps / passed_s
            print(f"{n_seeds} seeds, {n_steps:,} steps, {n_points:,} calls in {passed_s:.0f} s: {rate:,.0f} steps/s")
            return int(bool(options.plant))
        seed += 1


def worlds(folder: Path, kind: str | None) -> list[Callable[[int, Path], Any]]:
    """Return what makes the machine of a seed, by the remainder of the seed."""
    from tests.faults import world

    world.adapt()
    empty = world.template(folder)

    def queues(seed: int, place: Path) -> Any:
        made = world.World(seed, place, empty)
        world.silence(made.machine.note)
        return made

    if kind == "queues":
        return [queues]
    from tests.faults import block_world

    def blocks(seed: int, place: Path) -> Any:
        return block_world.BlockWorld(seed, place, empty)

    return [blocks] if kind == "blocks" else [queues, queues, queues, blocks]


if __name__ == "__main__":
    sys.exit(main())
