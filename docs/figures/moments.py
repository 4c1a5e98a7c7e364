"""Draws the figures of the page on moments, from the library: `python docs/figures/moments.py`.

Exact: the mean and deviation of a dense layer and its ReLU. Followed: what all positions share of a
kernel, in a mean over them.
"""

import argparse
import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxeff
from jaxeff import Gaussian, bayes

HERE = Path(__file__).parent
MAIN, OTHER = "#00798c", "#d1495b"


def draw_exact(axes, key, draws):
    """Draws a unit's histogram over draws, and what moments say of it."""
    kernel, x = jax.random.normal(key, (2, 16)) / 4, jnp.ones(16)
    weights = Gaussian(kernel[0] - 0.07, jnp.full(16, 0.02))
    shown = (("dense", lambda w: x @ w, MAIN), ("ReLU of it", lambda w: jax.nn.relu(x @ w), OTHER))
    for row, (name, f, color) in zip(axes, shown, strict=True):
        values = np.asarray(jax.vmap(f)(bayes.sample(key, weights, draws)))
        said = jaxeff.moments(f)(weights)
        mean, std = float(said.mean), float(said.var) ** 0.5
        row.hist(values, 60, density=True, color=color, alpha=0.35)
        row.axvline(mean, color=color)
        row.axvspan(mean - std, mean + std, color=color, alpha=0.15)
        row.set(yticks=[], xlabel=f"{name}: mean {mean:.2f}, deviation {std:.2f};"
                f" of draws {values.mean():.2f}, {values.std():.2f}")  # fmt: skip


def draw_followed(axes, key, draws):
    """Draws the variance of a mean over positions, by how many there are."""
    weights = Gaussian(jax.random.normal(key, (3, 3, 1, 8)) / 3, jnp.full((3, 3, 1, 8), 0.01))

    def f(kernel, x):
        names = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=names)
        return jax.nn.relu(y).mean((1, 2))

    sides, lines = (2, 4, 8, 16), {"draws": [], "linear": [], "diagonal": []}
    for side in sides:
        x = 1 + 0.3 * jax.random.normal(key, (1, side, side, 1))
        lines["draws"].append(float(bayes.predict(key, f, weights, x, samples=draws).var(0).mean()))
        lines["linear"].append(float(jaxeff.moments(f, method="linear")(weights, x).var.mean()))
        diagonal = jaxeff.moments(f, method="diagonal")(weights, x)
        lines["diagonal"].append(float(diagonal.var.mean()))
    styles = {"draws": ("k", "o"), "linear": (MAIN, "-"), "diagonal": (OTHER, "--")}
    for name, values in lines.items():
        color, style = styles[name]
        axes.loglog([side**2 for side in sides], values, style, color=color, label=name)
    axes.set(xlabel="positions that a kernel is applied at", ylabel="variance of their mean")
    axes.legend(frameon=False)


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the figures")
    given = parser.parse_args()
    drawn_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    key = jax.random.key(0)
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    for name, rows, size in (
        ("exact", 2, (6, 4)),
        ("followed", 1, (6, 3.4)),
    ):
        figure, axes = plt.subplots(rows, 1, figsize=size, layout="constrained")
        if name == "exact":
            draw_exact(axes, key, given.draws)
        else:
            draw_followed(axes, key, given.draws)
        path = given.output / f"moments_{name}.png"
        figure.savefig(path, dpi=130, metadata={"Source": drawn_by})


if __name__ == "__main__":
    main()
