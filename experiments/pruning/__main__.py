"""Channels removed by every score, single weights beside them, and what either saves.

    python -m experiments.pruning

1. scores: accuracy at equal multiply-accumulates before and after training on, with channels that
   compete over all layers;
2. sparsity: single weights removed, trained on as long, and the bytes that they take then;
3. small: the small network trained on against the same trained from new weights, as long and as
   long as the whole network was (Liu et al., arXiv 1810.05270);
4. time: plans of random shapes on the clock, in XLA and TVM, beside their multiply-accumulates.

Finished trainings are kept: a run that was killed goes on.
Source: Klein's thesis, section 3.3, and section 3.6: multiply-accumulates are a poor proxy of time.
"""

from dataclasses import dataclass

from experiments import classifiers
from experiments.harness import Kept, Row, Run, Study
from experiments.pruning import findings, recipe, sparse, structured, times

DIFFERENCES = (
    "the thesis surveys methods and gives no numbers for them; networks, data and trainings are "
    "those of `config`",
    "trainings are short: papers train on for tens of epochs",
    "channels are a multiple of `round_to`; the last layer keeps its results, and those at both "
    "ends keep their single weights",
)


@dataclass(frozen=True)
class Task(classifiers.Task):
    """What is kept once it is done."""

    # what is left of the multiply-accumulates, or the share of weights that goes
    amount: float = 1.0

    def __str__(self) -> str:
        return f"{super().__str__()} {self.amount:g}"


def _tasks(settings: recipe.Settings, subject: recipe.Subject, seed: int) -> list[Task]:
    trained = subject.name, seed
    tasks = [Task(*trained, "whole")]
    if settings.runs("scores"):
        tasks += [
            Task(*trained, "scores", name, macs)
            for macs in subject.macs
            for name in structured.SCORES
        ]
    if settings.runs("sparsity"):
        tasks += [
            Task(*trained, "sparsity", method, share)
            for share in subject.sparsities
            for method in sparse.METHODS
        ]
        if subject.network != "lenet5":  # whose 25 and 150 inputs are no blocks of four
            tasks += [Task(*trained, "sparsity", sparse.BLOCKS, 0.5)]
    if settings.runs("small"):
        tasks += [Task(*trained, "small", "", macs) for macs in subject.macs]
    if settings.runs("time") and seed == 0:
        tasks += [Task(*trained, "time")]
    return tasks


def _measure(
    run: Run[recipe.Settings], task: Task, subject: recipe.Subject, model: classifiers.Trained
) -> list[Row]:
    if task.part == "whole":
        return [classifiers.describe(model)]
    if task.part == "scores":
        return [structured.by_score(run, subject, model, task.what, task.amount)]
    if task.part == "sparsity":
        return [sparse.sparse(run, subject, model, task.what, task.amount)]
    if task.part == "small":
        return structured.against_scratch(run, subject, model, task.amount)
    return times.timed(run, model)


STUDY = Study(
    "pruning", __doc__, recipe.SIZES,
    (Kept[recipe.Settings](lambda run: classifiers.each(run, _tasks, _measure)),),
    findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
