"""A detector and its suppression as bundles and in C, beside XLA: in floats, int8, with moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from c_programs import require
from flax import nnx
from jaxeff_export import deploy
from jaxeff_export.clib import ExampleProgram

import jaxeff
from jaxeff import compression
from jaxeff import uncertainty as u
from jaxeff.nn import CellDetector, UNet

F, PARAMS = jaxeff.functional(CellDetector(3, widths=(4, 4, 8, 8), boxes=True, rngs=nnx.Rngs(0)))
IOU = jnp.float32(0.3)
IMAGES = jax.random.uniform(jax.random.key(1), (3, 1, 32, 40, 1))


def boxes_and_scores(n=30):
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 30, (4, n, 2))
    corners = np.concatenate([low, low + rng.uniform(3, 15, (4, n, 2))], -1)
    scores = np.round(rng.uniform(0, 1, (4, n)), 1)
    return corners.astype(np.float32), scores.astype(np.float32), rng.integers(0, 2, (4, n))


@pytest.mark.slow
def test_suppression_has_the_same_bits_in_c(tmp_path):
    def g(iou, boxes, scores, classes):
        place, valid = u.nms(boxes, scores, 8, iou=iou, classes=classes)
        return boxes[place], scores[place], place, valid

    calls = [tuple(map(jnp.asarray, call)) for call in zip(*boxes_and_scores(), strict=True)]
    bundle = deploy(g, (IOU, *calls[0]))
    library = bundle.export_c(tmp_path / "nms", source=True)
    calls = [[np.asarray(leaf) for leaf in call] for call in calls]
    results = ExampleProgram(library, None).run_all(calls)
    for call, ours in zip(calls, results, strict=True):
        expected = jax.jit(g)(IOU, *call)
        assert expected[3].any()
        assert_equal(bundle.run(*call), expected)
        assert_equal(ours, expected)


@pytest.mark.slow
def test_suppression_has_the_same_bits_on_a_microcontroller():
    require("arm-none-eabi-gcc", "qemu-system-arm")
    call = tuple(jnp.asarray(each[0]) for each in boxes_and_scores())

    def g(iou, boxes, scores, classes):
        return u.nms(boxes, scores, 8, iou=iou, classes=classes)

    bundle = deploy(g, (IOU, *call), target="cortex-m4")
    assert_equal(bundle.run(*call, board="emulated"), jax.jit(g)(IOU, *call))


def networks():
    posterior = {
        **PARAMS,
        "head": jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.05 * w**2), PARAMS["head"]),
    }
    codes = compression.ptq(F, PARAMS, IMAGES[:, 0])
    return {
        "floats": (F, PARAMS),
        "int8": codes[:2],
        "moments": (jaxeff.moments(F, method="diagonal"), posterior),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", ["floats", "int8", "moments"])
def test_objects_come_out_of_a_bundle_and_of_c(case, tmp_path):
    f, params = networks()[case]
    # An untrained network: cells say something else than the background where a third is enough.
    g = u.detect(f, 6, iou=0.3, least=0.28, doubt=2.0)
    bundle = deploy(g, (params, IMAGES[0]))
    library = bundle.export_c(tmp_path / "detector", source=True)
    results = ExampleProgram(library, None).run_all([[np.asarray(x)] for x in IMAGES])
    for x, ours in zip(IMAGES, results, strict=True):
        expected = jax.jit(g)(params, x)
        assert (expected.classes >= 0).any()
        for theirs in (ours, bundle.run(x)):
            boxes, scores, classes, variance = jax.tree.leaves(theirs)
            np.testing.assert_array_equal(classes, expected.classes)
            np.testing.assert_allclose(boxes, expected.boxes, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(scores, expected.scores, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(variance, expected.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_u_net_in_whole_numbers_has_the_same_bits_in_c(tmp_path):
    f, params = jaxeff.functional(UNet(3, widths=(4, 6, 8), rngs=nnx.Rngs(0)))
    x = IMAGES[:, 0, :16, :16]
    g, codes = compression.ptq(f, params, x)[:2]
    bundle = deploy(g, (codes, x[:1]))
    library = bundle.export_c(tmp_path / "unet", source=True)
    expected = jax.jit(g)(codes, x[:1])
    assert_equal(bundle.run(x[:1]), expected)
    ours = next(iter(ExampleProgram(library, None).run_all([[np.asarray(x[:1])]])))
    assert_equal(ours, expected)


def assert_equal(ours, expected):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)
