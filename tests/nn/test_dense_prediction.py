"""Detector and U-Net: shapes, what a cell sees, targets by a loop, and a variance of every cell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import CellDetector, UNet, cell_targets

F, PARAMS = jaxeff.functional(CellDetector(3, widths=(3, 4, 5, 6), boxes=True, rngs=nnx.Rngs(0)))
IMAGES = jax.random.normal(jax.random.key(1), (2, 24, 32, 1))


def test_sizes_of_both():
    logits, boxes = jax.eval_shape(F, PARAMS, IMAGES)
    assert logits.shape == boxes.shape == (2, 3, 4, 4)
    alone = jaxeff.functional(CellDetector(3, rngs=nnx.Rngs(0)))
    assert jax.eval_shape(*alone, IMAGES).shape == (2, 3, 4, 4)
    # 3·3 of 1→8, 8→16, 16→32, 32→32, and a dense layer of 32→4, with biases
    count = sum(leaf.size for leaf in jax.tree.leaves(alone[1]))
    assert count == 80 + 1168 + 4640 + 9248 + 132
    f, params = jaxeff.functional(UNet(5, 2, rngs=nnx.Rngs(0)))
    assert jax.eval_shape(f, params, jnp.ones((2, 24, 36, 2))).shape == (2, 24, 36, 5)
    with pytest.raises(ValueError, match="multiples of 4"):
        f(params, jnp.ones((1, 22, 24, 2)))
    with pytest.raises(ValueError, match="four numbers"):
        CellDetector(3, widths=(1, 2), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="three numbers"):
        UNet(3, widths=(1, 2), rngs=nnx.Rngs(0))


def test_boxes_lie_around_their_own_cells():
    flat = {**PARAMS, "corners": jax.tree.map(jnp.zeros_like, PARAMS["corners"])}
    boxes = F(flat, IMAGES)[1]
    np.testing.assert_array_equal(boxes[0, 2, 1], [20, 12, 20, 12])


def test_a_shift_by_a_cell_shifts_what_cells_say():
    """Away from the border, what is one cell further on is said one cell further on."""
    f = jax.jit(F)
    image = jnp.zeros((1, 64, 64, 1)).at[:, 20:28, 24:36].set(1.0)
    logits, boxes = f(PARAMS, image)
    moved, moved_boxes = f(PARAMS, jnp.roll(image, 8, 2))
    np.testing.assert_allclose(moved[:, 2:5, 3:6], logits[:, 2:5, 2:5], atol=1e-5)
    shift = np.array([0, 8, 0, 8])
    np.testing.assert_allclose(
        moved_boxes[:, 2:5, 3:6], np.asarray(boxes)[:, 2:5, 2:5] + shift, atol=1e-4
    )


def test_targets_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    low = rng.uniform(-6, 34, (30, 2))
    boxes = np.concatenate([low, low + rng.uniform(2, 8, (30, 2))], 1).astype(np.float32)
    labels = rng.integers(-1, 4, 30)
    cells, corners = np.zeros((4, 5), int), np.zeros((4, 5, 4), np.float32)
    for box, label in zip(boxes, labels, strict=True):
        row, column = (int(np.floor((box[i] + box[i + 2]) / 2 / 8)) for i in (0, 1))
        if label >= 0 and 0 <= row < 4 and 0 <= column < 5:
            cells[row, column], corners[row, column] = label + 1, box
    ours = jax.jit(cell_targets, static_argnums=2)(boxes, labels, (4, 5))
    assert 3 < (cells > 0).sum() < (labels >= 0).sum()  # some outside, or two in one cell
    np.testing.assert_array_equal(ours[0], cells)
    np.testing.assert_array_equal(ours[1], corners)
    with pytest.raises(ValueError, match="objects, 4"):
        cell_targets(boxes, labels[:3], (4, 5))


@pytest.mark.oracle
def test_variances_of_cells_are_those_of_draws():
    """Weights of the head are random: the last layer is linear in them, so moments are exact."""
    posterior = {
        **PARAMS,
        **{name: jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.1 + 0 * w), PARAMS[name])
           for name in ("head", "corners")},
    }  # fmt: skip
    moments = jaxeff.moments(F)(posterior, IMAGES)

    @jax.jit
    @jax.vmap
    def draw(key):
        drawn = dict(PARAMS)
        for name, one in zip(("head", "corners"), jax.random.split(key), strict=True):
            leaves, structure = jax.tree.flatten(PARAMS[name])
            keys = jax.random.split(one, len(leaves))
            drawn[name] = structure.unflatten(
                [
                    w + 0.1**0.5 * jax.random.normal(k, w.shape)
                    for k, w in zip(keys, leaves, strict=True)
                ]
            )
        return F(drawn, IMAGES)

    count = 4000
    for ours, theirs in zip(moments, draw(jax.random.split(jax.random.key(2), count)), strict=True):
        # The standard error of a variance of n normal draws is sqrt(2 / n) of it: five of them.
        np.testing.assert_allclose(ours.var, theirs.var(0), rtol=5 * (2 / count) ** 0.5)
