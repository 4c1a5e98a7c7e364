"""Draws the figure of the first screen, from the library: `python docs/figures/hero.py`.

Left, what a small network knows of two moons: its epistemic uncertainty. Middle, the accuracy of a
network of digits over noise. Right, what its layers need on a Cortex-M4.
"""

import argparse
import hashlib
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxeff_export
import matplotlib.pyplot as plt
import optax

import jaxeff
from jaxeff import Additive, bayes, compression, data, nn, robustness, training, uncertainty
from jaxeff.ensembles import sngp
from jaxeff.robustness.curves import draw_curve

MAIN, OTHER = "#00798c", "#d1495b"


def draw_moons(key, axes, epochs):
    """Draws where a network of two moons is unsure because it has seen nothing there.

    Its last layer is a Gaussian process, by random features: far from all points it knows nothing,
    where a network of rectified linear units goes on being sure on either side.
    """
    x, y = data.two_moons(key, 300)
    params = {"out": {"kernel": jnp.zeros((2, 2))}}
    site = jaxeff.sites(linear, params, x)[-1]
    g, params = sngp(key, linear, params, x, site, features=256, length_scale=0.5)
    recipe = {"optimizer": optax.adam(3e-2), "epochs": epochs, "batch_size": 100}
    params = training.fit(key, training.cross_entropy(g), params, (x, y), **recipe).params
    posterior = bayes.laplace(key, g, params, (x, y), "head", "outputs", prior_precision=1.0)
    sides = jnp.linspace(-2.5, 3.5, 120), jnp.linspace(-2.2, 2.7, 100)
    grid = jnp.stack(jnp.meshgrid(*sides), -1)
    logits = posterior.marginals(grid.reshape(-1, 2))
    parts = uncertainty.from_gaussian(key, logits, 2000)
    axes.contourf(*sides, parts.epistemic.reshape(grid.shape[:2]), 12, cmap="GnBu")
    for label, color in ((0, MAIN), (1, OTHER)):
        axes.plot(*x[y == label].T, ".", ms=3, color=color)
    axes.set(title="What it doesn't know", xticks=[], yticks=[])
    axes.set_xlabel("darker: less sure, since it has seen nothing there")


def linear(params, x):
    """Computes a layer that the Gaussian process takes the place of."""
    return x @ params["out"]["kernel"]


def draw_layers(axes, codes, steps):
    """Draws what each layer needs: memory while it runs, and parameters.

    A call that reads no array of a layer, such as a pooling, belongs to the layer before it.
    """
    names = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(codes)]
    names.sort(key=lambda name: name.endswith("codes"))  # packed ones lie behind the others
    owners = [[names[i].partition("/")[0] for i in step.operands] for step in steps]
    memory, flash, layer = {}, {}, next(filter(None, owners))[0]
    for step, owner in zip(steps, owners, strict=True):
        layer = owner[0] if owner else layer
        memory[layer] = max(memory.get(layer, 0), step.live)
        flash[layer] = flash.get(layer, 0) + step.parameters
    places = jnp.arange(len(memory))
    for offset, sizes, label, color in (
        (-0.2, memory, "memory while it runs", MAIN), (0.2, flash, "parameters", OTHER),
    ):  # fmt: skip
        bars = axes.barh(places + offset, [*sizes.values()], 0.38, label=label, color=color)
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set(yticks=places, yticklabels=[*memory], xlabel="bytes")
    axes.invert_yaxis()
    axes.margins(x=0.15)


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("hero.png"))
    arguments = parser.parse_args()
    key = jax.random.key(0)
    plt.rcParams.update(
        {
            "axes.prop_cycle": plt.cycler(color=(MAIN, OTHER)),
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
    draw_curve(middle, curve, midpoint, label="half is lost", color=MAIN)
    middle.set(title="What noise it bears", xlabel="noise after every layer, standard deviation")
    middle.legend(frameon=False)

    g, codes, _ = compression.ptq(f, params, x)
    bundle = jaxeff_export.deploy(g, (codes, x[:1]), target="cortex-m4")
    with tempfile.TemporaryDirectory() as folder:
        library = bundle.export_c(f"{folder}/net", name="net")
    draw_layers(right, codes, library.steps)
    total = library.sizes.code + library.sizes.parameters
    right.legend(frameon=False, fontsize=8, loc="lower right")
    right.set_title(f"What a Cortex-M4 needs: {total / 1000:.1f} kB of flash")
    drawn_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    figure.savefig(arguments.output, dpi=150, metadata={"Source": drawn_by})


if __name__ == "__main__":
    main()
