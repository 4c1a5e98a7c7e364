"""What Gaussian logits lose: uncertainty of a sampled network against its Gaussian approximations.

    python -m experiments.gaussian_limits

The three regimes of Klein's thesis, table 8.1, over five classes, as distributions of logits. It
doesn't state them; these reproduce its numbers:

- low: one class at 1, the others at 0, in every draw;
- high aleatoric: all classes at 0, in every draw;
- high epistemic: one class at 1, the others at 0, another class in each draw;

each with a little Gaussian noise, so that a variance is not exactly zero. Beside the independent
Gaussians that a moment pass gives, the study takes Gaussians with the full covariance: the thesis
puts the whole loss of mutual information down to the shape of the distribution, but a part of it is
the lost correlation between the logits. A sweep over the height of the peak shows both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from experiments import harness as h
from experiments.harness import Found, Least, Refused, Report, Row, Run, Study
from jaxeff.moment_propagation import Gaussian
from jaxeff.uncertainty import Decomposition, decompose_logits, sample_logits

CLASSES = 5
NOISE = 0.01  # standard deviation of every logit, ours
GROUPS = 20  # of draws; the standard error comes from their spread
SOURCE = {  # by regime and distribution: total, aleatoric, epistemic uncertainty
    "low": {"draws": (1.5008, 1.5007, 0.0), "independent": (1.5007, 1.5007, 0.0)},
    "high aleatoric": {"draws": (1.6094, 1.6094, 0.0), "independent": (1.6094, 1.6094, 0.0)},
    "high epistemic": {"draws": (1.6094, 1.5002, 0.1092), "independent": (1.6094, 1.5484, 0.0610)},
}
DISTRIBUTIONS = ("draws", "independent", "correlated")
PARTS = Decomposition._fields
HEIGHTS = np.geomspace(0.25, 16, 25)


@dataclass(frozen=True)
class Settings:
    """How much is drawn."""

    # draws of every distribution, a multiple of 200; the sweep takes a tenth
    draws: Annotated[int, Least(200)]

    def __post_init__(self) -> None:
        if self.draws % (10 * GROUPS):
            raise Refused(f"draws come in multiples of {10 * GROUPS}, not {self.draws}")


def draw_logits(
    key: PRNGKeyArray, regime: str, n: int, height: float | Array = 1.0
) -> Float[Array, "n classes"]:
    """Draw logits of one input in a regime of `SOURCE`; the peak's height is in nats."""
    which, noise = jax.random.split(key)
    peaks = {
        "low": jnp.zeros(n, int),
        "high aleatoric": jnp.full(n, CLASSES),  # no class: one_hot is all zeros
        "high epistemic": jax.random.randint(which, (n,), 0, CLASSES),
    }
    logits = height * jax.nn.one_hot(peaks[regime], CLASSES)
    return logits + NOISE * jax.random.normal(noise, logits.shape)


@partial(jax.jit, static_argnames=("regime", "n"))
def compare(
    key: PRNGKeyArray, regime: str, n: int, height: float | Array = 1.0
) -> dict[str, Decomposition]:
    """Uncertainties of the draws, of independent Gaussians, and of correlated ones.

    By distribution, the three uncertainties in nats are each ``[GROUPS]``: of as many independent
    groups of ``n / GROUPS`` draws.
    """
    keys = jax.random.split(key, 3)
    drawn = draw_logits(keys[0], regime, n, height)
    mean, covariance = drawn.mean(0), jnp.cov(drawn.T)
    distributions = {
        "draws": drawn,
        "independent": sample_logits(keys[1], Gaussian(mean, jnp.diag(covariance)), n),
        "correlated": jax.random.multivariate_normal(
            keys[2], mean, covariance, (n,), method="eigh"
        ),
    }
    groups = {name: s.reshape(GROUPS, -1, CLASSES) for name, s in distributions.items()}
    return {name: jax.vmap(decompose_logits)(group) for name, group in groups.items()}


def rows_of(regime: str, found: dict[str, Decomposition]) -> list[Row]:
    """The figures of a regime, with standard errors."""
    rows: list[Row] = []
    for name in DISTRIBUTIONS:
        row: dict[str, Any] = {"regime": regime, "distribution": name}
        for i, part in enumerate(PARTS):
            values = np.asarray(getattr(found[name], part), np.float64)
            row |= {part: values.mean(), f"{part}_error": values.std(ddof=1) / GROUPS**0.5}
            if name in SOURCE[regime]:
                row[f"{part}_source"] = SOURCE[regime][name][i]
        rows.append(row)
    return rows


