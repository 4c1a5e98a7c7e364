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

from dataclasses import dataclass

import numpy as np

from experiments.harness import Row, Run, Study
from experiments.photonic import beside, figure, judging, light, network, recipe

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


@dataclass(frozen=True)
class Task:
    """What is kept once it is done.

    Attributes:
        part: Of the study.
        what: Within the part.
        number: A seed, a bit width, or the weight of a divergence.
    """

    part: str
    what: str = ""
    number: float = 0

    @property
    def name(self) -> str:
        """For the progress bar."""
        return f"{self.part} {self.what} {self.number:g}"


def run(run: Run[recipe.Settings]) -> list[Row]:
    """Measures all parts."""
    settings = run.settings
    tasks = [
        Task("light"),
        *(Task("digits", "", seed) for seed in settings.seeds[:1]),
        *(Task("digits", what, settings.seeds[0]) for what in ("samples", "budget")),
        *(Task("bits", "", bits) for bits in settings.bits),
        Task("time"),
        Task("beside"),
        *(Task("guides", guide, kl) for kl in settings.guides for guide in ("bounded", "free")),
        *(Task("digits", "", seed) for seed in settings.seeds[1:]),
        *(Task("dark", "", seed) for seed in settings.seeds),
    ]
    chosen = [task for task in tasks if settings.runs(task.part)]
    return run.each(chosen, lambda task: _measure(run, task))


def _measure(run: Run[recipe.Settings], task: Task) -> list[Row]:
    if task.part == "light":
        return light.measure(run)
    if task.part == "beside":
        return beside.measure(run)
    if task.part == "time":
        return beside.time(run)
    if task.part == "dark":
        model, _ = network.train(run, int(task.number), short=False)
        _, labels, domains = network.load(run.settings)
        found = network.figures(network.dark(model, domains), labels)
        return [{"part": "dark", "seed": int(task.number), **found}]
    if task.part == "digits":
        return _digits(run, task.what, int(task.number))
    if task.part == "bits":
        bits = int(task.number)
        model, _ = network.train(run, 0, bits=bits)
        return [{"part": "bits", "bits": bits, **_read(run, model, "gaussian")}]
    model, history = network.train(run, 0, kl=task.number, free=task.what == "free")
    own = {"guide": task.what, "kl": task.number, "nats": history[-1]["nats"]}
    return [{"part": "guides", **own, **_read(run, model, model.spec["avg_pool"].model)}]


def _digits(run: Run[recipe.Settings], what: str, seed: int) -> list[Row]:
    model, history = network.train(run, seed, short=False)  # the second time from its checkpoint
    _, labels, domains = network.load(run.settings)
    if what == "budget":
        read = [_read(run, model, "gaussian", noise=level) for level in BUDGET]
        return [{"part": what, "level": L, **row} for L, row in zip(BUDGET, read, strict=True)]
    if what == "samples":
        logits = network.draw(run.fast_key, model, domains, READINGS[-1])
        few = [{name: v[:count] for name, v in logits.items()} for count in READINGS]
        read = [network.figures(values, labels) for values in few]
        return [{"part": what, "samples": n, **r} for n, r in zip(READINGS, read, strict=True)]
    rows: list[Row] = [{"part": "training", "seed": seed, **record} for record in history]
    for kind in ("gaussian", "physical"):
        found = _read(run, model, kind, shown=True)
        rows.append({"part": "digits", "seed": seed, "model": kind, **found})
    return rows


def _read(
    run: Run[recipe.Settings],
    model: network.Model,
    kind: str,
    shown: bool = False,
    **fields: float,
) -> Row:
    """Figures of a trained network on the test images."""
    _, labels, domains = network.load(run.settings)
    levels = run.settings.levels if kind == "physical" else None
    logits = network.draw(
        run.fast_key, model, domains, run.settings.samples, model=kind, levels=levels, **fields
    )
    noise = [float(np.mean(light.noise)) for light in model.spec.values()]
    return {
        **network.figures(logits, labels, shown=shown),
        "level_1": noise[0],
        "level_2": noise[1],
    }


STUDY = Study(
    "photonic", __doc__, recipe.SIZES,
    (run,), (judging.judge,), (figure.draw,), (judging.tables,), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
