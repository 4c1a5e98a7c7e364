"""Variance-aware noisy training (VANT): robustness to noise whose level drifts.

    python -m experiments.hardening.vant

1. noisy training at several levels: the envelope of the curves is the ideal, where training and
   inference noise match;
2. VANT over the spread theta and the calibration alpha, in both published forms: rAUC and preserved
   accuracy;
3. baselines: no hardening, quantization-aware training, adaptive SAM.

Noise is additive, Gaussian, at every slot. LeNet-5 with batch norm stands in for the source's
ResNet-18, which has it too: under other noise than in training the running statistics are wrong,
and accuracy peaks at the trained level. `--network lenet5` shows what is left of that without.

Trainings of a kind are one compiled sweep. Finished networks are kept, so is the running one by the
epoch: a run that was killed goes on. Source: Klein's thesis, section 6.4; arXiv 2503.16183.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from experiments.hardening import recipe, training, vant_findings
from experiments.hardening.recipe import Family, Setting
from experiments.harness import Found, Part, Run, Study
from jaxeff.hardening import ALPHA, THETA_PER_SIGMA

DIFFERENCES = (
    "the source trains ResNet-18 for 400 epochs; `config` and the rows say what was run here",
    "noise grows during the first part of every noisy training (the source's: a quarter of it)",
    "the spread is given relative to the level, where the source's heatmaps have absolute ones",
    "the ideal is interpolated between the levels that were trained at",
    "a dynamic scale (QAT) is a moving average over batches that stays fixed at evaluation",
)
LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7, 1.9, 2.1, 2.4, 2.7, 3.0)
"""Noise of the source's evaluation."""
SHORT_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5)
SHORT_RAMP = 0.3
"""Share of a short training during which the noise grows; the source's is a quarter."""
PUBLISHED_THETAS = {
    0.1: 0.05, 0.3: 0.05, 0.5: 0.25, 0.7: 0.35, 0.9: 0.35, 1.1: 0.45,
    1.3: 0.65, 1.5: 0.65, 1.7: 0.95, 1.9: 0.75, 2.1: 0.85,
}  # fmt: skip
"""The spread that the source chose for each training level."""


@dataclass(frozen=True)
class Settings(recipe.Settings):
    """As in the study of hardening, of one network.

    Attributes:
        network: Which network is trained.
    """

    network: Literal["lenet5-bn", "lenet5", "vgg11", "resnet18"] = "lenet5-bn"


def families(
    sigmas: tuple[float, ...],
    centres: tuple[float, ...],
    ratios: tuple[float, ...],
    alphas: tuple[float, ...],
    alpha_centres: tuple[float, ...],
    rhos: tuple[float, ...],
    bits: tuple[int, ...],
    **training: Any,
) -> tuple[Family, ...]:
    """Everything that is trained.

    Args:
        sigmas: Levels of noisy training, whose best make the ideal.
        centres: Nominal levels of VANT, all among `sigmas`.
        ratios: Its spreads theta, relative to the level, with the published alpha.
        alphas: Its calibrations, with the rule's theta.
        alpha_centres: Nominal levels for them, and for the normal form of the distribution.
        rhos: Radii of adaptive SAM.
        bits: Bit widths of quantization-aware training.
        **training: Further fields of the families.
    """
    network = Settings.network
    spread = [Setting(s, round(r * s, 6), ALPHA) for s in centres for r in ratios]
    rule = [Setting(s, round(THETA_PER_SIGMA * s, 6), ALPHA) for s in alpha_centres]
    calibrated = [setting._replace(alpha=a) for setting in rule for a in alphas]
    noise = tuple(Setting(sigma=s) for s in sigmas)
    return (
        Family("none", network, (Setting(),), **training),
        Family("noise", network, noise, noisy=True, **training),
        Family("vant", network, (*spread, *calibrated), noisy=True, **training),
        Family("vant-normal", network, tuple(rule), noisy=True, form="normal", **training),
        *(Family("qat", network, (Setting(),), "dynamic", b, **training) for b in bits),
        *(Family("sam", network, (Setting(),), rho=rho, **training) for rho in rhos),
    )


SIZES = {
    "fast": Settings(
        "digits", 1437, 360, (0.1, 0.3, 0.6, 1.0), 8,
        families(
            (0.3, 0.6, 1.0), (0.3, 1.0), (THETA_PER_SIGMA,), (), (0.3,), (0.5,), (4,),
            ramp=SHORT_RAMP,
        ), batch_size=32, rate=2e-3,
    ),
    # Noise is weaker than the source's, since so is the network: at 1.5 little is left of the
    # accuracy of LeNet-5, which stands in for its ResNet-18.
    "default": Settings(
        "cifar-10", 20_000, 2000, SHORT_LEVELS, 3,
        families(
            (0.1, 0.3, 0.5, 0.9, 1.3), (0.1, 0.5, 0.9, 1.3), (0.2, THETA_PER_SIGMA, 0.8),
            (0.2, 1.0), (0.5,), (0.05, 0.5), (8, 4), ramp=SHORT_RAMP,
        ), batch_size=32, rate=2e-3,
    ),
    "full": Settings(
        "cifar-10", 50_000, 10_000, LEVELS, 400,
        families(
            LEVELS, tuple(PUBLISHED_THETAS), (0.1, 0.2, 0.3, THETA_PER_SIGMA, 0.5, 0.6, 0.8),
            (0.2, 0.7, 1.0), (0.5, 1.3, 2.1), (0.05, 0.1, 0.5, 1.5, 2.5, 5.0), (8, 4), ramp=0.25,
        ), decay=1e-4, seeds=3, repeats=5, network="resnet18", batch_size=128, rate=1e-3,
    ),
}  # fmt: skip


def _with_robustness(run: Run[Settings], found: Found) -> Found:
    rows, levels = list(found.rows), run.settings.levels
    vant_findings.add_robustness(rows, levels)
    tables = {"comparison": vant_findings.comparison(rows)}
    return Found(rows, {"ideal": vant_findings.ideal(rows, levels), "tables": tables})


PARTS = (
    Part[Settings, Family](
        lambda run: [replace(f, network=run.settings.network) for f in run.settings.families],
        training.train,
    ),
)
STUDY = Study(
    "vant", __doc__, SIZES, PARTS, vant_findings.CLAIMS, vant_findings.PLOTS, vant_findings.TABLES,
    DIFFERENCES, derive=_with_robustness,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
