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

from collections.abc import Callable, Iterable

import numpy as np

from experiments.ensembles import bench, combined, cost, figure, images, judging, partial, recipe
from experiments.ensembles import sine as sine_task
from experiments.ensembles.methods import Method, choose, methods
from experiments.harness import Found, Row, Run, Study

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
    "on the sine, means alone repel each other; lambda_var weighs what log-variances have above "
    "zero at the repulsive inputs, squared, which is our reading",
    "the ResNet-18 of --full has no batch norm, so that it is a function of its parameters",
)


def run(run: Run[recipe.Settings]) -> Found:
    """Every part that is asked for."""
    settings = run.settings
    rows = _sine(run) if settings.runs("sine") else []
    if any(settings.runs(part) for part in recipe.PARTS[1:]):
        rows += _digits(run)
    return Found(
        [{k: v for k, v in row.items() if k != "curves"} for row in rows], {}, _curves(rows)
    )


def _curves(rows: list[Row]) -> dict[str, np.ndarray]:
    """What figures show of single rows, by part and method."""
    arrays = {}
    for row in rows:
        place = "/".join(str(row[k]) for k in ("part", "method", "activation") if k in row)
        for name, values in (row.get("curves") or {}).items():
            arrays[f"{place}/{name}"] = np.asarray(values, np.float32)
    return arrays


def _sine(run: Run[recipe.Settings]) -> list[Row]:
    own = run.settings.sine
    tasks = [("sine", m, a) for m in sine_task.methods(own) for a in own.activations]

    def make(task: tuple[str, str, str]) -> list[Row]:
        return [{"part": "sine", **row} for row in sine_task.rows(own, run.key, *task[1:])]

    return run.each(tasks, make)


def _digits(run: Run[recipe.Settings]) -> list[Row]:
    settings = run.settings
    made = bench.build(run, images.load(settings, run.say))
    by_name = {method.name: method for method in methods(made)}
    tasks: list[tuple[str, str]] = []
    if settings.runs("table"):
        tasks += [("table", name) for name in by_name]
    if settings.runs("combined"):
        tasks += [("combined", kind) for kind in combined.KINDS]
    if settings.runs("partial"):
        tasks += [("partial", s) for s in settings.sites or (*made.hidden, made.last, "*")]
    if settings.runs("cost"):
        tasks += [(what, "") for what in ("prediction", "training", "members")]

    def make(task: tuple[str, str]) -> list[Row]:
        part, what = task
        makers: dict[str, Callable[[], Iterable[Row]]] = {
            "table": lambda: _table(made, by_name[what]),
            "combined": lambda: combined.KINDS[what](made),
            "partial": lambda: partial.rows(made, what),
            "prediction": lambda: cost.predictions(made),
            "training": lambda: cost.trainings(made),
            "members": lambda: cost.members(made),
        }
        return [{"part": part, **row} for row in makers[part]()]

    rows = run.each(tasks, make)
    if settings.runs("table"):
        tried = run.keep("strengths", lambda: choose(made))
        rows += [{"part": "strengths", **row} for row in tried]
    return rows


def _table(made: bench.Bench, method: Method) -> list[Row]:
    seeds = made.settings.seeds if method.main else min(made.settings.some, made.settings.seeds)
    return [
        {
            "method": method.name, "source": method.source, "seed": seed,
            **bench.judged(found, made),
            "curves": bench.histograms(found) if seed == 0 else None,
        }
        for seed, found in enumerate(method.say(made, seeds))
    ]  # fmt: skip


STUDY = Study(
    "ensembles", __doc__, recipe.SIZES,
    (run,), (judging.judge,), (figure.draw,), (judging.tables,), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
