"""Draws the figure of the first screen, from the library: `python docs/figures/hero.py`.

Left, what a small network knows of two moons: its epistemic uncertainty, in one pass. Middle, the
accuracy of a network of digits over noise. Right, the memory that it needs on a Cortex-M4, call by
call.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxeff_export
import matplotlib.pyplot as plt
import optax
from flax import nnx
from jaxeff_export.clib import draw_steps

import jaxeff
from jaxeff import Additive, bayes, compression, data, nn, robustness, training, uncertainty
from jaxeff.robustness.curves import draw_curve

MAIN, OTHER = "#00798c", "#d1495b"


def draw_moons(key, axes, epochs):
    """Draws where a network of two moons is unsure because it has seen nothing there."""
    x, y = data.two_moons(key, 300)
    f, params = jaxeff.functional(nn.MLP((2, 32, 32, 2), rngs=nnx.Rngs(0)))
    recipe = {"optimizer": optax.adam(1e-2), "epochs": epochs, "batch_size": 50}
    posterior = bayes.svi(key, f, params, (x, y), **recipe).posterior
    sides = jnp.linspace(-2.5, 3.5, 120), jnp.linspace(-2.2, 2.7, 100)
    grid = jnp.stack(jnp.meshgrid(*sides), -1)
    logits = jax.jit(jaxeff.moments(f))(posterior, grid.reshape(-1, 2))
    parts = uncertainty.from_gaussian(key, logits, 1000)
    axes.contourf(*sides, parts.epistemic.reshape(grid.shape[:2]), 12, cmap="GnBu")
    for label, color in ((0, MAIN), (1, OTHER)):
        axes.plot(*x[y == label].T, ".", ms=3, color=color)
    axes.set(title="What it doesn't know", xticks=[], yticks=[])
    axes.set_xlabel("darker: less sure, for it has seen nothing there")


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("hero.png"))
    arguments = parser.parse_args()
    key = jax.random.key(0)
    plt.rcParams.update(
        {
            "axes.prop_cycle": plt.cycler(color=(MAIN, "#edae49", OTHER)),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.size": 10,
        }
    )
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    draw_moons(key, left, arguments.epochs)

    f, params, (x, y) = nn.small_classifier()
    recipe = {"optimizer": optax.adam(1e-2), "epochs": min(arguments.epochs, 30), "batch_size": 32}
    params = training.fit(key, training.cross_entropy(f), params, (x, y), **recipe).params
    levels = jnp.logspace(-2, 1, 7)
    curve = robustness.accuracy_curve(key, f, params, (x, y), {"*": Additive(levels)}, levels)
    midpoint = robustness.fit_midpoint(levels, curve.draws)
    draw_curve(middle, curve, midpoint, label="half is lost at", color=MAIN)
    middle.set(title="What noise it bears", xlabel="noise after every layer, standard deviation")
    middle.legend(frameon=False)

    g, codes, _ = compression.ptq(f, params, x)
    bundle = jaxeff_export.deploy(g, (codes, x[:1]), target="cortex-m4")
    with tempfile.TemporaryDirectory() as folder:
        library = bundle.export_c(f"{folder}/net", name="net")
    draw_steps(right, library.steps)
    # Of a fused kernel the first two words say enough.
    names = ["_".join(step.kernel.split("_")[:2]) for step in library.steps]
    right.set_yticks(range(len(names)), names)
    total = library.sizes.code + library.sizes.parameters
    # Below the axes: bars take all of their width.
    right.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=8
    )
    right.set_title(f"What a Cortex-M4 needs: {total / 1000:.1f} kB of flash")
    figure.savefig(arguments.output, dpi=150)


if __name__ == "__main__":
    main()
