"""Quantization-aware and noisy training as ways to harden a network, alone and combined.

    python -m experiments.hardening

1. quantization-aware training without noise, by bit width and scale of the activations: accuracy
   without noise against the midpoint noise level (Klein's thesis, table 6.2);
2. noisy training at several levels: accuracy where training and inference noise match, and its
   midpoint beside that of a network trained without noise (Klein's thesis, table 6.3);
3. both combined.

Noise is additive, Gaussian, fresh for every element, at every slot of the source's accounting. All
levels and scales of a kind are one compiled sweep. Finished networks are kept, so is the running
one by the epoch: a run that was killed goes on. Source: Klein's thesis, section 6.3; arXiv
2501.14531.
"""

from collections.abc import Sequence

from experiments.hardening import figure, judging, networks, recipe, training
from experiments.harness import Found, Report, Run, Study, Table
from experiments.trainable import load_images

DIFFERENCES = (
    "the source trains 500 epochs on 50,000 images; `config` says what was run here",
    "the noise of our short noisy trainings grows during half of the training (incremental noise, "
    "which the source uses for VGG-11 alone): from scratch they would hardly start to learn",
    "midpoints are those of a logistic of the level's logarithm, the source's of the level itself",
    "VGG-11 (full size) is trained without dropout",
    "with a constant scale, gradients pass where activations are clamped (straight-through)",
    "a dynamic scale is a moving average over batches that stays fixed at evaluation",
    "weights of all layers but the last have a range per output channel, dense ones too",
)
TABLES = {
    "quantization": ("network", "bits", "scaling", "peak", "mu"),
    "architectures": ("network", "property", "ours", "source"),
    "matched": ("network", "scaling", "bits", "scale", "peak", "mu", "mu_std", "message"),
}


def run(run: Run[recipe.Settings]) -> Found:
    """Trains by every method and tests under noise."""
    settings = run.settings
    images = load_images(settings.data, settings.images, settings.test_images)
    rows = training.run_all(run, images, settings.families)
    judging.add_midpoints(rows, settings.levels)
    matched = judging.matched_curves(rows, settings.levels)
    tables = {
        "quantization": judging.quantization_table(rows),
        "architectures": judging.architecture_table(
            rows, matched, lambda network: networks.build(network, images.shape)
        ),
        "matched": matched,
    }
    return Found(rows, {"tables": tables})


def tables(report: Report) -> Sequence[Table]:
    """The source's two tables beside ours, and the curves of matched noise."""
    return [
        Table.from_rows(name, report.extra["tables"][name], columns)
        for name, columns in TABLES.items()
    ]


STUDY = Study(
    "hardening", __doc__, recipe.SIZES,
    (run,), (judging.judge,), (figure.draw,), (tables,), DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
