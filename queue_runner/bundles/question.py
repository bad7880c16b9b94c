"""The question of a job in a bundle: the fields of the specification that travel, and the values of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, convert, to_builtins

from queue_runner.bundles.harmless import MOST_FACTS, MOST_SECONDS, BadBundle, Digest, Integer, Name, Prose
from queue_runner.ingest import parsers
from queue_runner.ingest.storable import BadLine, storable
from queue_runner.spec import COMPILE_MODES

Limit = Annotated[float, Meta(ge=0, le=MOST_SECONDS)] | None
Words = Annotated[list[Prose], Meta(max_length=MOST_FACTS)]
Names = Annotated[dict[Name, Name], Meta(max_length=MOST_FACTS)]
Code = Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
Setting = Prose | Integer | float | bool
Processors = Annotated[int, Meta(ge=0, le=1 << 20)]


class TravellingQuestion(Struct, forbid_unknown_fields=True):
    """The question and the code."""

    kind: Literal["workload", "command"]
    name: Name
    workload: Name | None
    framework: Name | None
    device: Name | None
    dtype: Name | None
    config: Name | None
    parser: Name | None
    compile: bool | None
    compile_mode: Literal[("", *COMPILE_MODES)]  # type: ignore[valid-type]
    seed: Integer | None
    params: Annotated[dict[Name, Setting], Meta(max_length=MOST_FACTS)]
    argv: Words
    template: Words
    find_max: Prose
    snapshot: Digest | None
    tree: Code
    code: Code
    env_name: Name
    packages: Names
    mps: Names
    variables: Names
    gpus: Annotated[int, Meta(ge=1, le=4096)]
    cores: Processors
    threads: Processors
    timeout_s: Limit
    gate_s: Limit
    resume: bool
    gate: bool
    seed_by_round: bool = False
    warmup: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    prepare: Prose = ""


FIELDS = TravellingQuestion.__struct_fields__
ADDED = {"seed_by_round"}
"""Fields that earlier versions did not write: no stored hash counts them."""


def check(data: Any) -> dict[str, Any]:
    """Check the question of a job. Raises: BadLine, ValidationError for a field or a value that no job has; BadBundle
    for a log format that only another mpsq knows."""
    storable(data)
    question = convert(data, TravellingQuestion)
    if question.parser is not None and question.parser not in parsers.names():
        raise BadBundle(f"a job has the log format {question.parser!a}, which this mpsq does not know", "upgrade mpsq")
    if any(type(value) is float and abs(value) > 1e300 for value in question.params.values()):
        raise BadLine("a setting is too large")
    fields: dict[str, Any] = to_builtins(question)
    return fields
