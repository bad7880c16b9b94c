"""Compare a device's result with the CPU's: nested results of any operator, NaN-aware.

Two steps. First element by element, |found - cpu| <= atol + rtol |cpu|, with the tolerances of torch's own tests for
the dtype. What fails there is compared with the CPU's result in float64, by the largest error: an ill-conditioned
operator shows by what rounding costs the CPU itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
"""rtol and atol. Source: the defaults of torch.testing.assert_close; integers and booleans must be equal."""
CPU_ERRORS = 16.0
"""Largest accepted error of a device in multiples of the CPU's own rounding error. Sums in another order, fused or not,
of the few hundred terms of samples differ by a small multiple of it, a wrong kernel by orders of magnitude. Since the
CPU may be exact for a few numbers, its error counts as at least half a unit roundoff of the largest one."""

Leaf = tuple[str, Any]


def leaves(result: Any, path: str = "") -> Iterator[Leaf]:
    """Yield the leaves of a nested result with their paths: tensors, numbers, None."""
    if isinstance(result, Mapping):
        for key in result:
            yield from leaves(result[key], f"{path}[{key!r}]")
    elif isinstance(result, list | tuple):
        for at, item in enumerate(result):
            yield from leaves(item, f"{path}[{at}]")
    else:
        yield path, result


def on_cpu(result: Any) -> Any:
    """Return the result with its tensors on the CPU. Raises: the device's error if it cannot be read."""
    if isinstance(result, torch.Tensor):
        return result.detach().cpu()
    if isinstance(result, Mapping):
        return {key: on_cpu(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [on_cpu(value) for value in result]
    return result


def differs(
    output: Any, cpu: Any, exact: Callable[[], Any] | None, values: bool = True, points_into: Any = None
) -> str | None:
    """Return how a device's result differs from the CPU's, in a few words; None if it does not.

    `exact` computes the result in float64, if possible, and is called at most once. `values` False compares shapes and
    dtypes alone, for random numbers. With `points_into`, whole numbers are positions in it: others of equal values are
    accepted.
    """
    there, here = list(leaves(output)), list(leaves(cpu))
    if len(there) != len(here):
        return f"{len(there)} results instead of {len(here)}"
    computed: list[Any] = []
    for at, ((path, a), (_, b)) in enumerate(zip(there, here, strict=True)):
        difference = _kind(a, b) or (_values(a, b) if values else None)
        if difference is None:
            continue
        if _inexact(a) and _inexact(b) and a.shape == b.shape and a.dtype == b.dtype and exact is not None:
            computed = computed or [_exact_leaves(exact, len(here))]
            if computed[0] is not None and _as_good(a, b, computed[0][at]):
                continue
        if isinstance(points_into, torch.Tensor) and _kind(a, b) is None and _same_values(points_into, a, b):
            continue
        return f"result{path}: {difference}" if path else difference
    return None


def _exact_leaves(exact: Callable[[], Any], n: int) -> list[Any] | None:
    try:
        values = [value for _, value in leaves(exact())]
    except Exception:  # an operator without float64, or one that depends on its dtype
        return None
    return values if len(values) == n else None


def rounded(exact: list[Any], like: list[Any]) -> list[Any]:
    """Return float64 results in the dtypes of `like`."""
    both = zip(exact, like, strict=False)
    cast = [x.to(y.dtype) if _inexact(x) and _inexact(y) else x for x, y in both]
    return [*cast, *exact[len(cast) :]]


def _inexact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _kind(a: Any, b: Any) -> str | None:
    """Return the difference in type, shape or dtype, if any."""
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return f"{type(a).__name__} instead of {type(b).__name__}"
    if not isinstance(b, torch.Tensor):
        return None
    if a.shape != b.shape:
        return f"shape {tuple(a.shape)} instead of {tuple(b.shape)}"
    return f"{a.dtype} instead of {b.dtype}" if a.dtype != b.dtype else None


def _values(a: Any, b: Any) -> str | None:
    if not isinstance(b, torch.Tensor):
        return _scalar(a, b)
    x, y = _plain(a), _plain(b)
    if x.numel() == 0:
        return None
    if not (y.is_floating_point() or y.is_complex()):
        n_wrong = int((x != y).sum())
        return f"{n_wrong} of {y.numel()} elements differ" if n_wrong else None
    rtol, atol = TOLERANCE.get(b.dtype, (0.0, 0.0))
    u, v = _real(x), _real(y)
    right = (u == v) | (u.isnan() & v.isnan()) | ((u - v).abs() <= atol + rtol * v.abs())
    n_wrong = int((~right).sum())
    if not n_wrong:
        return None
    if bool((u.isnan() != v.isnan()).any()):
        return f"{n_wrong} of {right.numel()} elements differ, nan where the other has a number"
    worst = (u - v).abs()[~right].max().item()
    scale = v[v.isfinite()].abs().max().item() if bool(v.isfinite().any()) else 0.0
    return f"{n_wrong} of {right.numel()} elements differ, by up to {worst:.2g} where the largest is {scale:.2g}"


def _scalar(a: Any, b: Any) -> str | None:
    if isinstance(b, float) and isinstance(a, float | int):
        same = a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1.3e-6, abs_tol=1e-5)
        return None if same else f"{a!r} instead of {b!r}"
    if isinstance(b, torch.device | torch.dtype) or a is None or b is None:
        return None if (a is None) == (b is None) else f"{a!r} instead of {b!r}"
    return None if a == b else f"{str(a)[:60]} instead of {str(b)[:60]}"


def _as_good(a: torch.Tensor, b: torch.Tensor, exact: Any) -> bool:
    """Return whether a's largest error against float64 is at most a small multiple of b's, or within the tolerance."""
    if not isinstance(exact, torch.Tensor) or exact.shape != a.shape:
        return False
    u, v, r = _real(_plain(a)).double(), _real(_plain(b)).double(), _real(_plain(exact)).double()
    # no scale exists if rounding to the dtype overflows, or the CPU's own result is not finite
    there = r.isfinite() & v.isfinite()
    if bool((~u.isfinite() & there).any()) or not bool(there.any()):
        return False
    outside = ~there
    if bool((outside & (u != v) & ~(u.isnan() & v.isnan())).any()):
        return False
    rtol, atol = TOLERANCE.get(a.dtype, (0.0, 0.0))
    u, v, r = u[there], v[there], r[there]
    largest = r.abs().max().item()
    # eps is twice the unit roundoff
    cpu_error = max((v - r).abs().max().item(), torch.finfo(a.dtype).eps / 4 * largest)
    return (u - r).abs().max().item() <= atol + rtol * largest + CPU_ERRORS * cpu_error


def are_modes(x: torch.Tensor, output: Any, cpu: Any) -> bool:
    """Return whether `found`, (values, positions), has values as frequent along a dimension of x as the CPU's, at
    positions where they occur: any of equally frequent values is accepted."""
    x, a, where, b = (torch.atleast_1d(_plain(each)) for each in (x, *output, cpu[0]))
    if not (a.shape == b.shape == where.shape) or b.numel() == 0:
        return False
    return any(_modes_along(x, at, *_kept(at, x.ndim, a, b, where)) for at in range(x.ndim))


def _kept(at: int, ndim: int, *reduced: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield reduced tensors with the reduced dimension restored, of size 1."""
    yield from (each if each.ndim == ndim else each.unsqueeze(at) for each in reduced)


def _modes_along(x: torch.Tensor, at: int, a: torch.Tensor, b: torch.Tensor, where: torch.Tensor) -> bool:
    if b.shape != (*x.shape[:at], 1, *x.shape[at + 1 :]) or not 0 <= int(where.min()) <= int(where.max()) < x.shape[at]:
        return False
    as_frequent = (x == a).sum(at) == (x == b).sum(at)
    return bool(as_frequent.all()) and bool((x.gather(at, where) == a).all())


def _same_values(x: torch.Tensor, a: Any, b: Any) -> bool:
    """Return whether positions a and b hold equal values: along a dimension of x, in its last two or three dimensions
    together as pooling counts them, or, for a single position, in all of x."""
    if not isinstance(b, torch.Tensor) or b.dtype != torch.int64 or x.layout != torch.strided:
        return False
    x, a, b = _real(_plain(x)), _plain(a), _plain(b)
    along = [(x, at, a, b) for at in range(x.ndim)]
    along += [(x, at, a.unsqueeze(at), b.unsqueeze(at)) for at in range(x.ndim) if b.ndim == x.ndim - 1]
    along += [(x.flatten(-n), -1, a.flatten(-n), b.flatten(-n)) for n in (2, 3) if min(x.ndim, b.ndim) >= n]
    along += [(x.flatten(), 0, a.flatten(), b.flatten())] if b.ndim == 0 else []
    return any(_agree(*each) for each in along)


def _agree(x: torch.Tensor, at: int, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare the values at positions along dimension `at` of x, which have the shape of x in every other one."""
    if x.ndim != b.ndim or b.numel() == 0:
        return False
    at %= x.ndim
    alike = all(x.shape[n] == b.shape[n] for n in range(x.ndim) if n != at)
    if not alike or not all(0 <= int(each.min()) <= int(each.max()) < x.shape[at] for each in (a, b)):
        return False
    u, v = x.gather(at, a), x.gather(at, b)
    return bool(((u == v) | (u.isnan() & v.isnan())).all())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor on the CPU, without lazy conjugation."""
    tensor = tensor.detach().cpu()  # first, since a device may have no kernel for to_dense()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex numbers as pairs, and half precision as float32, which represents it exactly."""
    if tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