def run(run: Run[Settings]) -> Found:
    """The three regimes, and the sweep over the height of the peak in the last of them."""
    n, keys = run.settings.draws, [jax.random.fold_in(run.key, i) for i in range(len(SOURCE) + 1)]
    rows: list[Row] = []
    for key, regime in zip(keys, SOURCE, strict=False):
        rows += rows_of(regime, compare(key, regime, n))
    one = lambda height: compare(keys[-1], "high epistemic", n // 10, height)  # noqa: E731
    swept = jax.lax.map(one, jnp.asarray(HEIGHTS, jnp.float32))
    curves = {name: np.asarray(parts.epistemic.mean(-1)) for name, parts in swept.items()}
    lost = 1 - rows[-1]["epistemic"] / rows[-3]["epistemic"]
    return Found(rows, {"sweep": {"height": HEIGHTS, **curves}, "lost_with_correlation": lost})


def parts(report: Report) -> Iterator[Row]:
    """Selects each uncertainty of which the thesis has a number."""
    for row in report.rows:
        for part in (part for part in PARTS if f"{part}_source" in row):
            of = {k: row[k] for k in ("regime", "distribution")}
            known = {"source": row[f"{part}_source"], "error": row[f"{part}_error"]}
            yield {**of, **known, "part": part, "ours": row[part]}


def lost(report: Report) -> list[Row]:
    """Selects one row: the share of mutual information that independent Gaussians lose."""
    epistemic = {row["distribution"]: row["epistemic"] for row in report.rows[-3:]}
    return [{"share": 1 - epistemic["independent"] / epistemic["draws"]}]


CLAIMS = (
    # A mean is off by its standard error, the thesis by its four digits.
    h.Claim(
        "{regime}, {distribution}: {part}", "ours",
        lambda row, ours: abs(ours - row["source"]) < max(1e-3, 4 * row["error"]),
        itemgetter("source"), parts,
    ),
    h.Claim(
        "mutual information lost, high epistemic", "share", h.near(0.44, 0.01), 0.44, lost
    ),
)  # fmt: skip


def shown(report: Report) -> list[Row]:
    """Selects all rows, to four digits."""
    return [
        {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()}
        for row in report.rows
    ]


def swept(report: Report) -> Iterator[Row]:
    """Selects the sweep: mutual information, and the share that an approximation keeps."""
    curves = {name: np.array(values) for name, values in report.extra["sweep"].items()}
    for name, style in zip(DISTRIBUTIONS, ("k-", "C0--", "C3:"), strict=True):
        kept = (curves[name] / curves["draws"]).tolist() if name != "draws" else None
        yield {
            "distribution": name, "style": style, "heights": curves["height"].tolist(),
            "information": curves[name].tolist(), "kept": kept,
        }  # fmt: skip


def _curves(column: str, label: str, guide: float) -> h.Curves:
    return h.Curves(
        "heights", column, swept, "{distribution}", "a peak at another class in each draw",
        style="{style}", guides=(guide,),
        axes={"xscale": "log", "xlabel": "height of the peak / nats", "ylabel": label},
        then=lambda axis, _: axis.axvline(1, color="0.8", zorder=0),
    )  # fmt: skip


PLOT = h.Plot(
    "sweep",
    _curves("information", "mutual information / nats", float(np.log(CLASSES))),
    _curves("kept", "over that of the draws", 1),
)
TABLE = h.Listing(
    lambda report: "uncertainty in nats; correlated Gaussians lose "
    f"{report.extra['lost_with_correlation']:.0%} of the last",
    {
        "regime": "regime", "distribution": "distribution",
        **{head: name for part in PARTS
           for head, name in ((part, part), (f"{part}, thesis", f"{part}_source"))},
    },
    shown,
)  # fmt: skip
STUDY = Study(
    "gaussian_limits", __doc__,
    {"fast": Settings(40_000), "default": Settings(400_000), "full": Settings(4_000_000)},
    (run,), CLAIMS, (PLOT,), (TABLE,),
    (
        "The thesis states no distributions; these were found from its numbers, so that the column "
        "of draws agrees with it by construction. What can miss are the Gaussians' columns.",
        f"The noise of {NOISE} is ours. In the low regime the thesis' total of 1.5008 lies .0006 "
        "above that of an exact peak, as the mean of a few noisy draws would.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
