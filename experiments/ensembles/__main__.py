"""Ensembles beside their rivals: a noisy sine, Dirty-MNIST, and what uncertainty costs.

    python -m experiments.ensembles

1. sine: MC dropout, deep ensembles and repulsive last layers (RLLE) with every activation function
   of the source, on a regression whose noise is known and whose gaps are seen;
2. table: LeNet-5 on Dirty-MNIST by every method of the source's table, and by rivals of RLLE that
   need no images from elsewhere; the strength of the repulsion is chosen on held-out images;
3. combined: moment passes of ensembles, beside both of their parents;
4. partial: which layers should be random, by variational inference, Laplace and members at equal
   cost;
5. cost: multiplications, time of a prediction and of a training.

Finished trainings are kept: a run that was killed goes on. `--full` trains a ResNet-18. Source:
Klein's thesis, chapter 9 (arXiv 2412.15758); the numbers of its table 9.1 are not public.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.ensembles import bench, combined, cost, findings, images, partial, recipe
from experiments.ensembles import sine as sine_task
from experiments.ensembles.methods import choose, methods
from experiments.harness import Found, Part, Row, Run, Study

DIFFERENCES = (
    "the networks see a part of Dirty-MNIST, and for fewer epochs; its ambiguous digits are made "
    "here by the published recipe",
    "eMNIST is not at hand: grey images of CIFAR-10 take its place; strengths are chosen by the "
    "AUROC of held-out digits against other images of it",
    "the repulsive digits of 'RLLE, ambiguous' are ones that nothing is trained on; the source "
    "repels on Dirty-MNIST itself",
    "patches of 8 and 16 pixels don't divide 28: images are continued by their border",
    "deep ensembles are drawn from one pool of networks: those of 'DE, few' share none, those of "
    "'DE, many' overlap, so that their standard errors are too small",
    "the repulsion acts on the heads' own parameters, by the distance |.|_p with p = 2, which the "
    "source leaves open; in 'heads, other, all layers' the layers that heads share are moved as "
    "well, by its square, with a strength of its own",
    "the source evaluates the sine in the middle of regimes and gaps, of which ours has four and "
    "one: a table has the doubt there, AUROCs are those of a grid to 3 beyond the data, as in "
    "`activations`",
    "on the sine, means alone repel each other; lambda_var weighs what log-variances have above "
    "zero at the repulsive inputs, squared, which is our reading",
    "the ResNet-18 of --full has no batch norm, so that it is a function of its parameters",
)


@functools.cache
def _bench(run: Run[recipe.Settings]) -> bench.Bench:
    return bench.build(run, images.load(run.settings, run.say))


def _part(
    name: str,
    whats: Callable[[bench.Bench], Iterable[str]],
    make: Callable[[bench.Bench, str], Iterable[Row]],
    option: recipe.Part | None = None,
) -> Part[recipe.Settings, tuple[str, str]]:
    """Declares a part of the digits, which `option` asks for."""
    return Part(
        lambda run: [(name, what) for what in whats(_bench(run))],
        lambda run, task: make(_bench(run), task[1]),
        lambda settings: settings.runs(option or name),  # type: ignore[arg-type]
        {"part": name},
    )


def _cost(name: str, make: Callable[[bench.Bench], Iterable[Row]]) -> Part[Any, Any]:
    return _part(name, lambda made: ("",), lambda made, _: make(made), "cost")


def _table(made: bench.Bench, name: str) -> list[Row]:
    method = next(method for method in methods(made) if method.name == name)
    seeds = made.settings.seeds if method.main else min(made.settings.some, made.settings.seeds)
    return [
        {
            "method": method.name, "source": method.source, "seed": seed,
            **bench.judged(found, made),
            "curves": bench.histograms(found) if seed == 0 else None,
        }
        for seed, found in enumerate(method.say(made, seeds))
    ]  # fmt: skip


def _with_curves(run: Run[recipe.Settings], found: Found) -> Found:
    """Moves what figures show of single rows to the arrays, by part and method."""
    rows, arrays = [], {}
    for row in found.rows:
        curves = row.get("curves")
        rows.append({key: value for key, value in row.items() if key != "curves"})
        place = "/".join(str(row[k]) for k in ("part", "method", "activation") if k in row)
        for name, values in (curves or {}).items():
            arrays[f"{place}/{name}"] = np.asarray(values, np.float32)
    return Found(rows, {}, arrays)


PARTS = (
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
    _part("table", lambda made: (method.name for method in methods(made)), _table),
    _part("combined", lambda made: combined.KINDS, lambda made, kind: combined.KINDS[kind](made)),
    _part(
        "partial", lambda made: made.settings.sites or (*made.hidden, made.last, "*"), partial.rows
    ),
    _cost("prediction", cost.predictions),
    _cost("training", cost.trainings),
    _cost("members", cost.members),
    Part[recipe.Settings, str](
        lambda run: [f"strengths, {form}" for form in recipe.FORMS],
        lambda run, task: choose(_bench(run), task.removeprefix("strengths, ")),
        lambda settings: settings.runs("table"), {"part": "strengths"},
    ),
)  # fmt: skip

STUDY = Study(
    "ensembles", __doc__, recipe.SIZES, PARTS, findings.CLAIMS, findings.PLOTS, findings.TABLES,
    DIFFERENCES, derive=_with_curves,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
