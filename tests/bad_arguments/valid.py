"""What public functions are called with: a valid value for each parameter, by name.

`COMMON` holds for parameters of that name anywhere, `OWN` for those of one function. A new function
whose parameters have other names gets a line here, or in `tried.LEFT_OUT` with the reason.

Arguments are checked before anything is done with them, so an object that is costly to make (a
chip's characterization, a bundle) may be an `empty` one: of its class, with nothing in it.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from flax import nnx
from jaxeff_export import Artifact, Bundle
from jaxeff_export.boards import LocalBoard
from numpyro import handlers
from numpyro.distributions import Normal
from numpyro.infer.autoguide import AutoDelta

from jaxeff.adapters import LoRA
from jaxeff.analog_hardware import (
    RPU,
    Characterization,
    Chip,
    Crossbar,
    Design,
    Events,
    Linear,
    Reference,
    TileCosts,
)
from jaxeff.analog_hardware._measurements import NoiseMeasurement as MeasuredNoise
from jaxeff.bayes import NUTS, Draws, MCMCResult, MixturePosterior, ivon, swag
from jaxeff.compression import BitSensitivity, HessianTrace, Int, QuantizationErrors, grid
from jaxeff.compression import Uniform as UniformGrid
from jaxeff.contrib import Incremental, Tokenizer
from jaxeff.core import functional
from jaxeff.ensembles import RBF, Ensemble, Members, NoiseImages, Spectral, ensemble, mimo
from jaxeff.moment_propagation import Gaussian
from jaxeff.noise import Additive
from jaxeff.photonics import ChaoticLight, PhotonicWeights
from jaxeff.program import Cost, Layer, Program
from jaxeff.pruning import Budget, Channels, Plan, Prune, prune_plan
from jaxeff.pruning.scores import l1
from jaxeff.robustness import NoiseSensitivity
from jaxeff.search import Candidate, Candidates, Refinement, SearchSpace
from jaxeff.search import CompressionSensitivity as Known
from jaxeff.training import TrainState, cross_entropy
from jaxeff.uncertainty import (
    LAC,
    ConformalCalibration,
    DenseHead,
    ExitDecision,
    Monitoring,
    Temperature,
)
from tests.bad_arguments import faces


def empty(cls: type) -> Any:
    """An instance of a class with nothing in it."""
    if issubclass(cls, tuple):
        return tuple.__new__(cls, [None] * len(getattr(cls, "_fields", ())))
    return object.__new__(cls)


def f(params: Any, x: Any) -> Any:
    """Two layers, `fc1` and `fc2`, of 3 inputs and 2 classes."""
    return jax.nn.relu(x @ params["fc1"]["kernel"]) @ params["fc2"]["kernel"]


def is_right(outputs: Any, targets: Any) -> Any:
    """A metric: one where the largest output is that of the label."""
    return (outputs.argmax(-1) == targets).astype(float)


def at_setting(setting: Any) -> Any:
    """A loss at a setting, or of another function."""
    return cross_entropy(f)


def inferred(sites: Any) -> Any:
    """A posterior of any sites."""
    return GAUSSIANS


def schedule(step: Any) -> Any:
    """A schedule."""
    return 0.1 * step


RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
X = jnp.linspace(-1, 1, 12).reshape(4, 3)
Y = jnp.arange(4) % 2
DATA = (X, Y)
PARAMS = {"fc1": {"kernel": jnp.ones((3, 4))}, "fc2": {"kernel": jnp.ones((4, 2))}}
GUIDE = AutoDelta(lambda: numpyro.sample("fc/kernel", Normal(jnp.zeros(2), 1).to_event(1)))
with handlers.seed(rng_seed=0):
    GUIDE()
GAUSSIANS = jax.tree.map(lambda w: Gaussian(w, 0.1 * w), PARAMS)
DRAWS = Draws({"fc2/kernel": jnp.ones((2, 4, 4, 2))}, PARAMS)
TWO = ensemble(KEY, f, PARAMS, {"fc2": Members(2)})[0]
PROBS = jnp.full((4, 2), 0.5)
LOGITS = Gaussian(jnp.zeros((4, 2)), jnp.ones((4, 2)))
CORNERS = jnp.array([[0.0, 0, 4, 4], [1, 1, 5, 5], [0, 8, 3, 12], [20, 20, 30, 30]])
POINTS = jax.random.normal(KEY, (20, 3))
LINEAR = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
SCORES = jnp.linspace(0.1, 1.0, 4)
IMAGES = jnp.ones((4, 4, 4, 1))
SITES = ("fc1", "fc2")
LIGHT = ChaoticLight(0.5)
SETS = ConformalCalibration(jnp.asarray(0.5), LAC())
GROUPED = ConformalCalibration(SCORES[:2], LAC())
ADAM = optax.adam(1e-3)
HEAD = DenseHead(jnp.ones((3, 2)), jnp.ones(2))

COMMON: dict[str, Any] = {
    "key": KEY, "f": f, "g": f, "params": PARAMS, "start": PARAMS, "x": X, "args": (X,),
    "inputs": X, "likelihood": "categorical", "data": DATA, "validation": DATA, "batch": X,
    "batches": [X, X],
    "posterior": GAUSSIANS, "sites": SITES, "optimizer": ADAM, "budget_optimizer": ADAM,
    "loss": cross_entropy(f), "loss_at": at_setting, "schedule": schedule, "progress": False,
    "epochs": 2, "batch_size": 2, "samples": 3, "draws": 3, "chunk": 2, "steps": 2, "n": 2,
    "count": 3,
    "bits": 4, "budget": 10, "seeds": 2, "levels": SCORES, "level": 0.5, "probs": PROBS,
    "labels": Y, "logits": LOGITS, "inside": SCORES, "outside": SCORES, "train": X,
    "uncertainty": SCORES, "losses": SCORES,
    "intensity": SCORES, "light": LIGHT, "query": Chip(3), "design": Design(),
    "measured": empty(Characterization), "plan": empty(Plan), "channels": empty(Channels),
    "costs": TileCosts(),
    "program": empty(Program), "layer": empty(Layer), "bundle": empty(Bundle),
    "sensitivity": empty(NoiseSensitivity), "errors": empty(QuantizationErrors),
    "space": empty(SearchSpace),
    "checkpoint": Path("never-written"), "path": Path("never-written"),
    "folder": Path("never-written"), "database": Path("never-written"),
    "root": Path("never-written"), "monitor": (X,), "shared": (), "kernel": RBF(),
    "target_acceptance": 0.8, "rules": {}, "board": LocalBoard(), "parameters": 1,
    "low": -1.0, "high": 1.0, "method": UniformGrid, "widths": (2, 4), "settings": {},
    "on_epoch": print, "eval_fn": print, "score": lambda f: l1, "init_scale": 0.1,
}  # fmt: skip

SPECS: dict[str, Any] = {
    "jaxeff.adapters": {"fc1": LoRA(2)},
    "jaxeff.analog": {"fc1": Crossbar()},
    "jaxeff.analog_hardware": {"fc1": Crossbar()},
    "jaxeff.boards": "local",
    "jaxeff.compression": {"fc1": Int(4)},
    "jaxeff.ensemble": {"fc2": Members(2)},
    "jaxeff.ensembles": {"fc2": Spectral()},
    "jaxeff.ensembles.batch_ensemble": {"fc2": Members(2)},
    "jaxeff.hardening": {"fc1": Additive(0.1)},
    "jaxeff.integer": {"fc1": Int(4)},
    "jaxeff.lora": {"fc1": LoRA(2)},
    "jaxeff.noisy": {"fc1": Additive(0.1)},
    "jaxeff.photonic": {"relu": LIGHT},
    "jaxeff.photonics": {"relu": LIGHT},
    "jaxeff.prune_plan": {"fc1": Prune(0.5)},
    "jaxeff.pruning": {"fc1": Prune(0.5)},
    "jaxeff.quantized": {"fc1": Int(4)},
    "jaxeff.weights": {"fc1": Int(4)},
    "jaxeff_export.to_qonnx": {"fc1": Int(4)},
    "jaxeff.robustness": {"fc1": Additive(SCORES)},
    "jaxeff.summary": {"fc1": Additive(0.1)},
    "jaxeff_export.boards": "local",
}
"""What `spec` is: of a function, or of all functions of a room."""

OWN: dict[str, dict[str, Any]] = {
    "jaxeff.adapters.learner": {
        "what": "head", "loss": lambda logits, y: logits.max(-1), "dtype": "int16",
    },
    "jaxeff.adapters.untied": {"site": "fc1"},
    "jaxeff.uncertainty.watched": {
        "learns": (lambda params, x, y, state: (x, state), {}, {}), "calibration": SETS,
        "score": lambda outputs: outputs.max(-1), "spec": Monitoring(),
    },
    "jaxeff.adapters.merge_lora": {"adapters": {
        "fc1/kernel": {"a": jnp.ones((1, 3, 2)), "b": jnp.ones((1, 2, 4))}
    }},
    "jaxeff.contrib.sample": {"logits": PROBS, "temperature": 0.5, "top_k": 2, "top_p": 0.9},
    "jaxeff.data.plane": {"points": POINTS, "margin": 1.0, "side": 3},
    "jaxeff_export.table_latency": {"inputs": (X,)},
    "jaxeff_export.modelled_latency": {"inputs": (X,)},
    "jaxeff_export.measured_latency": {"inputs": (X,)},
    "jaxeff_export.vela_latency": {"inputs": (X,), "accelerator": "ethos-u55-128"},
    "jaxeff.uncertainty.sparsity_threshold": {"train": POINTS},
    "jaxeff.uncertainty.out_of_domain": {"x": POINTS, "train": POINTS},
    "jaxeff.uncertainty.negative_log_density": {"x": POINTS, "train": POINTS},
    "jaxeff.cost": {"bits": {"fc1": (4, 4)}},
    "jaxeff.ensemble": {"init": lambda key: PARAMS},
    "jaxeff.functional": {"model": LINEAR, "args": ()},
    "jaxeff.restore": {
        "model": LINEAR, "args": (), "state": {}, "params": functional(LINEAR)[1],
        "plan": prune_plan(*functional(LINEAR), POINTS, {}),
    },
    "jaxeff.moments": {"noise": {"fc1": Additive(0.1)}, "shared": True},
    "jaxeff.prune_plan": {"budget": Budget(macs=0.5)},
    "jaxeff.report": {"bundle": None, "title": "Net", "about": {"use": "tests"},
                      "shares": 0.5 * SCORES, "examples": 10, "sections": ("layers",),
                      "outside": X, "levels": SCORES, "widths": (2, 4)},
    "jaxeff.reporting.judge_predictions": {"outside": LOGITS, "outside_labels": Y},
    "jaxeff.summary": {"bits": {"fc1": (4, 4)}},
    "jaxeff.analog_hardware.compensate_drift": {"before": empty(Reference)},
    "jaxeff.analog_hardware.fidelity": {"model": Linear()},
    "jaxeff.analog_hardware.fit_noise": {"noise": empty(MeasuredNoise)},
    "jaxeff.analog_hardware.fit_sequence": {"events": empty(Events)},
    "jaxeff.analog_hardware.fit_splines": {"x": np.asarray(X), "y": np.asarray(X)},
    "jaxeff.analog_hardware.pulsed": {"device": RPU, "learning_rate": 0.1},
    "jaxeff.analog_hardware.tiki_taka": {
        "device": RPU, "learning_rate": 0.1, "transfer_rate": 0.1, "slow": RPU, "every": 1,
    },
    "jaxeff.analog_hardware.with_model": {"model": Linear()},
    "jaxeff.analog_hardware.train_for_chip": {"epochs": (1, 1, 1), "array": Crossbar()},
    "jaxeff.bayes.around_best_draw": {"result": empty(MCMCResult)},
    "jaxeff.bayes.distill": {"batch_size": 2, "inputs": (X,), "teacher": GAUSSIANS},
    "jaxeff.bayes.from_numpyro": {
        "guide": GUIDE, "params": {"fc/kernel_auto_loc": jnp.ones(2)}, "like": None,
        "diagonal": False, "ignore": SITES,
    },
    "jaxeff.bayes.from_pyro": {
        "params": {f"AutoNormal.{half}.fc.weight": np.ones((2, 1)) for half in ("locs", "scales")},
        "like": {"fc": {"kernel": jnp.ones((1, 2))}}, "ignore": SITES,
    },
    "jaxeff.bayes.ivon": {
        "learning_rate": 0.1, "examples": 4.0, "weight_decay": 0.1, "momentum": 0.9, "decay": 0.9,
        "curvature": 1.0, "clip": 1.0,
    },
    "jaxeff.bayes.ivon_posterior": {"opt_state": ivon(KEY, 0.1, 4).init(PARAMS)},
    "jaxeff.ensembles.packed": {"width": 1.5},
    "jaxeff.ensembles.mimo_loss": {"g": mimo(f, 2), "repetition": 0.5},
    "jaxeff.training.evidential": {"ramp": 10, "weight": 1.0, "activation": jnp.exp},
    "jaxeff.uncertainty.evidence": {"outputs": LOGITS.mean, "activation": jnp.exp},
    "jaxeff.uncertainty.dirichlet_probs": {"concentration": PROBS},
    "jaxeff.uncertainty.dirichlet_decomposition": {"concentration": PROBS},
    "jaxeff.ensembles.choose_random": {"infer": inferred, "times": 20.0, "outside": X},
    "jaxeff.bayes.swag": {"start": 2, "every": 2, "rank": 3},
    "jaxeff.bayes.swag_posterior": {"opt_state": swag(ADAM, start=0, every=1).init(PARAMS)},
    "jaxeff.bayes.svi": {"batch_size": 2, "calibrate": X},
    "jaxeff.bayes.mcmc": {"kernel": NUTS()},
    "jaxeff.bayes.mixing": {"values": jnp.ones((2, 4))},
    "jaxeff.bayes.parameter_mixing": {"posterior": DRAWS},
    "jaxeff.bayes.prediction_mixing": {"posterior": DRAWS, "inputs": (X,)},
    "jaxeff.bayes.prior_scales": {"prior": 1.0},
    "jaxeff.compression.allocate_bits": {
        "sensitivity": empty(BitSensitivity), "cost": empty(Cost),
        "weights": {"fc1": (2, 4)}, "activations": {"fc1": (2, 4)},
    },
    "jaxeff.compression.bit_policy": {"weights": (2, 4), "activations": (2, 4)},
    "jaxeff.compression.calibrate": {"method": "minmax"},
    "jaxeff.compression.ptq": {"method": "minmax"},
    "jaxeff.compression.clip_range": {"values": np.asarray(SCORES)},
    "jaxeff.compression.dequantize": {"grid": grid(4, -1.0, 1.0), "codes": Y},
    "jaxeff.compression.each_policy": {"weights": 4 + Y[None, :2], "activations": 4 + Y[None, :2]},
    "jaxeff.compression.hessian_sensitivity": {"trace": empty(HessianTrace)},
    "jaxeff.compression.hessian_trace": {"args": (X,)},
    "jaxeff.contrib.incremental_quantization": {"method": Incremental(4)},
    "jaxeff.compression.quantize": {"grid": grid(4, -1.0, 1.0)},
    "jaxeff.contrib.share_schedule": {"every": 2},
    "jaxeff.compression.signal_to_noise_bits": {"sizes": {"fc1": 10.0}, "decibels": 20.0},
    "jaxeff.compression.straight_through": {"y": X},
    "jaxeff.data.augment": {"images": IMAGES},
    "jaxeff.data.corrupt": {"images": IMAGES, "name": "fog", "severity": 2},
    "jaxeff.data.load": {"name": "mnist"},
    "jaxeff.nn.hann": {"size": 480},
    "jaxeff.streaming": {
        "f": lambda params, window: window.mean(1), "params": PARAMS, "window": jnp.ones((1, 4, 2)),
        "axis": 1, "hop": 1,
    },
    "jaxeff.nn.mel_filters": {
        "bands": 40, "size": 512, "rate": 16e3, "low": 20.0, "high": 4e3, "scale": "htk"
    },
    "jaxeff.nn.log_mel": {"audio": np.ones((2, 16000), np.int16)},
    "jaxeff.data.normalize": {"images": IMAGES, "name": "mnist"},
    "jaxeff.dirty_mnist.balance_entropy": {"rng": RNG, "entropy": np.asarray(SCORES)},
    "jaxeff.dirty_mnist.draw_labels": {"rng": RNG, "probs": np.asarray(PROBS), "labels": 3},
    "jaxeff.dirty_mnist.is_ambiguous": {
        "logits": jnp.ones((2, 4, 3)), "largest_mi": 0.5, "smallest_entropy": 0.1,
    },
    "jaxeff.dirty_mnist.mix_codes": {"rng": RNG, "codes": np.asarray(X), "labels": np.asarray(Y),
                                     "parts": 2},
    "jaxeff.dirty_mnist.stretch_contrast": {"images": IMAGES},
    "jaxeff.adapters.frozen": {"pattern": "frozen/*"},
    "jaxeff.ensembles.affordable_members": {"pattern": "fc1", "times": 2.0},
    "jaxeff.ensembles.bootstrap_weights": {"examples": 4, "members": 2},
    "jaxeff.ensembles.feature_density": {"features": X, "classes": 2},
    "jaxeff.ensembles.member_loss": {"members": 2},
    "jaxeff.ensembles.optimize_members": {"g": empty(Ensemble)},
    "jaxeff.ensembles.mixture_moments": {"posterior": empty(MixturePosterior)},
    "jaxeff.ensembles.repulsion": {"points": X},
    "jaxeff.ensembles.repulsive": {"g": TWO, "strength": 1.0, "samples": NoiseImages()},
    "jaxeff.ensembles.sngp": {"site": "fc2", "length_scale": 1.0},
    "jaxeff.hardening.distilled": {"teacher": lambda x: x},
    "jaxeff.hardening.incremental_noise": {"loss_at": at_setting},
    "jaxeff.hardening.relu_quantization": {"last": "fc2", "scale": 1.0},
    "jaxeff.hardening.scale_levels": {"factor": 0.5},
    "jaxeff.hardening.sharpness_aware": {"rho": 0.1},
    "jaxeff.hardening.vant": {"sigma": 0.1, "theta": 0.1, "batch": 4},
    "jaxeff.moment_propagation.check_gaussian": {"x": LOGITS},
    "jaxeff.nn.activation": {"name": "relu"},
    "jaxeff.noise.walking_noise": {"model": Additive},
    "jaxeff.photonics.chaotic_intensity": {"shape": (3, 2)},
    "jaxeff.photonics.effective_samples": {"times": 3},
    "jaxeff.photonics.excess_share": {"mean": 0.5},
    "jaxeff.photonics.fit_light": {"mean": SCORES, "variance": SCORES},
    "jaxeff.photonics.noise_for": {"sigma": 0.1},
    "jaxeff.photonics.pattern_sigma": {"pulses": X},
    "jaxeff.photonics.photon_counts": {"mean": SCORES, "modes": 10.0, "shape": (4,)},
    "jaxeff.photonics.probabilistic_pooling": {"pool": jnp.mean},
    "jaxeff.photonics.quant_relu": {"top": 1.0},
    "jaxeff.photonics.transmissions": {"weights": X, "setting": PhotonicWeights()},
    "jaxeff.photonics.replace_levels": {"raw": {"relu": jnp.ones(1)}},
    "jaxeff.program.resolve": {"spec": {"fc1": 1.0}},
    "jaxeff.pruning.load_pruned": {"like": PARAMS},
    "jaxeff.pruning.prune_iteratively": {"budgets": (Budget(macs=0.5),), "loss": at_setting},
    "jaxeff.pruning.save_pruned": {"small": PARAMS},
    "jaxeff.robustness.accuracy_curve": {"metric": is_right},
    "jaxeff.robustness.allocate_repetitions": {"midpoints": {"fc1": 0.5}},
    "jaxeff.robustness.bimodality": {"values": SCORES},
    "jaxeff.robustness.bin_edges": {"arrays": [SCORES, SCORES]},
    "jaxeff.robustness.envelope": {"curves": X},
    "jaxeff.robustness.fit_midpoint": {"accuracies": SCORES, "sigma": SCORES, "chance": 0.1},
    "jaxeff.robustness.learn_budget": {"loss": lambda g: cross_entropy(g, keyed=True)},
    "jaxeff.robustness.logistic": {"sigma": SCORES, "mu": 0.5, "slope": 1.0, "a_max": 1.0,
                                   "a_min": 0.1},
    "jaxeff.robustness.noisy_accuracy": {"specs": {"fc1": Additive(SCORES)}, "metric": is_right},
    "jaxeff.robustness.one_peak_pvalue": {"values": SCORES},
    "jaxeff.robustness.peaks": {"values": SCORES},
    "jaxeff.robustness.preserved_accuracy": {"standard": SCORES, "accuracies": SCORES,
                                             "level": 0.1},
    "jaxeff.robustness.robustness_area": {"ideal": SCORES, "accuracies": SCORES},
    "jaxeff.robustness.spread_levels": {"logits": SCORES},
    "jaxeff.robustness.summarize": {"accuracies": jnp.ones((2, 4))},
    "jaxeff.search.bit_operations": {"candidate": empty(Candidate)},
    "jaxeff.search.search": {"batch_size": 2, "train": f, "target": 0.5, "latency": print,
                             "refinement": empty(Refinement), "metrics": print},
    "jaxeff.search.search_among": {"target": 0.5, "latency": print, "refinement": empty(Refinement),
                                   "candidates": empty(Candidates), "known": empty(Known)},
    "jaxeff.store.write_atomically": {"content": "text"},
    "jaxeff.training.run_epochs": {"epoch": print, "start": empty(TrainState)},
    "jaxeff.training.init": {"params": PARAMS},
    "jaxeff.training.sweep": {"init": lambda key: (PARAMS, None), "settings": {"level": SCORES}},
    "jaxeff.nn.cell_targets": {"boxes": CORNERS, "shape": (2, 3)},
    "jaxeff.training.cross_entropy": {"ignored": 1},
    "jaxeff.uncertainty.box_iou": {"boxes": CORNERS, "others": CORNERS},
    "jaxeff.uncertainty.nms": {"boxes": CORNERS, "scores": SCORES, "iou": 0.5, "classes": Y},
    "jaxeff.uncertainty.detect": {"iou": 0.5, "least": 0.5, "doubt": 1.0},
    "jaxeff.uncertainty.match_detections": {"overlap": X, "scores": SCORES, "least": 0.5},
    **{f"jaxeff.uncertainty.{name}": {"scores": SCORES, "hits": SCORES > 0.5, "truths": 3,
                                      "where": SCORES > 0.2, "envelope": True}
       for name in ("precision_recall", "average_precision")},
    "jaxeff.uncertainty.mean_average_precision": {
        "scores": SCORES, "hits": SCORES > 0.5, "classes": Y, "truths": Y + 1,
    },
    "jaxeff.uncertainty.mean_iou": {"predictions": Y, "num_classes": 2, "ignored": 1},
    "jaxeff.uncertainty.conformalize": {"outputs": jnp.zeros((4, 2)), "targets": Y,
                                        "method": LAC(), "groups": Y, "group_count": 2},
    "jaxeff.uncertainty.conformal": {"calibration": GROUPED, "group": lambda x: Y},
    "jaxeff.uncertainty.online_conformal": {"calibration": SETS, "coverage": 0.9},
    "jaxeff.uncertainty.exchangeability": {"scores": SCORES},
    "jaxeff.uncertainty.monitor": {"calibration": SETS, "score": lambda outputs: outputs.max(-1),
                                   "spec": Monitoring()},
    "jaxeff.uncertainty.extra_error": {"region": ExitDecision(X, Y, X), "targets": Y},
    "jaxeff.uncertainty.false_negative_rate": {"region": PROBS > 0, "targets": PROBS > 0},
    "jaxeff.uncertainty.covered": {"calibration": SETS, "region": PROBS > 0, "targets": Y},
    "jaxeff.uncertainty.coverage_threshold": {"coverage": 0.5},
    "jaxeff.uncertainty.selective": {"score": lambda outputs: outputs.max(-1), "threshold": 0.5},
    **{f"jaxeff.uncertainty.{name}": {"logits": X}
       for name in ("energy", "generalized_entropy", "max_logit", "msp")},
    **{f"jaxeff.uncertainty.{name}": {"features": X, "head": HEAD}
       for name in ("ash", "dice", "react")},
    "jaxeff.uncertainty.dense_head": {"site": "fc2", "args": (X,)},
    "jaxeff.uncertainty.knn": {"features": X, "k": 2},
    **{f"jaxeff.uncertainty.{name}": {"features": X, "classes": 2}
       for name in ("mahalanobis", "relative_mahalanobis")},
    "jaxeff.uncertainty.scored": {"site": "fc2", "score": lambda features, outputs: outputs},
    "jaxeff.uncertainty.accepted_prefix": {"threshold": 0.5, "mask": SCORES > 0.5},
    "jaxeff.uncertainty.sequence_entropy": {"log_probs": jnp.log(PROBS), "mask": PROBS > 0},
    "jaxeff.uncertainty.sequence_score": {"scores": PROBS, "mask": PROBS > 0},
    "jaxeff.uncertainty.token_uncertainty": {"logits": jnp.zeros((3, 4, 2))},
    "jaxeff.uncertainty.vim": {"features": X, "head": HEAD, "dimensions": 2},
    "jaxeff.uncertainty.tempered": {"temperature": Temperature(2.0)},
    "jaxeff.uncertainty.aleatoric_mse": {"std": SCORES, "true_std": SCORES,
                                         "inside": SCORES > 0.5},
    "jaxeff.uncertainty.decompose": {"probs": PROBS[None]},
    "jaxeff.uncertainty.decompose_logits": {"logits": jnp.zeros((3, 4, 2))},
    "jaxeff.uncertainty.decompose_regression": {"outputs": jnp.ones((3, 4, 2))},
    "jaxeff.uncertainty.euc": {"epistemic": SCORES, "sparsity": SCORES},
    "jaxeff.uncertainty.in_batches": {"batch": 2, "f": lambda x: x},
    "jaxeff.uncertainty.mutual_information": {"probs": PROBS[None]},
    "jaxeff.uncertainty.nll_from_log": {"log_probs": jnp.log(PROBS)},
    "jaxeff.uncertainty.prediction_mse": {"mean": SCORES, "target": SCORES,
                                          "inside": SCORES > 0.5},
    "jaxeff.uncertainty.predictive_entropy": {"probs": PROBS[None]},
    "jaxeff.uncertainty.predictive_log_probs": {"logits": jnp.zeros((3, 4, 2))},
    "jaxeff.uncertainty.softmax_entropy": {"probs": PROBS[None]},
    "jaxeff.load_weights": {"source": {"a": np.ones(2)}, "keep": SITES, "ignore": SITES,
                            "mirrored": SITES},
    "jaxeff.contrib.file_tokens": {"content": b"#!/bin/sh"},
    "jaxeff.weights.push_to_hub": {"repo": Path("never-written"), "about": {"Data": "digits"}},
    "jaxeff.weights.load_from_hub": {"repo": Path("never-written")},
    "jaxeff.weights.save_weights": {"path": Path("never-written.npz")},
    "jaxeff.weights.packaged_file": {"package": "numpy", "pattern": "*.py"},
    "jaxeff.weights.channels_last_inputs": {"channels": 2},
    "jaxeff.weights.rotary_halves": {"heads": 2},
    "jaxeff_export.deploy": {"progress": print, "args": (PARAMS, X),
                             "tokenizer": Tokenizer(["a"], [])},
    "jaxeff_export.deploy_artifact": {"progress": print, "artifact": empty(Artifact),
                                      "arrays": {"a": np.ones(2)}},
    "jaxeff_export.export": {"args": (PARAMS, X)},
    "jaxeff_export.run_on_boards": {"work": print, "boards": ("local",)},
    "jaxeff_export.resolve_target": {"target": "host"},
    "jaxeff_export.channel_multiple": {"target": "host"},
    "jaxeff_export.boards.make_board": {"target": {"mcpu": "cortex-a72"}},
}  # fmt: skip
"""What parameters of one function are, where they differ from `COMMON`."""

ANYTHING: dict[str, str] = {
    "regimes": "stretches of an axis, which check themselves",
    "state": "a model's state, any pytree or None",
    "variables": "Flax's own, which Flax checks",
    "like": "any pytree",
    "init": "a posterior, parameters or None",
    "shared": "inputs of any kind that all examples share",
    "identity": "how a caller names a run",
    "console": "of the command line",
    "rng": "a generator of NumPy",
    "shards": "what `Shards.of` says of data",
    "api": "a client of the Hub, of which tests of its room have a stand-in",
    "revision": "a commit, branch or tag, which the Hub knows",
    # Tried by tests of their own rooms
    **dict.fromkeys(
        ("active", "noise", "epochs", "checkpoints", "inputs", "devices", "vectorized", "monitor",
         "prior_precision", "beta", "weights", "activations", "of_activations", "percentile",
         "counts", "widths", "args", "fractions", "keep", "recipe", "shape", "budgets", "on_round",
         "candidates", "content", "bundle", "report", "nodes", "operators",
         "exclude"),
        "tuples, objects and options that no kind of bad values is known for",
    ),
}  # fmt: skip
"""Parameters whose bad values nothing says, and why."""


def call_of(name: str, function: Any) -> dict[str, Any]:
    """A valid value for each parameter of a public function.

    Raises:
        KeyError: Nothing is known for a parameter that has no default.
    """
    own = dict(OWN.get(name, {}))
    spec = SPECS.get(name, SPECS.get(name.rpartition(".")[0]))
    if spec is not None:
        own.setdefault("spec", spec)
    values, unknown = faces.call_of(function, own, COMMON)
    if unknown:
        raise KeyError(
            f"{name} is public, but nothing is known for {sorted(unknown)}: give a valid value in "
            "COMMON or OWN, or a reason in tried.LEFT_OUT"
        )
    return values
