"""What Bayesian inference costs: FLOPs, latency, memory and intensity, as networks and data grow.

    python -m experiments.scaling

NUTS (50 samples after 100 of warm-up) and mean-field SVI (150 epochs) of a multilayer perceptron on
the noisy sine, over depth 1 to 5, width 25 to 200 and the size of the data set, by NumPyro,
BlackJAX, TensorFlow Probability and Pyro (where installed: `pip install "jaxeff[benchmark]"`) and
by jaxeff itself; and a roofline whose ceilings are measured here.

Rows are kept as they come: a run that was killed goes on where it stopped. Source: Klein's
thesis, section 7.5.3.
"""

import time

from experiments import engines
from experiments.harness import Found, Refused, Row, Run, Study
from experiments.scaling import findings, workers
from experiments.scaling.engines import ENGINES
from experiments.scaling.plan import SIZES, Plan, Task
from experiments.scaling.problem import analytic_macs

CEILING_ROUNDS = 10


def run(run: Run[Plan]) -> Found:
    """Measures what inference costs."""
    engines.say_missing(run, ENGINES)
    workers.preload()
    deadline = time.monotonic() + 60 * run.settings.minutes

    def measure(task: Task) -> list[Row]:
        rows = workers.measure(task.contestants, task.configuration, task.settings)
        return [finished(row, task) for row in rows]

    rows = run.each(run.settings.tasks(), measure, lambda: time.monotonic() >= deadline)
    if not rows:
        raise Refused("nothing was measured yet: allow more --minutes")
    (ceilings,) = run.keep("ceilings", lambda: [workers.measure_machine(CEILING_ROUNDS)])
    return Found(rows, {"ceilings": ceilings})


def finished(row: Row, task: Task) -> Row:
    """A row with what its task says about it."""
    point, settings = task.configuration, task.settings
    examples = point.examples if row["method"] == "mcmc" else settings.batch
    macs = analytic_macs(point.widths, examples)
    return {**row, "doublings": settings.doublings, "analytic_macs": macs}


STUDY = Study(
    "scaling", __doc__, SIZES, (run,), (findings.judge,), findings.PLOTS, findings.TABLES,
    findings.DIFFERENCES, Plan.settled,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
