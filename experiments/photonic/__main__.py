"""Photonic computing: chaotic light, and a network of nine digits that doesn't know the tenth.

    python -m experiments.photonic

1. light: variance over intensity with the fit of its modes, sums, the range of an encoding, and
   the samples that correlated readings are worth;
2. digits: LeNet-5 whose average poolings are carried by light, trained with the Gaussian model and
   read with the physical one; mutual information of known digits, of the 9, and of other images;
   then with other levels of noise and fewer readings;
3. bits: trained with weights and activations of 1 to 8 bits;
4. guides: the hardware's bounds on noise against none, for two weights of the divergence;
5. beside: variational weights, sampled (SVI) and by moments (PFP), and no randomness at all;
6. time: predictions in software, with pseudo-random light and without;
7. dark: the networks of 2 with the same parameters and no light at all, by entropy.

Source: Klein's thesis, chapter 10; Brückerhoff-Plückelmann et al., Nature Communications 15, 10445
(2024).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.harness import Part, Row, Run, Study
from experiments.photonic import findings, light, network, recipe

DIFFERENCES = (
    "the source's slots, levels, widths, bit widths and epochs are not public: those of `config` "
    "are ours",
    "everything is simulated; the source measured a chip",
    "peaks are sought in the logarithm of mutual information, of as many known digits as nines: on "
    "the linear scale surely known digits are a spike at zero; that one peak would do is tested by "
    "Silverman's test",
    "poolings are LeNet-5's own, behind ReLUs; the pulses are made after pooling",
    "the source gives no number for accuracy or detection beside 'high' and 'clear'; bounds of "
    "checks are ours",
)
BUDGET = (0.0, 0.25, 0.5, 0.75, 1.0)
READINGS = (2, 5, 10, 20, 50, 100)


def _digits(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model, history = network.train(run, seed, short=False)
    rows: list[Row] = [{"part": "training", "seed": seed, **record} for record in history]
    for kind in ("gaussian", "physical"):
        found = _read(run, model, kind, shown=True)
        rows.append({"part": "digits", "seed": seed, "model": kind, **found})
    return rows


def _samples(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model, _ = network.train(run, seed, short=False)  # the second time from its checkpoint
    _, labels, domains = network.load(run.settings)
    logits = network.draw(run.fast_key, model, domains, READINGS[-1])
    few = [{name: v[:count] for name, v in logits.items()} for count in READINGS]
    read = [network.figures(values, labels) for values in few]
    return [{"samples": n, **row} for n, row in zip(READINGS, read, strict=True)]


def _budget(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model, _ = network.train(run, seed, short=False)
    return [{"level": level, **_read(run, model, "gaussian", noise=level)} for level in BUDGET]


def _bits(run: Run[recipe.Settings], bits: int) -> list[Row]:
    model, _ = network.train(run, 0, bits=bits)
    return [{"bits": bits, **_read(run, model, "gaussian")}]


def _guides(run: Run[recipe.Settings], task: tuple[str, float]) -> list[Row]:
    guide, kl = task
    model, history = network.train(run, 0, kl=kl, free=guide == "free")
    own = {"guide": guide, "kl": kl, "nats": history[-1]["nats"]}
    return [{**own, **_read(run, model, model.spec["avg_pool"].model)}]


def _dark(run: Run[recipe.Settings], seed: int) -> list[Row]:
    model, _ = network.train(run, seed, short=False)
    _, labels, domains = network.load(run.settings)
    return [{"seed": seed, **network.figures(network.dark(model, domains), labels)}]


def _read(
    run: Run[recipe.Settings], model: network.Model, kind: str, shown: bool = False, **fields: float
) -> Row:
    """Figures of a trained network on the test images."""
    _, labels, domains = network.load(run.settings)
    levels = run.settings.levels if kind == "physical" else None
    logits = network.draw(
        run.fast_key, model, domains, run.settings.samples, model=kind, levels=levels, **fields
    )
    noise = [float(np.mean(light.noise)) for light in model.spec.values()]
    found = network.figures(logits, labels, shown=shown)
    return {**found, "level_1": noise[0], "level_2": noise[1]}


def _part(name: str, whats: Callable[[recipe.Settings], Any], make: Any, option: str = "") -> Any:
    """Declares a part, whose rows bear its name unless they say another."""
    return Part.of(name, lambda run: whats(run.settings), make, option)


PARTS = (
    _part("light", lambda s: ("",), lambda run, _: light.measure(run)),
    _part("digits", lambda s: s.seeds[:1], _digits),
    _part("samples", lambda s: s.seeds[:1], _samples, "digits"),
    _part("budget", lambda s: s.seeds[:1], _budget, "digits"),
    _part("bits", lambda s: s.bits, _bits),
    _part("time", lambda s: ("",), lambda run, _: network.timed(run)),
    _part("beside", lambda s: ("",), lambda run, _: network.others(run)),
    _part("guides", lambda s: [(g, kl) for kl in s.guides for g in ("bounded", "free")], _guides),
    _part("digits", lambda s: s.seeds[1:], _digits),
    _part("dark", lambda s: s.seeds, _dark),
)
STUDY = Study(
    "photonic", __doc__, recipe.SIZES,
    PARTS, findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
