"""Accuracy, calibration, uncertainty and detection beside torch-uncertainty (PyTorch).

    pip install torch torch-uncertainty lightning
    python -m experiments.ensembles.peers

The same logits go through both libraries; the largest difference of each metric is reported.
Without the package the study says so and has no rows but one.
"""

import importlib.util
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import harness as h
from experiments.harness import Count, Least, Row, Run
from jaxeff import uncertainty as ours

LIMIT = 1e-5


@dataclass(frozen=True)
class Settings:
    """What is compared."""

    members: Annotated[int, Least(2)] = 10  # members of an ensemble
    images: Annotated[int, Least(10)] = 2000  # predictions
    classes: Annotated[int, Least(2)] = 10  # classes
    trials: Count = 10  # ensembles; the largest difference counts


def run(run: Run[Settings]) -> list[Row]:
    """Every metric on every ensemble."""
    missing = [p for p in ("torch", "torch_uncertainty") if importlib.util.find_spec(p) is None]
    if missing:
        run.say(f"not installed, so left out: {', '.join(missing)}")
        return [{"metric": "none", "message": "not installed"}]
    return run.each([*range(run.settings.trials)], lambda trial: compared(run.settings, trial))


def compared(settings: Settings, trial: int) -> list[Row]:
    """A row per metric for logits of one draw."""
    keys = jax.random.split(jax.random.key(trial), 4)
    shape = (settings.members, settings.images, settings.classes)
    shared = 2 * jax.random.normal(keys[0], shape[1:])
    logits = shared[None] + jax.random.normal(keys[1], shape)
    labels = jax.random.categorical(keys[2], shared)
    outside = jax.random.normal(keys[3], shape)
    mine = _ours(logits, labels, outside)
    return [
        {"metric": name, "trial": trial, "ours": float(mine[name]), "theirs": value}
        for name, value in _theirs(*map(np.asarray, (logits, labels, outside))).items()
    ]


def _ours(logits: Any, labels: Any, outside: Any) -> dict[str, Any]:
    inside, out = ours.decompose_logits(logits), ours.decompose_logits(outside)
    log_probs = ours.predictive_log_probs(logits)
    probs = jnp.exp(log_probs)
    scores = inside.epistemic, out.epistemic
    return {
        "accuracy": ours.accuracy(probs, labels),
        "NLL": ours.nll_from_log(log_probs, labels),
        "Brier": ours.brier(probs, labels),
        "ECE": ours.ece(probs, labels),
        "entropy": inside.total.mean(),
        "mutual information": inside.epistemic.mean(),
        "AUROC": ours.auroc(*scores),
        "AUPR": ours.aupr(*scores),
        "FPR95": ours.fpr95(*scores),
    }


def _theirs(logits: np.ndarray, labels: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    import torch
    from torch_uncertainty import metrics
    from torchmetrics.classification import BinaryAUROC, BinaryAveragePrecision, MulticlassAccuracy

    targets = torch.tensor(labels).long()
    # [examples, members, classes], as its metrics of ensembles take it
    inside, out = (torch.tensor(v).softmax(-1).transpose(0, 1) for v in (logits, outside))
    probs, classes = inside.mean(1), inside.shape[-1]

    def of(metric: Any, *args: Any) -> float:
        metric.update(*args)
        return float(metric.compute())

    def each(values: Any) -> Any:
        information = metrics.MutualInformation(reduction="none")
        information.update(values)
        return information.compute()

    scores = torch.cat([each(inside), each(out)])
    domain = torch.cat([torch.zeros(len(inside)), torch.ones(len(out))]).long()
    return {
        "accuracy": of(MulticlassAccuracy(classes, average="micro"), probs, targets),
        "NLL": of(metrics.CategoricalNLL(), probs, targets),
        "Brier": of(metrics.BrierScore(num_classes=classes), probs, targets),
        "ECE": of(
            metrics.CalibrationError(task="multiclass", num_classes=classes, num_bins=15),
            probs, targets,
        ),
        "entropy": of(metrics.Entropy(), probs),
        "mutual information": of(metrics.MutualInformation(), inside),
        "AUROC": of(BinaryAUROC(), scores, domain),
        "AUPR": of(BinaryAveragePrecision(), scores, domain),
        "FPR95": of(metrics.FPR95(pos_label=1), scores, domain),
    }  # fmt: skip


def gaps(report: h.Report) -> list[Row]:
    """Selects the values of both, with their difference."""
    rows = [row for row in report.rows if "ours" in row]
    return [{**row, "difference": abs(row["ours"] - row["theirs"])} for row in rows]


largest = h.highest(gaps, "difference", "metric")
STUDY = h.Study(
    "ensembles.peers", __doc__,
    {
        "fast": Settings(trials=2, images=500),
        "default": Settings(),
        "full": Settings(trials=100),
    },
    (run,),
    (h.Claim("{metric}: largest difference", "difference", h.at_most(LIMIT), LIMIT, largest),),
    (
        h.Plot(
            "peers",
            h.Dots(
                "metric", "shown",
                lambda report: [
                    {**row, "shown": max(row["difference"], 1e-9)} for row in largest(report)
                ],
                guides=(LIMIT,), axes={"xscale": "log", "xlabel": "largest difference"},
            ),
            size=(6, 3),
        ),
    ),
    (h.Listing("largest differences", ("metric", "ours", "theirs", "difference"), largest),),
    differences=("both see the same logits; probabilities are each library's own",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
