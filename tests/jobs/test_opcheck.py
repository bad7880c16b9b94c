"""opcheck: the CPU computes everything, what is planted is found, and no operator ends the sweep."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import opcheck_torch
import pytest
import torch

from harness.errors import UsageError
from harness.opcheck import compare, samples
from harness.opcheck.check import Checker, Verdict
from harness.opcheck.run import CHILD, _chosen, main
from tests.jobs.conftest import Ran, read
from tests.jobs.planted_child import Op
from tests.jobs.planted_device import Planted, falls_back, raises
from tests.mps_texts import FALLS_BACK, NO_KERNEL, NO_MEMORY

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TABLE = dict[str, Any]


@pytest.fixture(scope="module")
def table() -> TABLE:
    return samples.table()


def check(table: TABLE, name: str, dtype: str = "fp32", direction: str = "forward", **kernels: Any) -> Verdict:
    checker = Checker(CPU, most=4, calls=2, on_device=Planted(**kernels))
    result = checker.check(table[name], samples.TYPES[dtype], direction)
    assert result is not None
    return result


# -- verdicts: what is planted is called what it is -----------------------------------------------------------------


def test_a_wrong_operator_is_called_wrong(table: TABLE) -> None:
    result = check(table, "sin", sin=torch.cos)
    assert (result.verdict, result.times_s) == ("wrong", []) and "elements differ" in result.detail
    assert check(table, "sin").verdict == "native"


def test_a_wrong_gradient_is_called_wrong_and_its_forward_is_not(table: TABLE) -> None:
    planted = {"tanh_backward": lambda g, y: g * (1 - y * y) * 1.001}
    assert check(table, "tanh", **planted).verdict == "native"
    assert check(table, "tanh", direction="backward", **planted).verdict == "wrong"
    rounding = {"tanh_backward": lambda g, y: (g.double() * (1 - y.double() ** 2)).float()}
    assert check(table, "tanh", direction="backward", **rounding).verdict == "native"


def test_a_small_error_is_wrong_in_fp32_and_rounding_in_bf16(table: TABLE) -> None:
    planted = {"exp": lambda x: torch.exp2(x * 1.4426950408889634).mul(1.002).to(x.dtype)}
    assert check(table, "exp", **planted).verdict == "wrong"
    assert check(table, "exp", "bf16", **planted).verdict == "native"


def test_one_integer_that_is_off_by_one_is_wrong(table: TABLE) -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        y = torch.where(x < 0, -x, x)
        return y.index_fill(0, torch.tensor([0]), 77) if y.ndim else y

    assert check(table, "abs", "int64", abs=off).verdict == "wrong"


@pytest.mark.parametrize("name", ["exponential", "nn.functional.dropout", "randn"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_device_may_draw_other_random_numbers(
    table: TABLE, name: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's tables seed such operators themselves: the CPU's numbers are always the same, a GPU's are others."""
    plain = torch.manual_seed

    @contextlib.contextmanager
    def another_generator(_: str) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "manual_seed", lambda seed: plain(seed + 1000))
            yield

    op = next(one for key, one in table.items() if name in (key, one.name))
    result = Checker(CPU, most=4, calls=2, on_device=another_generator).check(op, torch.float32, direction)
    assert result is None or (result.verdict, result.random) == ("native", True)
    assert result is not None or direction == "backward"


