"""Walking noise: accuracy under noise, layer by layer, of networks trained with it.

    python -m experiments.walking_noise

1. trains networks with additive and multiplicative noise in every slot at once, over its level, and
   fits the midpoint noise level, with and without batch norm;
2. walks the noise through the slots, one at a time: midpoints slot by slot;
3. looks for self-binarization in the slot that survives huge multiplicative noise;
4. mixes both kinds of noise in one slot, in either order;
5. repeats sensitive layers: executions guided by midpoints against uniform ones.

A sweep is one compiled program over all of its levels. Everything can be killed and started again.
``--fast`` runs on the embedded digits, the default on two processor cores in well under an hour,
``--full`` is the thesis' configuration, for an accelerator. Source: Klein's thesis, section 6.2;
arXiv 2212.10430.
"""

import functools
from collections.abc import Iterator

import numpy as np

from experiments.harness import Found, Kept, Row, Run, Study, apart, without_curves
from experiments.walking_noise import (
    findings,
    mechanisms,
    recipe,
    training,
)

DRAWN = 5000
"""Values of a slot in the histograms, spread evenly over those of all images."""
DIFFERENCES = (
    "executions are guided by midpoints of networks that are trained with noise in a slot, which "
    "the size walks it through: MLPs by default, all in full; and by those of noise at evaluation, "
    "of networks trained without, on training images. The thesis has both kinds of networks, and "
    "doesn't say which of them guide its table",
    "midpoints of walking noise are those of accuracies on the test images, which score the table",
    "the thesis says neither how images are scaled nor how weights start",
)


def run(run: Run[recipe.Settings]) -> Found:
    """Measures what noise networks tolerate, where, and how they learn to."""
    sweeps, tables = run.settings.chosen()
    rows: list[Row] = []
    repeated: list[Row] = []
    for case in dict.fromkeys([s.case for s in sweeps] + [r.case for r in tables]):
        for plan in (s for s in sweeps if s.case == case):
            rows += run.keep(plan.name, lambda plan=plan: _swept(run, plan))  # type: ignore[misc]
        for table in (r for r in tables if r.case == case):
            walked = findings.walked_midpoints(apart(rows)["training"], str(case))
            of = table, walked
            again = lambda of=of: [mechanisms.repetition(_bench(run, of[0].case), *of)]  # noqa: E731
            repeated += run.keep(table, again)
            run.say(f"{case}: guided repetition")
    by = apart({**row, "size": run.size} for row in rows)
    fits = findings.midpoints(by["training"])
    looks = without_curves(Found(by["binarization"]), lambda row: row["case"])
    extra = {
        "midpoints": [{**curve._asdict(), **fit.record()} for curve, fit in fits.items()],
        "binarization": looks.rows,
        "repetition": [row | {"size": run.size} for row in repeated],
    }
    return Found(by["training"], extra, looks.arrays)


@functools.cache
def _bench(run: Run[recipe.Settings], case: recipe.Case) -> training.Bench:
    return training.bench(run.fast_key, case, run.settings, run.work)


def _swept(run: Run[recipe.Settings], plan: recipe.Sweep) -> Iterator[Row]:
    """Trains a sweep; of multiplicative noise slot by slot, looks for slots that binarize."""
    bench = _bench(run, plan.case)
    trainings, result = training.run(bench, plan)
    diverged = sum(row["diverged"] for row in trainings)
    run.say(f"{plan.name}: {len(trainings)} trainings, {diverged} diverged")
    yield from ({"of": "training", **row} for row in trainings)
    if (plan.kind, plan.where, plan.case.batch_norm) == ("mul", "layers", True):
        slots, look = mechanisms.binarization(bench, plan, trainings, result)
        curves = {name: _thinned(values) for name, values in look.items()}
        for row in slots:
            shown = {"curves": curves} if row["accuracy"] is not None else {}
            yield {"of": "binarization", **row, **shown}


def _thinned(values: np.ndarray) -> list[float]:
    """As many values as a histogram needs."""
    flat = values.ravel()
    return [float(f"{value:.5g}") for value in flat[:: -(-len(flat) // DRAWN)]]


STUDY = Study(
    "walking_noise", __doc__, recipe.SIZES,
    (Kept(run),), findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
