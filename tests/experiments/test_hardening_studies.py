"""The hardening studies: what they train, and what they conclude from curves they are given."""

import dataclasses
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.hardening import findings, training, vant
from experiments.hardening import recipe as hardening
from experiments.hardening.__main__ import STUDY
from experiments.hardening.findings import TABLE
from experiments.harness import Refused, Report
from experiments.harness.report import plain
from experiments.harness.sizes import reached
from jaxeff.core import fast_key
from jaxeff.hardening import ALPHA

LEVELS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
CONFIG = {"levels": list(LEVELS), "test_images": 1000}


def falls_at(mu, peak=0.9):
    sigma = np.array(LEVELS)
    return (0.1 + (peak - 0.1) / (1 + np.exp((sigma - mu) / (0.2 * mu)))).tolist()


def row(method, curve, **fields):
    plain = {
        "network": "lenet5", "method": method, "scaling": "none", "bits": 32, "rho": 0.0,
        **hardening.Setting()._asdict(), "seed": 0, "diverged": False, "size": "fast",
    }  # fmt: skip
    return {**plain, "peak": max(curve), "curve": curve, **fields}


@pytest.mark.slow
def test_full_size_is_the_sources():
    families = hardening.SIZES["full"].families
    trained = {
        (f.network, f.bits, s.scale if f.scaling == "constant" else f.scaling)
        for f in families
        for s in f.settings
        if f.method in ("none", "qat")
    }
    assert trained >= TABLE.keys()
    assert hardening.SIZES["full"].epochs == 500
    for size in ("fast", "default"):
        noisy = {s.sigma for f in hardening.SIZES[size].families if f.noisy for s in f.settings}
        assert noisy <= set(hardening.SIZES[size].levels)
    for settings in vant.SIZES.values():
        of = {f.method: {s.sigma for s in f.settings} for f in settings.families}
        assert of["vant"] <= of["noise"] <= set(settings.levels)


def test_networks_are_chosen_by_name():
    size = hardening.SIZES["default"]
    assert {f.network for f in size.chosen()} == {"lenet5"}
    both = replace(size, networks=("vgg11", "resnet18")).chosen()
    assert {f.network for f in both} == {"vgg11", "resnet18"}
    with pytest.raises(Refused, match="no network resnet50: there are lenet5, resnet18, vgg11"):
        replace(size, networks=("resnet50",)).chosen()
    noisy = replace(size, methods=("none", "noise")).chosen()
    assert [f.method for f in noisy] == ["none", "noise"]
    with pytest.raises(Refused, match="no method sam: there are noise, none, qat"):
        replace(size, methods=("sam",)).chosen()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg11", "resnet18"])
def test_a_width_keeps_slots_and_its_share_of_channels(name):
    full, eighth = (training.build(name, (32, 32, 3), width).facts for width in (1.0, 0.125))
    assert eighth["slots"] == full["slots"]
    # Parameters go by the square, but for the first layer, the last and what is one per channel.
    assert full["parameters_m"] / 64 < eighth["parameters_m"] < 1.05 * full["parameters_m"] / 64


@pytest.mark.slow
@pytest.mark.parametrize("name", training.NAMES)
def test_every_network_takes_the_keys_of_a_study(name):
    network = training.build(name, (32, 32, 3))
    params, state = jax.eval_shape(network.init, fast_key(0))
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    logits, _ = jax.eval_shape(network.train, params, state, x)
    assert logits.shape == (2, 10)