def test_what_an_operator_saves_for_itself_is_not_compared(table: TABLE) -> None:
    def kernel(x: torch.Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[torch.Tensor, ...]:
        places = tuple(range(-len(shape), 0))
        off = x - x.mean(places, keepdim=True)
        scale = (off.square().mean(places, keepdim=True) + eps).rsqrt()
        y = off * scale * (1 if weight is None else weight) + (0 if bias is None else bias)
        return y, off.double(), scale.double()

    assert check(table, "native_layer_norm", native_layer_norm=kernel).verdict == "native"


def test_nan_where_the_cpu_has_a_number_is_wrong(table: TABLE) -> None:
    result = check(table, "cos", cos=lambda x: torch.sin(x) * math.nan)
    assert result.verdict == "wrong" and "nan" in result.detail


def test_an_operator_without_a_kernel_is_missing(table: TABLE) -> None:
    result = check(table, "cos", cos=raises(NotImplementedError, NO_KERNEL.format("aten::cos.out")))
    assert (result.verdict, result.n_bad) == ("missing", result.n) and "aten::cos.out" in result.detail


def test_every_fallback_is_found_though_torch_warns_of_the_first_alone(table: TABLE) -> None:
    planted = {
        "cos": falls_back("aten::cos.out", lambda x: torch.sin(x + math.pi / 2)),
        "sin": falls_back("aten::sin.out", lambda x: torch.cos(x - math.pi / 2)),
    }
    assert check(table, "cos", **{"cos": planted["cos"]}).detail == "aten::cos.out"
    for _ in range(2):  # the second time the process has warned already
        result = check(table, "cos", cos=planted["cos"])
        assert (result.verdict, result.detail, len(result.times_s)) == ("fallback", "aten::cos.out", 2)
    assert not torch.is_warn_always_enabled()


def test_what_the_device_has_no_memory_for_is_an_error(table: TABLE) -> None:
    result = check(table, "cos", cos=raises(RuntimeError, NO_MEMORY))
    assert result.verdict == "error" and result.detail.startswith("out of memory: ")


def test_a_lost_device_is_told_at_once(table: TABLE) -> None:
    result = check(table, "cos", cos=raises(RuntimeError, "CUDA error: device-side assert triggered"))
    assert (result.verdict, result.lost, result.n) == ("error", True, 1)


@pytest.mark.parametrize(
    "name", ["nn_functional_dropout", "bernoulli", "randn_like", "empty_like", "new_empty", "normal"]
)
def test_random_and_uninitialised_results_are_not_called_wrong(table: TABLE, name: str) -> None:
    """The stand-in draws other numbers than the CPU, as a device does."""

    class Elsewhere(Planted):
        def __call__(self, name: str) -> Any:
            torch.manual_seed(99)
            return super().__call__(name)

    kernels = {"empty_like": lambda x, **_: torch.full(x.shape, 7.0, dtype=x.dtype)} if name == "empty_like" else {}
    checker = Checker(CPU, most=4, calls=1, on_device=Elsewhere(**kernels))
    seed = checker.result

    def other(op: Any, sample: Any, direction: str, side: Any) -> Any:
        checker.seed += side is checker._there
        return seed(op, sample, direction, side)

    checker.result = other  # type: ignore[method-assign]
    actual = checker.check(table[name], torch.float32, "forward")
    assert actual is not None and actual.verdict == "native"


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "native"), (1.1, "unchecked")])
def test_where_the_cpu_has_no_kernel_for_a_dtype_float64_is_the_witness(factor: float, verdict: str) -> None:
    """An operator that the stand-in computes in fp32, as the CPU does not."""
    device: list[str] = []

    @contextlib.contextmanager
    def on_device(name: str) -> Iterator[None]:
        device.append(name)
        yield
        device.clear()

    def function(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32 and not device:
            raise NotImplementedError("\"own_cpu\" not implemented for 'Float'")
        return x.exp() * (factor if device else 1.0)

    result = Checker(CPU, calls=1, on_device=on_device).check(Op("own", function), torch.float32, "forward")
    assert result is not None and result.verdict == verdict
    assert ("CPU has none" in result.detail) == (verdict == "unchecked")


def test_strides_travel_with_a_tensor() -> None:
    side = samples.Side(CPU)
    for tensor in (torch.rand(4, 6)[1:, ::2].T, torch.rand(3, 1).expand(3, 5), torch.rand(2, 3, 4)[1]):
        copy = side.tensor(tensor)
        assert copy.stride() == tensor.stride() and torch.equal(copy, tensor)
        assert copy.data_ptr() != tensor.data_ptr()


def test_results_are_compared_whatever_they_are_made_of() -> None:
    a = torch.tensor([1.0, math.nan, math.inf])
    assert compare.differs([a, {"n": (3, None)}], [a.clone(), {"n": (3, None)}], None) is None
    assert compare.differs(a, -a, None) is not None
    assert compare.differs(a[:2], a, None) == "shape (2,) instead of (3,)"
    assert compare.differs(a.half(), a, None) == "torch.float16 instead of torch.float32"
    assert compare.differs((a,), (a, a), None) == "1 results instead of 2"
    assert compare.differs((a, 2), (a, 3), None) == "result[1]: 2 instead of 3"
    assert compare.differs(a.to_sparse(), a.clone().to_sparse(), None) is None


def test_a_result_that_cannot_be_read_is_the_devices_error(table: TABLE, monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS may have no kernel for what a comparison does, and an error of its own may come with the copy."""

    def fails(result: Any) -> Any:
        raise RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")

    monkeypatch.setattr(compare, "on_cpu", fails)
    actual = check(table, "sin")
    assert actual.verdict == "error" and "out of memory" in actual.detail


def test_sparse_results_are_compared_on_the_cpu() -> None:
    sparse = torch.eye(3).to_sparse()
    (result,) = compare.on_cpu((sparse,))
    assert result.layout == torch.sparse_coo and compare.differs([result], [sparse], None) is None


def test_positions_of_equal_values_are_as_good() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 0.0]])
    assert compare.differs(torch.tensor([2, 0]), torch.tensor([1, 1]), None) is not None
    assert compare.differs(torch.tensor([2, 0]), torch.tensor([1, 1]), None, points_into=x) is None
    assert compare.differs(torch.tensor([[2], [0]]), torch.tensor([[1], [1]]), None, points_into=x) is None
    assert compare.differs(torch.tensor(4), torch.tensor(3), None, points_into=x) is None
    for wrong in ([0, 0], [2, 2], [2, 7], [-1, 0]):
        assert compare.differs(torch.tensor(wrong), torch.tensor([1, 1]), None, points_into=x) is not None


def test_an_ill_conditioned_result_is_measured_by_what_rounding_costs_the_cpu() -> None:
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    cpu = torch.tensor([1.0, 2.001])
    assert compare.differs(torch.tensor([1.001, 2.0]), cpu, lambda: exact) is None
    assert compare.differs(torch.tensor([1.1, 2.0]), cpu, lambda: exact) is not None
    assert compare.differs(torch.tensor([math.nan, 2.0]), cpu, lambda: exact) is not None


def test_a_cpu_that_happens_to_be_exact_is_no_yardstick_of_rounding() -> None:
    """Eight sums in fp16, one after the other, beside the correctly rounded result."""
    exact = torch.tensor([1.5, 0.25], dtype=torch.float64)
    cpu, unit = exact.half(), 2.0**-11
    for units, is_noted in ((4, False), (7, False), (40, True)):
        result = torch.tensor([1.5 * (1 + units * unit), 0.25]).half()
        assert (compare.differs(result, cpu, lambda: exact) is not None) is is_noted, units


def test_of_equally_frequent_values_any_is_a_mode() -> None:
    x = torch.tensor([[1, 1, 2, 2], [3, 4, 4, 5]])
    cpu = (torch.tensor([1, 4]), torch.tensor([1, 2]))
    for keep in (False, True):
        here = tuple(each.unsqueeze(1) if keep else each for each in cpu)
        for values, where, right in (
            ([2, 4], [3, 1], True),
            ([2, 4], [1, 1], False),  # 2 is not there
            ([2, 3], [3, 0], False),  # less frequent
            ([2, 4], [4, 1], False),  # out of bounds
        ):
            result = tuple(torch.tensor(each).unsqueeze(1) if keep else torch.tensor(each) for each in (values, where))
            assert compare.are_modes(x, result, here) is right, (values, where)
    assert compare.are_modes(torch.tensor(7), (torch.tensor(7), torch.tensor(0)), (torch.tensor(7), None))


def test_a_device_may_choose_the_other_of_two_modes(table: TABLE) -> None:
    def largest(x: torch.Tensor, dim: int = -1, keepdim: bool = False, off: int = 0) -> tuple[torch.Tensor, ...]:
        y = torch.atleast_1d(x).movedim(dim, -1)
        counts = (y.unsqueeze(-1) == y.unsqueeze(-2)).sum(-1)
        modes = torch.where(counts == counts.amax(-1, True), y, -(2**62)).amax(-1, True)
        result = (each.movedim(-1, dim) for each in (modes, (y == modes).long().argmax(-1, True) + off))
        return tuple(each.reshape(x.shape) if not x.ndim else each if keepdim else each.squeeze(dim) for each in result)

    result = check(table, "mode", "int64", mode=largest)
    assert result.verdict == "native", result.detail
    assert check(table, "mode", "int64", mode=partial(largest, off=1)).verdict == "wrong"


# -- the whole course -----------------------------------------------------------------------------------------------


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    def run(*words: str, child: Sequence[str] = CHILD) -> Ran:
        path = tmp_path / "events.jsonl"
        monkeypatch.setenv("MPSQ_EVENTS", str(path))
        code = main(opcheck_torch.WORKLOAD, ["--device", "cpu", *words], child)
        captured = capfd.readouterr()
        return Ran(code, read(path), captured.out, captured.err)

    return run


def test_the_cpu_computes_everything(ran: Any) -> None:
    done = ran(
        "--config", "toy", "--set", "ops=basic+linalg_svd+nn.functional.ctc_loss+argsort", "--set", "types=fp32+int64"
    )
    assert done.code == 0, done.err
    metrics = done.metrics()
    ops = {name: value for name, value in metrics.items() if name.startswith("op/")}
    assert {name.split("/")[-1] for name in ops} == {"native"}
    assert {"op/add/fp32/backward/native", "op/add/int64/forward/native"} <= set(ops)
    assert "op/add/int64/backward/native" not in ops
    assert all(0 < value < 10 for value in ops.values())
    assert (metrics["inventory.functions"], metrics["inventory.with_mps"], metrics["inventory.without_mps"]) == (
        2584.0, 533.0, 130.0,
    ) or not torch.__version__.startswith("2.13.0")  # fmt: skip
    hello = done.hello()
    assert (hello["workload"], hello["dtype"], hello["planned_iters"]) == (
        "opcheck",
        "fp32+int64",
        len(done.of("iter")),
    )
    assert {event["phase"] for event in done.of("iter")} == {"warmup"}, "a check is no measurement"


SCRIPT = Path(__file__).with_name("planted_child.py")


def test_with_fallbacks_on_what_was_missing_is_run_again_and_named(ran: Any) -> None:
    words = ("types=fp32", "ops=cos+tan+exp", "direction=forward", "fallbacks=on")
    done = ran(*(w for word in words for w in ("--set", word)), child=[sys.executable, str(SCRIPT)])
    assert done.code == 0, done.err
    verdicts = {name.rsplit("/", 1)[0]: name.rsplit("/", 1)[1] for name in done.metrics() if name.startswith("op/")}
    assert verdicts["op/cos/fp32/forward"] == "fallback" and verdicts["op/tan/fp32/forward"] == "wrong"
    assert verdicts["op/exp/fp32/forward"] == "error"
    message = [event["text"] for event in done.of("note") if event["kind"] == "opcheck"]
    assert any(text.startswith("exp fp32 ") and "crash: SIGSEGV" in text for text in message)
    facts = ("fallback", "2 of 2", "aten::cos.out,", "aten::cos.profiled")
    assert any(all(fact in text for fact in facts) for text in message)
    assert json.dumps(message).count("cos fp32 forward missing") == 1, "the first pass said so, before it was run again"
    assert "replaced" in done.out and FALLS_BACK.format("aten::cos.out") not in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["types=fp32+int65"], 'did you mean "int64"?'),
        (["types="], 'it cannot hold ""'),
        (["direction=backward"], "direction is forward or both"),
        (["fallbacks=perhaps"], "fallbacks is auto, on or off"),
        (["calls=0"], "cannot be less than 1"),
        (["samples=-1"], "cannot be less than 0"),
        (["limit_s=0"], "must be more than 0"),
        (["dtype"], "is not KEY=VALUE"),
        (["--dtype", "bf16"], "--set types=bf16"),
        (["--compile", "on"], "not compiled"),
        (["--out", "x"], "has no checkpoints"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_a_sentence(ran: Any, words: list[str], message: str) -> None:
    done = ran(*(words if words[0].startswith("--") else ["--set", *words]))
    assert done.code == 2 and done.err.startswith("error: ") and message in done.err
    assert done.events[-1]["type"] == "bye"


def test_operators_are_chosen_by_name_and_pattern() -> None:
    known = ["add", "linalg_svd", "linalg_inv", "nn_functional_gelu"]
    assert _chosen("linalg_*+add", known) == ["linalg_svd", "linalg_inv", "add"]
    assert _chosen("all", known) == known and _chosen("nn.functional.gelu", known) == known[3:]
    assert _chosen("basic", known) == ["add", "nn_functional_gelu"]
    with pytest.raises(UsageError, match='no operator "linag_svd"') as refused:
        _chosen("add+linag_svd", known)
    assert 'mean "linalg_svd"' in refused.value.hint


def test_without_expecttest_a_sentence_says_what_to_install(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.opcheck.run.find_spec", lambda name: None if name == "expecttest" else find_spec(name))
    done = ran()
    assert done.code == 1 and "install expecttest pyyaml" in done.err and "Traceback" not in done.err
