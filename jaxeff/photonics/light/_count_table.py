"""Tables to draw photon counts from, where few different distributions are drawn from often.

A Gamma and a Poisson draw cost hundreds of operations. Where mean intensities are known before the
program is compiled, as with amplitude levels, the distributions are kept instead, as in Klein's
thesis, figure 10.5: by the alias method a draw is two random words and two look-ups, however wide
the distribution.

Reference:
    Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE
    Transactions on Software Engineering 17 (1991).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `special` is loaded when first used, a fifth of a second after import
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32


class CountTable(NamedTuple):
    """Distributions of photon counts, as columns of equal probability with two counts each.

    Attributes:
        share: Share of each column that belongs to its own count, in units of 2⁻³².
        other: The count that the rest of the column belongs to.
    """

    share: UInt32[np.ndarray, "means n"]
    other: Int[np.ndarray, "means n"]


def table_width(mean: float, modes: float) -> int:
    """Returns how many columns hold all counts but about one in 10¹¹: a power of two."""
    # Twelve deviations, and some for the longer tail of small means; a power of two, so that the
    # leading bits of a random word number a column.
    top = mean + 12 * (mean + mean**2 / modes) ** 0.5 + 40
    return 1 << int(np.ceil(np.log2(top)))


def count_table(means: Float[np.ndarray, " means"], modes: float) -> CountTable:
    """Returns the M-fold Bose-Einstein distributions of some means; the last counts have the rest.

    Args:
        means: Mean photon numbers.
        modes: Degeneracy factor M.
    """
    counts = np.arange(table_width(float(np.max(means)), modes))
    ratio = np.asarray(means, float)[:, None] / modes
    chosen = (
        scipy.special.gammaln(counts + modes)
        - scipy.special.gammaln(modes)
        - scipy.special.gammaln(counts + 1)
    )
    # The density of `BoseEinstein.log_prob`, in float64: large terms cancel to order one.
    some = counts * np.log(np.where(ratio > 0, ratio, 1))
    logs = chosen - (modes + counts) * np.log1p(ratio) + np.where(ratio > 0, some, 0)
    mass = np.where(ratio > 0, np.exp(logs), counts == 0)
    # The tail beyond the last column is spread by renormalizing.
    columns = [_aliases(row / row.sum()) for row in mass]
    share = np.minimum(np.round(np.array([c[0] for c in columns]) * 2.0**32), 2.0**32 - 1)
    return CountTable(share.astype(np.uint32), np.array([c[1] for c in columns], np.int32))


def tabled_counts(
    key: PRNGKeyArray, which: Int[Array, "*shape"], table: CountTable
) -> Int[Array, "*shape"]:
    """Draws photon counts by look-up.

    Args:
        key: Random key.
        which: The mean of each draw, as a row of the table; others than it has aren't noticed.
        table: Result of `count_table`.
    """
    width = table.share.shape[1]
    # One word chooses the column, by its leading bits, the other one a side of it: uniform, without
    # a division or a search.
    column, part = jax.random.bits(key, (2, *which.shape), jnp.uint32)
    own = (column >> np.uint32(33 - width.bit_length())).astype(jnp.int32)
    at = which * width + own
    share, other = (  # within bounds always; the check would take twice as long as the look-up
        jnp.asarray(part).ravel().at[at].get(mode="promise_in_bounds") for part in table
    )
    return jnp.where(part < share, own, other)


def _aliases(mass: Float[np.ndarray, " n"]) -> tuple[list[float], list[int]]:
    """Returns the share of each column's own count, and the other count of the column."""
    share, other = (mass * len(mass)).tolist(), list(range(len(mass)))
    # Vose: each column below the mean is filled up from one above it, which then has less: n steps,
    # no sorting.
    poor = [i for i, value in enumerate(share) if value < 1]
    rich = [i for i, value in enumerate(share) if value >= 1]
    while poor and rich:
        i, j = poor.pop(), rich[-1]
        other[i] = j
        share[j] -= 1 - share[i]
        if share[j] < 1:
            poor.append(rich.pop())
    for i in poor + rich:  # what rounding left over
        share[i] = 1.0
    return share, other
