"""What a prediction costs: deterministic, sampled, by moments, by ensembles; on every engine here.

    python -m experiments.latency

1. the main table: MLP 784-100-100-10 and LeNet-5 at batch 1, 10 and 100, with one thread and two;
2. latency per image and speed-up over sampling, at batch 1 to 256;
3. ten-head networks, deep ensembles, and ten heads beside the moment pass;
4. where the time of the moment pass goes, operator by operator;
5. the optimizations of the dense operator, switched on and off;
6. the same networks on the thesis' ARM processors, by a static model of their cycles.

XLA, TVM (`jaxeff_export.deploy`) and NumPyro's `Predictive`; Pyro's, the thesis', and ONNX Runtime
where they can be imported (`pip install "jaxeff[benchmark]"`). Everything of one network, batch and
number of threads is timed in the same rounds, so ratios hold on a busy machine; times don't.

Rows are kept as they come: a run that was killed goes on where it stopped. Tuning records outlive
`--fresh`. Source: arXiv 2511.23440 and 2412.15758.
"""

from experiments import engines
from experiments.harness import Found, Kept, Run, Study
from experiments.latency import arm, findings, networks, source, tasks
from experiments.latency.engines import ENGINES


def run(run: Run[tasks.Settings]) -> Found:
    """Measures latency, side by side."""
    engines.say_missing(run, ENGINES)
    if without := arm.missing():
        run.say(f"without processors that are modelled: {without}")
    database = run.folder / "tuning"
    rows = run.stream(tasks.plan(run.settings), lambda todo: tasks.run_all(todo, database))
    return Found(rows, {"samples": networks.SAMPLES})


STUDY = Study(
    "latency", __doc__, tasks.SIZES, (Kept(run),), findings.CLAIMS, findings.PLOTS, findings.TABLES,
    source.DIFFERENCES, tasks.settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
