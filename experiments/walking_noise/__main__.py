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
``--full`` is the source's configuration, for an accelerator. Source: Klein's thesis, section 6.2;
arXiv 2212.10430.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness import Found, Row, Run, Study
from experiments.walking_noise import (
    findings,
    mechanisms,
    recipe,
    training,
)

DIFFERENCES = (
    "executions are guided by midpoints of walking noise, as in the source, for networks that the "
    "size walks noise through: MLPs by default, all in full. 'guided by evaluation' is ours: "
    "midpoints of noise at evaluation only, of networks trained without, on training images",
    "midpoints of walking noise are those of accuracies on the test images, which score the table",
    "the source says neither how images are scaled nor how weights start",
)


def run(run: Run[recipe.Settings]) -> Found:
    """Measures what noise networks tolerate, where, and how they learn to."""
    sweeps, tables = run.settings.chosen()
    rows: list[Row] = []
    binarized: list[Row] = []
    repeated: list[Row] = []
    looks: dict[str, np.ndarray] = {}
    for case in dict.fromkeys([s.case for s in sweeps] + [r.case for r in tables]):
        bench = training.bench(run.fast_key, case, run.settings, run.work)
        for plan in (s for s in sweeps if s.case == case):
            found, result = training.run(bench, plan)
            diverged = sum(row["diverged"] for row in found)
            run.say(f"{plan.name}: {len(found)} trainings, {diverged} diverged")
            rows += found
            if (plan.kind, plan.where, case.batch_norm) == ("mul", "layers", True):
                slots, look = mechanisms.binarization(bench, plan, found, result)
                binarized += slots
                looks |= {f"{case}/{name}": array for name, array in look.items()}
        for table in (r for r in tables if r.case == case):
            walked = findings.walked_midpoints(rows, str(case))
            again = lambda of=(bench, table, walked): [mechanisms.repetition(*of)]  # noqa: E731
            repeated += run.keep(table, again)
            run.say(f"{case}: guided repetition")
    fits = findings.midpoints(rows)
    described = [{**curve._asdict(), **fit.record()} for curve, fit in fits.items()]

    def sized(found: Sequence[Row]) -> list[dict[str, Any]]:
        return [row | {"size": run.size} for row in found]

    return Found(
        sized(rows),
        {
            "midpoints": described,
            "binarization": sized(binarized),
            "repetition": sized(repeated),
        },
        looks,
    )


STUDY = Study(
    "walking_noise", __doc__, recipe.SIZES,
    (run,), findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
