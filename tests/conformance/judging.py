"""How far two results are apart, and whether that is rounding.

The official cases of StableHLO allow floats three units in the last place, and nothing to
integers. What is further off but within the tolerance of JAX's own tests counts as rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

ULPS = 3
# Relative to the value, to one, and to half of the other values: sums of large terms cancel.
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-14}


@dataclass(frozen=True)
class Verdict:
    """An outcome (`ok`, `rounding` or `wrong`), why, and the largest distance found."""

    outcome: str
    message: str = ""
    ulps: int = 0


def judge(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> Verdict:
    """Compares all results of a program; the worst one decides."""
    if len(ours) != len(theirs):
        return Verdict("wrong", f"{len(ours)} results instead of {len(theirs)}")
    verdicts = [Verdict("ok"), *map(_judge_one, ours, theirs)]
    order = ("ok", "rounding", "wrong")
    return max(verdicts, key=lambda v: (order.index(v.outcome), v.ulps))


def _judge_one(ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    for what in ("shape", "dtype"):
        got, wanted = getattr(ours, what), getattr(theirs, what)
        if got != wanted:
            return Verdict("wrong", f"{what} {got} instead of {wanted}")
    if not jnp.issubdtype(theirs.dtype, jnp.floating):
        return _differing("values", ours != theirs, ours, theirs)
    ours, theirs = _flush(ours), _flush(theirs)
    nan = np.isnan(theirs)
    if (np.isnan(ours) != nan).any():
        return _differing("NaN", np.isnan(ours) != nan, ours, theirs)
    infinite = np.isinf(theirs) | np.isinf(ours)
    if (infinite & (ours != theirs)).any():
        return _differing("infinities", infinite & (ours != theirs), ours, theirs)
    zero = (theirs == 0) & (ours == 0) & (np.signbit(ours) != np.signbit(theirs))
    if zero.any():
        return _differing("signs of zero", zero, ours, theirs)
    distance = np.where(nan, 0, _ulps(ours, theirs))
    ulps = int(distance.max(initial=0))
    if ulps <= ULPS:
        return Verdict("ok", ulps=ulps)
    wide, wanted = ours.astype(np.float64), theirs.astype(np.float64)
    tolerance = TOLERANCE[theirs.dtype.name]
    with np.errstate(invalid="ignore"):
        typical = np.median(abs(wanted[np.isfinite(wanted)]))
        close = abs(wide - wanted) <= tolerance * (1 + typical + abs(wanted))
    verdict = _differing("values", ~(close | nan | infinite), ours, theirs)
    if verdict.outcome == "ok":
        return Verdict("rounding", f"{ulps} units in the last place", ulps)
    return Verdict("wrong", verdict.message, ulps)


def _flush(x: np.ndarray) -> np.ndarray:
    """Subnormals count as zeros: XLA's CPU threads flush these, mostly."""
    return np.where(abs(x) < jnp.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def _ulps(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    a, b = _rank(ours), _rank(theirs)
    return np.where(a > b, a.view("u8") - b.view("u8"), b.view("u8") - a.view("u8"))


def _rank(x: np.ndarray) -> np.ndarray:
    """An integer for each float, in the same order, one apart for neighbours."""
    bits = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    return np.where(bits < 0, np.int64(np.iinfo(f"i{x.dtype.itemsize}").min) - bits, bits)


def _differing(what: str, where: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    count = int(where.sum())
    if not count:
        return Verdict("ok")
    first = np.unravel_index(int(where.argmax()), where.shape)
    message = (
        f"{count} of {where.size} {what} differ, first at {tuple(map(int, first))}: "
        f"{ours[first]!s} instead of {theirs[first]!s}"
    )
    return Verdict("wrong", message)
