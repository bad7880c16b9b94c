"""Whose turn it is where a machine has several lanes: a pure function of what waits and what is free.

Runs are looked at in the order of the queue. One whose submission is bound to a busy lane lets later ones go first on
other lanes. Nothing goes past a run that needs more than is free (the machine alone, or several lanes at once) and has
no earlier one to wait for: what it needs is kept free until it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from queue_runner.lanes import Lane, kind, parts
from queue_runner.model import DEFAULT_LANE


@dataclass(frozen=True)
class Asked:
    """A run that may start. `kind` is that of its lanes, "" for one that runs alone; `lane` the one that its submission
    is bound to, "" if to none."""

    run_id: int
    group: int
    kind: str
    gpus: int = 1
    lane: str = ""


@dataclass
class Turns:
    """The runs that may start now, by lane, the one for which lanes are kept free, and the lanes for which it waits if
    it does not need the machine alone and no earlier run starts there."""

    starts: dict[str, int] = field(default_factory=dict)
    reserved_for: int | None = None
    awaited: str = ""


def turns(
    asked: Iterable[Asked],
    lanes: Sequence[str],
    *,
    busy: Collection[str] = (),
    elsewhere: Collection[str] = (),
    paused: Collection[str] = (),
    before: Mapping[int, str] | None = None,
) -> Turns:
    """Return whose turn it is on `lanes`. `busy` are lanes on which nothing can start now, `elsewhere` those that other
    queues have, for which a run that needs the machine alone waits by its lock; `before` has the lane at which a run
    already waits for a quiet machine."""
    found = Turns()
    if DEFAULT_LANE in busy:
        return found
    usable = [lane for lane in lanes if lane not in paused]
    free = [lane for lane in usable if lane not in busy and lane not in elsewhere]
    bound: dict[int, str] = {}
    waits = False
    for one in asked:
        if not free and (waits or found.starts):
            break
        lane = one.lane or bound.get(one.group, "")
        if _is_alone(one, lane, lanes):
            if waits:
                continue  # those before it go first
            if busy or found.starts:
                found.reserved_for = one.run_id
            else:
                found.starts[DEFAULT_LANE] = one.run_id
            return found
        if _is_paused(one, lane, lanes, paused):
            continue  # it waits for the user
        can = [part for part in parts(lane) if part in free] if lane else _of(one.kind, free)
        if len(can) < one.gpus:
            if one.gpus > 1 and not waits:
                others = [part for part in (parts(lane) if lane else _of(one.kind, usable)) if part not in can]
                found.reserved_for, wanted = one.run_id, [*can, *others][: one.gpus]
                if not {*wanted} & parts_of(found.starts):  # else it waits for these to have begun
                    found.awaited = ",".join(sorted(wanted))
                free = [other for other in free if other not in can]
            waits = True
            continue
        if (last := (before or {}).get(one.run_id, "")) and set(parts(last)) <= set(can):
            can = parts(last)
        name = ",".join(sorted(can[: one.gpus]))
        found.starts[name] = one.run_id
        bound[one.group] = name
        free = [other for other in free if other not in parts(name)]
    return found


def stuck(asked: Iterable[Asked], lanes: Sequence[str], paused: Collection[str]) -> set[int]:
    """Return the ids of the runs that will not start before a user resumes a lane."""
    return {
        one.run_id for one in asked if not _is_alone(one, one.lane, lanes) and _is_paused(one, one.lane, lanes, paused)
    }


def parts_of(names: Iterable[str]) -> set[str]:
    """Return the single lanes that these names have."""
    return {part for name in names for part in parts(name)}


def taken(busy: Iterable[Lane], here: Iterable[Lane]) -> set[str]:
    """Return the names of the lanes on which runs are, and of those `here` that have a GPU or a processor of theirs."""
    on = list(busy)
    theirs = {unit for lane in on for unit in lane.units}
    return parts_of(lane.name for lane in on) | {lane.name for lane in here if theirs & {*lane.units}}


def _of(wanted: str, lanes: Iterable[str]) -> list[str]:
    return [lane for lane in lanes if kind(lane) == wanted]


def _is_paused(one: Asked, lane: str, lanes: Iterable[str], paused: Collection[str]) -> bool:
    """Return whether the lanes that are not paused are too few for a run, or one that it is bound to is paused."""
    usable = _of(one.kind, (lane for lane in lanes if lane not in paused))
    return any(part in paused for part in parts(lane)) or len(usable) < one.gpus


def _is_alone(one: Asked, lane: str, lanes: Sequence[str]) -> bool:
    """Return whether a run needs the machine alone: by itself, or as the lanes are not (or no longer) there."""
    if not one.kind or len(_of(one.kind, lanes)) < one.gpus:
        return True
    theirs = parts(lane) if lane else []
    return bool(theirs) and (len(_of(one.kind, theirs)) != one.gpus or not set(theirs) <= set(lanes))
