"""Cheap sensitivity measures against walking noise: do they rank a network's layers alike?

    python -m experiments.walking_noise.sensitivity

Walking noise trains a network per slot, level and seed. Klein's thesis, section 11.3, calls for
something cheaper and proposes two, which it doesn't try. Measured here, for networks trained
without noise:

1. divergence: the noise level at which a slot alone moves the predictions by one bit;
2. a budget of noise spread over the slots by gradient, of the trained network;
3. the same along with the weights, in one training from scratch;
4. for comparison, noise that walks at evaluation only;

and Spearman's correlation of each with the midpoints of walking noise, and with (4), which sees the
same trained network: the difference is what networks learn from noise. Walking noise is read from
the JSON of `experiments.walking_noise`, or trained here: the same sweeps, which that study finds
finished in the same results folder, and the other way round. Killed, a run goes on where it was.
"""

import jax

from experiments.harness import Found, Listing, Refused, Row, Run, Study
from experiments.walking_noise import measures, network, ranking, recipe, reference
from experiments.walking_noise.measures import Effort
from experiments.walking_noise.recipe import Sweep

COLUMNS = (
    "case", "measure", "spearman", "spearman_evaluation", "between_seeds", "most_sensitive",
    "updates", "seconds",
)  # fmt: skip
DIFFERENCES = (
    "The source proposes the measures without trying them: there is no number to compare with.",
    "Except at full size, networks are trained for fewer epochs, levels and seeds than the "
    "source's walking noise; every row names its size.",
    "Additive noise only: under multiplicative noise layers learn to binarize, which no measure of "
    "a network trained without noise can foresee.",
)
SIZES = {
    "fast": Effort(**vars(recipe.SIZES["fast"]), networks=2, inputs=256, draws=4, budget_epochs=20),
    "default": Effort(
        **vars(recipe.SIZES["default"]), networks=3, inputs=512, draws=4, budget_epochs=2
    ),
    "full": Effort(
        **vars(recipe.SIZES["full"]), networks=5, inputs=1024, draws=16, budget_epochs=10
    ),
}


def run(run: Run[Effort]) -> Found:
    """Compares cheap sensitivity measures with walking noise."""
    problems = [s for s in run.settings.chosen()[0] if (s.kind, s.where) == ("add", "layers")]
    if not problems:
        raise Refused(f"noise walks in no network with {' or '.join(run.settings.only)}")
    rows = [
        {"case": str(problem.case), **row, "size": run.size}
        for problem in problems
        for row in measure(run, problem)
    ]
    slots = [ranking.plain(row) for row in rows]
    return Found(ranking.compare(rows, run.size), {"slots": slots})


def measure(run: Run[Effort], problem: Sweep) -> list[Row]:
    """All measures of a network, slot by slot."""
    case, settings, key = problem.case, run.settings, run.fast_key
    bench = network.bench(key, case, settings, run.work)
    subject, net = measures.Subject(problem, bench, settings), bench.network
    rows = reference.read(settings.walking, problem, net) if settings.walking else []
    if not rows:
        # Found finished by the study of walking noise in the same results, and the other way round.
        shared = run.shared(run.name.replace("sensitivity", "walking_noise")) / "work"
        rows = run.keep(["walking", str(case)], lambda: reference.walk(key, subject, shared))
    run.say(f"{case}: walking noise in {len(net.slots)} slots")
    clean = reference.train_clean(key, subject)
    for i in range(settings.networks):
        model = measures.take((clean.params, clean.state or {}), i)
        own = jax.random.fold_in(key, i)
        cheap = lambda i=i: measures.measure_all(own, subject, model, i)  # noqa: B023, E731
        rows = rows + run.keep(["measures", str(case), i], cheap)
        run.say(f"{case}: cheap measures of network {i + 1} of {settings.networks}")
    return rows


STUDY = Study(
    "sensitivity", __doc__, SIZES,
    (run,), ranking.CLAIMS, ranking.PLOTS,
    (Listing("ranking of slots against walking noise", COLUMNS),), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
