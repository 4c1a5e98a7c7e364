"""Ensembles beside their rivals: a noisy sine, Dirty-MNIST, and what uncertainty costs.

    python -m experiments.ensembles

1. sine: MC dropout, deep ensembles and repulsive last layers (RLLE) with every activation function
   of the thesis, on a regression whose noise is known and whose gaps are seen;
2. table: LeNet-5 on Dirty-MNIST by every method of the thesis' table, and by rivals that need no
   images from elsewhere; the strength of the repulsion is chosen on held-out images;
3. cost: multiplications, time of a prediction and of a training.

Finished trainings are kept: a run that was killed goes on. `--full` trains a ResNet-18. Source:
Klein's thesis, chapter 9 (arXiv 2412.15758); the numbers of its table 9.1 are not public.
"""

import functools
from typing import Any

from experiments.ensembles import bench, cost, findings, recipe
from experiments.ensembles import sine as sine_task
from experiments.ensembles.methods import choose, methods
from experiments.harness import Part, Row, Run, Study, without_curves

DIFFERENCES = (
    "the networks see a part of Dirty-MNIST, and for fewer epochs; its ambiguous digits are made "
    "here by the published recipe",
    "eMNIST is not at hand: grey images of CIFAR-10 take its place; strengths are chosen by the "
    "AUROC of held-out digits against other images of it",
    "the repulsive digits of 'RLLE, ambiguous' are ones that nothing is trained on; the thesis "
    "repels on Dirty-MNIST itself",
    "patches of 8 and 16 pixels don't divide 28: images are continued by their border",
    "deep ensembles are drawn from one pool of networks: those of 'DE, few' share none, those of "
    "'DE, many' overlap, so that their standard errors are too small",
    "the repulsion acts on the heads' own parameters, by the distance |.|_p with p = 2, which the "
    "thesis leaves open; in 'heads, other, all layers' the layers that heads share are moved as "
    "well, by its square, with a strength of its own",
    "the thesis evaluates the sine in the middle of regimes and gaps, of which ours has four and "
    "one: a table has the doubt there, AUROCs are those of a grid to 3 beyond the data, as in "
    "`activations`",
    "on the sine, means alone repel each other; lambda_var weighs what log-variances have above "
    "zero at the repulsive inputs, squared, which is our reading",
    "the ResNet-18 of --full has no batch norm, so that it is a function of its parameters",
)


@functools.cache
def _bench(run: Run[recipe.Settings]) -> bench.Bench:
    return bench.build(run, bench.load(run.settings, run.say))


def _cost(name: str, make: Any) -> Part[Any, Any]:
    return Part.of(name, lambda run: ("",), lambda run, _: make(_bench(run)), "cost")


def _table(run: Run[recipe.Settings], name: str) -> list[Row]:
    made = _bench(run)
    method = next(method for method in methods(made) if method.name == name)
    seeds = made.settings.seeds if method.main else min(made.settings.some, made.settings.seeds)
    return [
        {
            "method": method.name, "source": method.source, "seed": seed,
            **bench.judged(said, made),
        }
        for seed, said in enumerate(method.say(made, seeds))
    ]  # fmt: skip


def _place(row: Row) -> str:
    return "/".join(str(row[k]) for k in ("part", "method", "activation") if k in row)


PARTS: tuple[Part[recipe.Settings, Any], ...] = (
    Part[recipe.Settings, tuple[str, str, str]](
        lambda run: [
            ("sine", method, activation)
            for method in sine_task.methods(run.settings.sine)
            for activation in run.settings.sine.activations
        ],
        lambda run, task: sine_task.rows(run.settings.sine, run.key, *task[1:]),
        lambda settings: settings.runs("sine"),
        {"part": "sine"},
    ),
    Part.of("table", lambda run: [method.name for method in methods(_bench(run))], _table),
    _cost("prediction", cost.predictions),
    _cost("training", cost.trainings),
    Part[recipe.Settings, str](
        lambda run: [f"strengths, {form}" for form in recipe.FORMS],
        lambda run, task: choose(_bench(run), task.removeprefix("strengths, ")),
        lambda settings: settings.runs("table"), {"part": "strengths"},
    ),
)  # fmt: skip

STUDY = Study(
    "ensembles", __doc__, recipe.SIZES, PARTS, findings.CLAIMS, findings.PLOTS, findings.TABLES,
    DIFFERENCES, derive=lambda run, found: without_curves(found, _place),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