@pytest.mark.slow
def test_levels_that_are_trained_at_are_tested_at():
    with pytest.raises(Refused, match=r"\[0.6\] are missing"):
        replace(vant.SIZES["fast"], levels=(0.1, 0.3, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["--fast", "--full"])
def test_the_network_that_is_asked_for_is_trained(size, tmp_path, monkeypatch):
    trained = []

    def build(network, shape, width):
        trained.append(network)
        raise Refused("enough")

    monkeypatch.setattr(training, "build", build)
    monkeypatch.setattr(training, "images", lambda run: SimpleNamespace(shape=()))
    with pytest.raises(SystemExit):
        vant.STUDY.main([size, "--network", "lenet5", "--results", str(tmp_path)])
    assert trained == ["lenet5"]


@pytest.mark.slow
def test_midpoints_and_checks_follow_from_the_curves():
    rows = [row("none", falls_at(0.2))]
    for sigma in (0.5, 1.0, 2.0, 4.0):
        # The network trained at a level does there what a midpoint of 2 asks for.
        accuracy = np.interp(sigma, LEVELS, falls_at(2.0))
        rows.append(row("noise", [accuracy] * len(LEVELS), sigma=sigma))
    quantized = {"scaling": "dynamic", "bits": 4}
    rows.append(row("qat", falls_at(0.15, 0.85), **quantized))
    rows.append(row("qat", falls_at(0.4, 0.8), **quantized | {"scaling": "constant"}))
    findings.add_midpoints(rows, LEVELS)
    assert rows[0]["mu"] == pytest.approx(0.2, rel=0.05)
    assert rows[1]["mu"] is None
    assert rows[1]["message"]

    matched = findings.matched_curves(rows, LEVELS)
    assert [m["scaling"] for m in matched] == ["none"]
    assert matched[0]["mu"] == pytest.approx(2.0, rel=0.1)

    report = Report("hardening", "default", CONFIG, rows, {"tables": {"matched": matched}})
    STUDY.judge(report)
    assert len(report.checks) == 4
    assert all(check["passed"] for check in report.checks)
    rows[0]["mu"] = 0.5
    report.checks = []
    STUDY.judge(report)
    assert [check["passed"] for check in report.checks] == [False, True, True, True]

    table = findings.quantization_table(rows)
    assert [line["scaling"] for line in table] == ["none", "dynamic", 1.0]


@pytest.mark.slow
def test_vant_is_judged_against_the_envelope():
    narrow = [0.7, 0.9, 0.8, 0.3, 0.1, 0.1, 0.1]
    wide = [0.2, 0.2, 0.2, 0.3, 0.3, 0.4, 0.2]
    varied = [0.7, 0.9, 0.8, 0.6, 0.5, 0.3, 0.1]
    rows = [
        row("noise", narrow, sigma=0.1), row("noise", wide, sigma=2.0),
        row("vant", varied, sigma=0.1, theta=0.04, alpha=ALPHA),
        row("qat", narrow, bits=4), row("sam", narrow, rho=0.5),
    ]  # fmt: skip
    between = np.interp(LEVELS, [0.1, 2.0], [0.9, 0.4], left=0, right=0)  # the levels trained at
    best = np.maximum(np.maximum(narrow, wide), between)
    np.testing.assert_allclose(vant.ideal(rows, LEVELS), best, rtol=1e-6)
    vant.add_robustness(rows, LEVELS)
    area = np.trapezoid(varied, LEVELS) / np.trapezoid(best, LEVELS)
    assert rows[2]["rauc"] == pytest.approx(area, rel=1e-5)
    assert rows[2]["preserved"] == pytest.approx(1.0)
    table, ratios, sigmas = vant.heatmap(rows, "rauc")
    assert (ratios, sigmas) == ([0.4], [0.1])
    assert table[0, 0] == rows[2]["rauc"]

    report = Report("vant", "default", CONFIG, rows)
    vant.STUDY.judge(report)
    # The last two: noisy training is as good as what it is compared with, which is no success.
    held = [check["passed"] for check in report.checks]
    assert held == [True, True, True, True, False, False]
    rows[2]["curve"] = narrow
    vant.add_robustness(rows, LEVELS)
    report.checks = []
    vant.STUDY.judge(report)
    # No better than noisy training, which is what the check is about.
    assert [check["passed"] for check in report.checks] == [True, True, True, False, False, False]


def test_what_has_learned_nothing_is_not_robust():
    best = np.array([0.9, 0.8, 0.6, 0.4, 0.2, 0.1, 0.1])
    chance, ideal = {"curve": [0.1] * len(LEVELS)}, {"curve": best.tolist()}
    assert vant.area_above_chance(chance, LEVELS, best) == pytest.approx(0)
    assert vant.area_above_chance(ideal, LEVELS, best) == pytest.approx(1)
    # Two levels are no curve.
    assert vant.area_above_chance(ideal, LEVELS, np.where(np.arange(7) < 2, best, 0.1)) is None


def test_spreads_are_judged_by_both_figures():
    def narrowed(theta, at, beyond):
        return row("vant", [at, at, at, beyond, beyond, 0.1, 0.1], sigma=0.2, theta=theta * 0.2,
                   alpha=ALPHA)  # fmt: skip

    rows = [row("noise", [0.9, 0.9, 0.9, 0.3, 0.2, 0.1, 0.1], sigma=0.2)]
    rows += [narrowed(0.2, 0.9, 0.3), narrowed(0.4, 0.88, 0.6), narrowed(0.8, 0.7, 0.85)]
    rows += [row("noise", [0.5, 0.6, 0.7, 0.9, 0.9, 0.8, 0.7], sigma=1.0)]
    rows += [row(name, [0.8, 0.5, 0.2, 0.1, 0.1, 0.1, 0.1]) for name in ("qat", "sam")]
    vant.add_robustness(rows, LEVELS)
    report = Report("vant", "default", CONFIG, rows)
    vant.STUDY.judge(report)
    by = {check["name"]: check for check in report.checks}
    rises, costs, widest = (by[name] for name in by if name.startswith("at 0.2 "))
    assert [rises["passed"], costs["passed"], widest["passed"]] == [True, True, True]
    assert widest["ours"] == 0.4


def test_quantization_is_compared_with_what_keeps_its_accuracy():
    kinds = {"constant": "constant", "dynamic": "dynamic"}

    def quantized(scaling, mu, peak, bits=4, scale=1.0):
        return row("qat", falls_at(mu, peak), network="vgg11", scaling=kinds[scaling], bits=bits,
                   scale=scale)  # fmt: skip

    rows = [row("none", falls_at(0.2), network="vgg11"), quantized("dynamic", 0.1, 0.85)]
    rows += [quantized("constant", 0.3, 0.8, scale=0.5), quantized("constant", 3.0, 0.3, scale=3.0)]
    findings.add_midpoints(rows, LEVELS)
    report = Report("hardening", "default", CONFIG, rows, {"tables": {"matched": []}})
    (best,) = findings.scales(report)
    assert (best["scale"], best["usable"]) == (0.5, True)  # not the one that has hardly learned
    (gone,) = findings.dead(report)
    assert gone["peak"] > findings.COLLAPSED
    STUDY.judge(report)
    held = {check["name"]: check["passed"] for check in report.checks}
    assert [*held.values()] == [True, True, False]


@pytest.mark.parametrize(("four", "passed"), [(0.3, True), (0.5, True), (0.8, False)])
def test_eight_bits_are_held_to_four(four, passed):
    rows = [row("none", falls_at(0.2))]
    rows += [
        row("qat", falls_at(mu, 0.85), scaling="dynamic", bits=bits)
        for bits, mu in ((8, 0.5), (4, four))
    ]
    findings.add_midpoints(rows, LEVELS)
    report = Report("hardening", "default", CONFIG, rows, {"tables": {"matched": []}})
    STUDY.judge(report)
    assert [c["passed"] for c in report.checks if c["name"].startswith("LeNet-5")] == [passed]


def test_combined_training_has_every_scale_that_is_asked_for():
    wanted = dataclasses.replace(STUDY.sizes["default"], combined_scales=(1.0, 3.0))
    combined = [f for f in wanted.chosen() if f.noisy and f.scaling == "constant"]
    levels = {(s.sigma, s.scale) for f in combined for s in f.settings}
    assert levels == {(sigma, scale) for sigma, _ in levels for scale in (1.0, 3.0)}
    rows = [
        row("qat+noise", falls_at(0.5), scaling="constant", bits=4, sigma=LEVELS[i], scale=scale)
        for i in (1, 2) for scale in (1.0, 3.0)
    ]  # fmt: skip
    assert [m["scale"] for m in findings.matched_curves(rows, LEVELS)] == [1.0, 3.0]


def test_noise_acts_where_it_is_asked_to():
    whole = training.build("lenet5", (28, 28, 1))
    products, others = whole.at("products"), whole.at("others")
    assert products.slots == ("conv1", "conv2", "fc1", "fc2", "fc3")
    assert {*products.slots} | {*others.slots} == {*whole.slots} == {*whole.at("every").slots}
    assert not {*products.slots} & {*others.slots}
    assert products.noise(0.1).keys() == {*products.slots}


def test_the_heatmap_has_every_level_and_spread():
    default = vant.SIZES["default"]
    assert vant.settle(default) == default
    settled = vant.settle(replace(default, heatmap=True))
    assert reached(plain(settled), vant.SIZES) == "default"
    (spread,) = (family.settings for family in settled.families if family.method == "vant")
    for sigma in vant.HEAT_LEVELS:
        ratios = {round(s.theta / sigma, 3) for s in spread if s.sigma == sigma}
        assert {*vant.HEAT_RATIOS} <= ratios, sigma
    (plain_ones,) = (f.settings for f in settled.families if f.method == "noise")
    assert {s.sigma for s in plain_ones} >= {*vant.HEAT_LEVELS}
