"""Networks in 8 to 1 bits: accuracy over bits, methods side by side, with and without training.

    python -m experiments.compression

1. bits: accuracy over the bits of weights, of activations and of both, without training (every
   policy in one program) and with learned steps;
2. methods: quantization-aware training by each under one recipe, from the same float network;
   layers at the ends have 8 bits;
3. without training: ranges, equalization, bias correction and learned rounding;
4. allocation: bits per layer, at the bit operations of a uniform policy.

Finished trainings are kept: a run that was killed goes on. Source: Klein's thesis, chapter 3; its
comparison (figure 3.3, after Roth et al., arXiv 2001.03048) is DenseNet-BC-100 on CIFAR-100.
"""

from experiments import classifiers
from experiments.classifiers import Task, Trained
from experiments.compression import allocation, findings, recipe, training, without_training
from experiments.compression.methods import FLOAT, METHODS, at_bits
from experiments.harness import Kept, Row, Run, Study

DIFFERENCES = (
    "the thesis shows DenseNet-BC-100 on CIFAR-100, as a figure without numbers; here it is the "
    "networks and data of `config`, with `--densenet` a DenseNet-BC of 22 layers",
    "trainings are short and start at a trained float network; many papers train from scratch, all "
    "of them for longer",
    "all methods share one recipe (Adam, cosine); none has that of its paper, and none is tuned",
    "trained networks keep 8 bits in the first and last layer; policies without training do not",
)


def _tasks(settings: recipe.Settings, subject: recipe.Subject, seed: int) -> list[Task]:
    tasks: list[tuple[str, ...]] = [("float",)]
    if settings.runs(subject, "bits"):
        tasks += [("bits", "policies")]
        for b in subject.widths:
            tasks += [("bits", f"{w} {a}") for w, a in ((b, FLOAT), (FLOAT, b), (b, b))]
    if settings.runs(subject, "methods"):
        tasks += [("methods", name) for name in subject.methods]
    if settings.runs(subject, "without training"):
        tasks += [("without training",)]
    if settings.runs(subject, "allocation"):
        tasks += [("allocation",)]
    return [Task(subject.name, seed, *rest) for rest in tasks]


def _measure(
    run: Run[recipe.Settings], task: Task, subject: recipe.Subject, model: Trained
) -> list[Row]:
    if task.part == "float":
        return [classifiers.describe(model)]
    if task.part == "without training":
        return without_training.side_by_side(run, model)
    if task.part == "allocation":
        return allocation.allocate(run, model)
    if task.what == "policies":
        return without_training.over_bits(run, model)
    if task.part == "bits":
        weights, activations = map(int, task.what.split())
        return [training.train(run, subject, model, at_bits(weights, activations))]
    return [{"method": task.what, **training.train(run, subject, model, METHODS[task.what])}]


STUDY = Study(
    "compression", __doc__, recipe.SIZES,
    (Kept[recipe.Settings](lambda run: classifiers.each(run, _tasks, _measure)),),
    findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES, recipe.settle,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
