"""Quantization-aware and noisy training as ways to harden a network, alone and combined.

    python -m experiments.hardening

1. quantization-aware training without noise, by bit width and scale of the activations: accuracy
   without noise against the midpoint noise level (Klein's thesis, table 6.2);
2. noisy training at several levels: accuracy where training and inference noise match, and its
   midpoint beside that of a network trained without noise (Klein's thesis, table 6.3);
3. both combined.

Noise is additive, Gaussian, fresh for every element, at every slot of the thesis' accounting. All
levels and scales of a kind are one compiled sweep. Finished networks are kept, so is the running
one by the epoch: a run that was killed goes on. Source: Klein's thesis, section 6.3; arXiv
2501.14531.
"""

from experiments.hardening import findings, recipe, training
from experiments.harness import Found, Part, Run, Study

DIFFERENCES = (
    "the thesis trains 500 epochs on 50,000 images; `config` says what was run here",
    "the noise of our short noisy trainings grows during half of the training (incremental noise, "
    "which the thesis uses for VGG-11 alone): from scratch they would hardly start to learn",
    "midpoints are those of a logistic of the level's logarithm, the thesis' of the level itself",
    "VGG-11 is trained without dropout; with a `width` under 1, VGG-11 and ResNet-18 have that "
    "share of the thesis' channels",
    "with a constant scale, gradients pass where activations are clamped (straight-through)",
    "a dynamic scale is a moving average over batches that stays fixed at evaluation",
    "weights of all layers but the last have a range per output channel, dense ones too",
)


def _with_tables(run: Run[recipe.Settings], found: Found) -> Found:
    """Adds midpoints, the thesis' two tables beside ours, and the curves of matched noise."""
    rows, levels = list(found.rows), run.settings.levels
    findings.add_midpoints(rows, levels)
    matched = findings.matched_curves(rows, levels)
    shape, width = training.images(run).shape, run.settings.width
    tables = {
        "quantization": findings.quantization_table(rows),
        "architectures": findings.architecture_table(
            rows, matched, lambda network: training.build(network, shape, width)
        ),
        "matched": matched,
    }
    return Found(rows, {"tables": tables})


STUDY = Study(
    "hardening", __doc__, recipe.SIZES,
    (Part(lambda run: run.settings.chosen(), training.train),),
    findings.CLAIMS, findings.PLOTS, findings.TABLES, DIFFERENCES, derive=_with_tables,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
