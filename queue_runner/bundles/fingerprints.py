"""The fingerprints of machine and software as a bundle has them: facts, of which those that reports read have a type.

A field that this mpsq does not know may be of a newer one: it is taken if it is a fact, facts by name, or a list of
these. (msgspec 0.22 frees memory twice in a union of a text with a pattern and a list or an object: there are none.)
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from queue_runner.bundles.harmless import MOST_FACTS, Fact, Name
from queue_runner.ingest.storable import storable

Facts = Annotated[dict[Name, Fact | None], Meta(max_length=MOST_FACTS)]
Many = Annotated[list[Any], Meta(max_length=MOST_FACTS)]
Number = Annotated[int, Meta(ge=0, le=1 << 30)]


class Gpu(Struct):
    cores: Number | None = None


class MachineFacts(Struct):
    """The fields of a machine that reports read."""

    arch: Name | None = None
    cpu: Name | None = None
    id: Name | None = None
    model: Name | None = None
    system: Name | None = None
    cores_logical: Number | None = None
    cores_physical: Number | None = None
    memory_gib: Number | None = None
    cpu_quota: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    cores_by_tier: Facts | None = None
    gpus: Many | None = None


class SoftwareFacts(Struct):
    """The fields of software that reports read."""

    versions: Facts | None = None
    packages: Facts | None = None
    system: Facts | None = None
    env: Facts | None = None
    code: Name | None = None
    python: Name | None = None


KINDS: dict[str, type[Struct]] = {"machine": MachineFacts, "software": SoftwareFacts}


def check(data: Any, kind: str) -> dict[str, Any]:
    """Check a fingerprint. Raises: BadLine, ValidationError for what no fingerprint has."""
    storable(data)
    convert(data, KINDS[kind])
    for name, value in data.items():
        convert(name, Name)
        for item in convert(value, Many) if type(value) is list else [value]:
            convert(item, Facts if type(item) is dict else Fact | None)
    for gpu in data.get("gpus") or ():
        if type(gpu) is dict:
            convert(gpu, Gpu)
    checked: dict[str, Any] = data
    return checked
