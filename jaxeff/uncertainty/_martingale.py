"""Conformal test martingales: evidence that data have ceased to be exchangeable.

One bets against conformal p-values, which are independent and uniform while data are exchangeable:
a capital that was 1 then reaches 1/a with a probability of at most a, whenever one looks (Ville).

```python
import jax
import jax.numpy as jnp
from jaxeff.uncertainty import exchangeability

key, scores = jax.random.key(0), jax.random.normal(jax.random.key(1), (300,))
exchangeability(key, scores).p_value                        # any number up to 1
later = scores.at[200:].add(2.0)
assert exchangeability(key, later).p_value < 0.01
```

The p-value of a score among those before it, with a uniform number u, is the share of those that
are higher, and u times the share that are equal, itself included (Vovk, Nouretdinov, Gammerman,
"Testing Exchangeability On-Line", ICML 2003). It is exact only with u.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core

BETS = (-1.0, 0.0, 1.0)
JUMP = 0.01
"""Share of the capital that is spread over bets anew before each score."""

MOST = 1e30
"""Where evidence stops to grow: a martingale that is cut off there is a supermartingale."""


class Capital(NamedTuple):
    """Evidence so far.

    Attributes:
        shares: Shares of the capital on each bet, `[3]`.
        staked: The sum A of bets that began at any score.
        seen: Number of scores.
    """

    shares: Float[Array, " bets"]
    staked: Float[Array, ""]
    seen: Float[Array, ""]


def no_capital() -> Capital:
    """Returns evidence before the first score."""
    zero = jnp.zeros((), jnp.float32)
    return Capital(jnp.full(len(BETS), 1 / len(BETS), jnp.float32), zero, zero)


def bet(before: Capital, p_value: Array, *, renewed: bool) -> tuple[Capital, Array]:
    """Bets on one p-value, and returns the evidence too.

    Args:
        before: Evidence before it.
        p_value: The p-value of the score that has come.
        renewed: Whether a stake of 1 comes with every score (Shiryaev-Roberts), or one in all.
    """
    shares = (1 - JUMP) * before.shares + JUMP / len(BETS)
    shares = shares * (1 + jnp.array(BETS, jnp.float32) * (p_value - 0.5))
    factor = shares.sum()
    seen = before.seen + 1
    stake = 1.0 if renewed else 1 / (seen * (seen + 1))
    staked = jnp.minimum((before.staked + stake) * factor, MOST)
    evidence = staked if renewed else staked + 1 / (seen + 1)
    return Capital(shares / factor, staked, seen), evidence


class Exchangeability(NamedTuple):
    """What a test of exchangeability found.

    Attributes:
        p_values: Conformal p-values, `[n]`; near 0 where a score is higher than those before.
        evidence: The test martingale after each score, `[n]`.
        p_value: One over the most evidence, at most 1: valid whenever one stops to look.
    """

    p_values: Float[Array, " n"]
    evidence: Float[Array, " n"]
    p_value: Float[Array, ""]


@core.validate(scores=core.real_array(1))
def exchangeability(key: PRNGKeyArray, scores: Float[Array, " n"]) -> Exchangeability:
    """Tests whether scores could have come in any other order as well.

    While they could, the evidence reaches 1/a at any time with a probability of at most a. Formula
    and papers are in the module. It jits and vmaps.

    Bets are those of the simple jumper (Vovk, Petej, Nouretdinov, Ahlberg, Carlsson, Gammerman,
    "Retrain or Not Retrain: Conformal Test Martingales for Change-Point Detection", COPA 2021,
    arXiv 2102.10439, algorithm 1): capital lies on ``1 + b (p - 1/2)`` for b of -1, 0 and 1, and a
    hundredth of it is spread anew before each score. With e_n for what a bet multiplies the whole
    by, evidence is ``A_n = (A_{n-1} + w_n) e_n``: a bet begins at every score. Weights that sum to
    one, ``w_n = 1 / (n (n + 1))``, and the ``1 / (n + 1)`` that isn't staked yet, make a martingale
    that is 1 at first. With ``w_n = 1`` it is the statistic of Shiryaev and Roberts, of which ``A_n
    - n`` is a martingale: the mean number of scores before it reaches c is at least c.

    Args:
        key: A random key: p-values of ties are randomized.
        scores: A number of each example in the order in which they came, such as losses,
            uncertainties, or ``method.scores(outputs, targets)``.

    Raises:
        TypeError: Scores are no vector.
    """
    scores = jnp.asarray(scores)
    n, draws = len(scores), jax.random.uniform(key, jnp.shape(scores), jnp.float32)
    place = jnp.arange(n)

    def one(before: Capital, at: tuple[Array, Array, Array]) -> tuple[Capital, tuple[Array, Array]]:
        i, score, u = at
        higher = ((scores > score) & (place < i)).sum().astype(jnp.float32)
        equal = ((scores == score) & (place <= i)).sum().astype(jnp.float32)
        p_value = (higher + u * equal) / (i + 1).astype(jnp.float32)
        after, evidence = bet(before, p_value, renewed=False)
        return after, (p_value, evidence)

    p_values, evidence = jax.lax.scan(one, no_capital(), (place, scores, draws))[1]
    return Exchangeability(p_values, evidence, 1 / jnp.maximum(evidence.max(initial=1.0), 1.0))
