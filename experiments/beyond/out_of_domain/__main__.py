"""Which score finds images out of domain, by posterior, and what corruptions do.

    python -m experiments.beyond.out_of_domain

LeNet-5 learns eight of ten digits. Scores of logits, features, inputs and moments tell the test
images from the classes that were left out (near), and from other images and noise (far), for one
network, the moment pass of SVI and a deep ensemble: AUROC, AUPR and FPR95. Then the test images are
corrupted at rising severity: what becomes of the accuracy, and which score notices.

OpenOOD (Zhang et al., arXiv 2306.09301) has the scores and the split into near and far; its data
sets and networks are larger.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from experiments import harness as h
from experiments.beyond.out_of_domain import recipe
from experiments.beyond.out_of_domain.scoring import Scores, scorer, train
from experiments.harness import Found, Report, Row, Run, Study
from jaxeff import data
from jaxeff import uncertainty as u

METRICS = ("auroc", "aupr", "fpr95")
detected, shifted = h.where(part="detection"), h.where(part="shift")


by_score = h.pivot(detected, ("posterior", "score"), "outside", "auroc")


accuracies = h.means(shifted, ("posterior", "severity"), ("accuracy",))


def severest(report: Report) -> Iterator[Row]:
    """Selects a row for each posterior: accuracy at the least and the largest severity."""
    for (posterior,), rows in h.grouped(accuracies(report), "posterior").items():
        found = {row["severity"]: row["accuracy"] for row in rows}
        yield {"posterior": posterior, "clean": found[0], "worst": found[max(found)]}


curves = h.means(shifted, ("posterior", "severity", "score"), ("accuracy", "auroc"))

CLAIMS = (
    h.Claim(
        "{posterior}, {score}, {outside}: as scikit-learn", "scikit_error", h.at_most(1e-4),
        of=detected, when=lambda row: row["score"] in ("MSP", "ViM"),
    ),
    h.Claim("{posterior}: accuracy", "clean", h.at_least(0.9), of=severest),
    h.Claim("{posterior}: accuracy falls with severity", "worst", h.below("clean"), of=severest),
    h.Claim(
        "{posterior}: AUROC of ViM on {outside}", "auroc", h.at_least(0.9), of=detected,
        needs="default", when=lambda row: row["score"] == "ViM" and row["kind"] == "far",
        regardless=("corruptions", "severities"),
    ),
)  # fmt: skip

TABLES = (
    h.Listing("AUROC by score and posterior", of=by_score),
    h.Listing("all figures", ("posterior", "score", "outside", "kind", *METRICS), detected),
    h.Listing(
        "under corruptions, means over them",
        ("posterior", "severity", "score", "accuracy", "auroc"), curves,
    ),
)  # fmt: skip

_curve = partial(h.Curves, "severity", hue="{posterior}")
PLOTS = (
    h.Plot(
        "scores",
        h.Dots(
            "score", "auroc", detected, hue="{posterior}", facet="{outside} ({kind})",
            guides=(0.5,), axes={"xlabel": "AUROC"},
        ),
        columns=3, size=(4.2, 4.6),
    ),
    h.Plot(
        "shift",
        _curve("accuracy", accuracies, axes={"xlabel": "severity", "ylabel": "accuracy"}),
        _curve(
            "auroc", curves, facet="{score}",
            axes={"xlabel": "severity", "ylabel": "AUROC of corrupted images"},
        ),
        columns=3, size=(4.2, 3.4),
    ),
)  # fmt: skip


FOLLOWED = ("MSP", "energy", "KNN", "ViM", "epistemic")
"""Scores of the curves."""


def run(run: Run[recipe.Settings]) -> Found:
    """Trains, then judges every posterior; rows of a posterior are kept together."""
    sets = recipe.load(run.settings, jax.random.fold_in(run.key, 100))
    posteriors = train(run, sets)

    def judged(name: str) -> Iterator[Row]:
        score = scorer(posteriors[name], sets)
        inside = score(sets.test[0])
        for row in (*detection(sets, score, inside), *shift(run, sets, score, inside)):
            yield {"posterior": name, **row}

    return Found(run.each(list(posteriors), judged))


def detection(sets: recipe.Sets, score: Any, inside: Scores) -> Iterable[Row]:
    """Rows of every set out of domain and score."""
    for i, (outside, images) in enumerate(sets.outside.items()):
        found = score(images)
        for name in (name for name in inside if name != "class"):
            both = inside[name], found[name]
            auroc, aupr = float(u.auroc(*both)), float(u.aupr(*both))
            labels = np.repeat([0, 1], [len(side) for side in both])
            scores = np.concatenate([np.asarray(side) for side in both])
            theirs = roc_auc_score(labels, scores), average_precision_score(labels, scores)
            yield {
                "part": "detection", "score": name, "outside": outside,
                "kind": "far" if i else "near", "auroc": auroc, "aupr": aupr,
                "fpr95": float(u.fpr95(*both)),
                "scikit_error": max(abs(auroc - theirs[0]), abs(aupr - theirs[1])),
            }  # fmt: skip


def shift(
    run: Run[recipe.Settings], sets: recipe.Sets, score: Any, inside: Scores
) -> Iterable[Row]:
    """Rows of every corruption and severity; severity zero are the images as they are."""
    settings, labels = run.settings, np.asarray(sets.test[1])
    for name in settings.corruptions:
        for severity in (0, *settings.severities):
            scores = inside
            if severity:
                worse = data.corrupt(jax.random.fold_in(run.key, 200), sets.clean, name, severity)
                scores = score(jnp.asarray(data.normalize(worse, settings.data)))
            for which in FOLLOWED:
                if which in scores:
                    yield {
                        "part": "shift", "corruption": name, "severity": severity, "score": which,
                        "accuracy": float((np.asarray(scores["class"]) == labels).mean()),
                        "auroc": float(u.auroc(inside[which], scores[which])),
                    }  # fmt: skip


STUDY = Study(
    "out_of_domain", __doc__, recipe.SIZES, (run,), CLAIMS, PLOTS,
    TABLES,
    (
        "OpenOOD trains ResNet-18 on CIFAR and ImageNet and chooses settings of scores on held-out "
        "sets; here it is LeNet-5 on digits, with settings that were not chosen by results.",
        "For an ensemble, scores of features are means over its members; for moments they are "
        "those of the network of posterior means.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
