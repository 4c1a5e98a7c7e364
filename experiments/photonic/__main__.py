"""Photonic computing: chaotic light, and a network of nine digits that doesn't know the tenth.

    python -m experiments.photonic

1. light: variance over intensity with the fit of its modes, and sums;
2. digits: LeNet-5 whose average poolings are carried by light, trained with the Gaussian model and
   read with the physical one; mutual information of known digits, of the 9, and of other images;
3. dark: the same parameters without any light, by entropy: what the network has learnt;
4. bits: trained with weights and activations of 1 to 8 bits.

Source: Klein's thesis, chapter 10; Brückerhoff-Plückelmann et al., Nature Communications 15, 10445
(2024).
"""

from typing import Any

import numpy as np

from experiments.harness import Part, Row, Run, Study
from experiments.photonic import findings, light, network, recipe

DIFFERENCES = (
    "the thesis' slots, levels, widths, bit widths and epochs are not public: those of `config` "
    "are ours",
    "everything is simulated; the thesis measured a chip",
    "peaks are sought in the logarithm of mutual information, of as many known digits as nines: on "
    "the linear scale surely known digits are a spike at zero; that one peak would do is tested by "
    "Silverman's test",
    "poolings are LeNet-5's own, behind ReLUs; the pulses are made after pooling",
    "the thesis gives no number for accuracy or detection beside 'high' and 'clear'; bounds of "
    "checks are ours",
)


def _digits(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model = network.train(run, seed, short=False)
    return [
        {"seed": seed, "model": kind, **_read(run, model, kind, shown=True)}
        for kind in ("gaussian", "physical")
    ]


def _dark(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model = network.train(run, seed, short=False)  # the second time from its checkpoint
    _, labels, domains = network.load(run.settings)
    return [{"seed": seed, **network.figures(network.dark(model, domains), labels)}]


def _bits(run: Run[recipe.Settings], bits: int) -> list[Row]:
    return [{"bits": bits, **_read(run, network.train(run, 0, bits=bits), "gaussian")}]


def _read(run: Run[recipe.Settings], model: network.Model, kind: str, shown: bool = False) -> Row:
    """Figures of a trained network on the test images."""
    _, labels, domains = network.load(run.settings)
    levels = run.settings.levels if kind == "physical" else None
    logits = network.draw(
        run.fast_key, model, domains, run.settings.samples, model=kind, levels=levels
    )
    noise = [float(np.mean(light.noise)) for light in model.spec.values()]
    figures = network.figures(logits, labels, shown=shown)
    return {**figures, "level_1": noise[0], "level_2": noise[1]}


PARTS: tuple[Part[recipe.Settings, Any], ...] = (
    Part.of("light", lambda run: ("",), lambda run, _: light.measure(run)),
    Part.of("digits", lambda run: run.settings.seeds, _digits),
    Part.of("dark", lambda run: run.settings.seeds, _dark),
    Part.of(
        "epochs", lambda run: run.settings.seeds[:1], lambda run, seed: network.watched(run, seed)
    ),
    Part.of("bits", lambda run: run.settings.bits, _bits),
)
STUDY = Study(
    "photonic", __doc__, recipe.SIZES,
    PARTS, findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
