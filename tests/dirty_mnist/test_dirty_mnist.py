"""Dirty-MNIST: each step of its recipe, and a small one built, cached, damaged and built again."""

import numpy as np
import pytest
from scipy.stats import entropy

from jaxeff.data import DataError
from jaxeff.dirty_mnist import (
    Recipe,
    balance_entropy,
    dirty_mnist,
    draw_labels,
    is_ambiguous,
    mix_codes,
)

SMALL = Recipe(
    source="digits", train=40, test=20, vae_epochs=6, vae_drops=(4,), members=2, member_epochs=4,
    candidates=3000, surplus=2, batch_size=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def dirty(folder):
    return dirty_mnist(SMALL, folder=folder, progress=None)


def test_mixtures_are_convex_and_of_distinct_classes():
    labels = np.arange(30) % 10
    # One-hot codes show the weight of every digit.
    weights = mix_codes(np.random.default_rng(0), np.eye(30), labels, 3, 200)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert (weights >= 0).all()
    assert ((weights > 0).sum(1) == 3).all()
    by_class = weights.reshape(200, 3, 10).sum(1)
    assert ((by_class > 0).sum(1) == 3).all()
    assert (weights > 0).any(0).all()  # every digit is used
    with pytest.raises(ValueError, match=r"4 digits of distinct classes out of 2"):
        mix_codes(np.random.default_rng(0), np.eye(6), labels[:6] % 2, 4, 5)


@pytest.mark.slow
def test_ambiguous_means_that_members_agree_on_several_classes():
    certain, torn, other = [9.0, 0, 0], [4.0, 4, 0], [0.0, 9, 0]
    logits = np.array([[certain, torn, certain], [certain, torn, other]])
    assert is_ambiguous(logits, 0.05, 0.05).tolist() == [False, True, False]


def test_entropies_become_balanced():
    rng = np.random.default_rng(1)
    given = np.concatenate([rng.uniform(0.1, 0.2, 9000), rng.uniform(1.0, 1.1, 1000), [1.9, 0.01]])
    bins = {"low": 0.05, "high": 1.6, "bins": 31}
    for power, share in ((1, 0.1), (0, 0.5)):
        chosen = given[balance_entropy(rng, given, 1000, power=power, **bins)]
        assert len(np.unique(chosen)) == 1000
        assert chosen.min() > 0.05
        assert chosen.max() < 1.6
        if power == 1:  # nothing is changed: 1,000 draws of a known share
            assert (chosen > 0.5).mean() == pytest.approx(share, abs=4 * np.sqrt(0.09 / 1000))
        else:  # flat, as far as the scarce ones last
            assert (chosen > 0.5).mean() > 0.35
    with pytest.raises(ValueError, match="only 1000 candidates"):
        balance_entropy(rng, given[-1002:], 1001, **bins)


def test_labels_follow_the_probabilities():
    probs = np.array([[0.7, 0.2, 0.1, 0.0], [0.0, 0.0, 1.0, 0.0]])
    labels = draw_labels(np.random.default_rng(2), probs, 10_000)
    assert labels.shape == (2, 10_000)
    frequencies = np.bincount(labels[0], minlength=4) / 10_000
    np.testing.assert_array_less(
        np.abs(frequencies - probs[0]), 4 * np.sqrt(probs[0] * (1 - probs[0]) / 10_000) + 1e-9
    )
    assert (labels[1] == 2).all()


@pytest.mark.slow
def test_holds_what_was_asked_for(dirty):
    for part, n in (("train", 40), ("test", 20)):
        images, labels, probs = (
            getattr(dirty, f"{part}_{x}") for x in ("images", "labels", "probs")
        )
        assert images.shape == (n, 28, 28, 1)
        assert images.dtype == np.uint8
        assert labels.shape == (n, 10)
        assert labels.dtype == np.int32
        np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
        held = entropy(probs, axis=1)
        assert held.min() >= 0.05
        assert held.max() <= 1.6
        # Labels are drawn, not chosen: the likely ones dominate, and they differ.
        assert np.take_along_axis(probs, labels, 1).mean() > probs.mean() * 2
        assert (labels != labels[:, :1]).any()
    images, labels = dirty.train()
    assert len(images) == len(labels) == 1437 + 400
    np.testing.assert_array_equal(images[1437 + 10 : 1437 + 20], dirty.train_images[[1] * 10])
    np.testing.assert_array_equal(labels[1437 + 10 : 1437 + 20], dirty.train_labels[1])


@pytest.mark.slow
def test_reads_its_cache(dirty, folder):
    lines = []
    again = dirty_mnist(SMALL, folder=folder, progress=lines.append)
    assert not lines
    np.testing.assert_array_equal(again.test_images, dirty.test_images)


@pytest.mark.slow
def test_a_damaged_cache_is_built_again_the_same(dirty, folder):
    path = next(folder.glob("*/ambiguous.safetensors"))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="built again: .*damaged"):
        again = dirty_mnist(SMALL, folder=folder, progress=None)
    np.testing.assert_array_equal(again.train_images, dirty.train_images)
    np.testing.assert_array_equal(again.train_labels, dirty.train_labels)


@pytest.mark.slow
def test_a_foreign_cache_is_refused(dirty, folder):
    path = next(folder.glob("*/ambiguous.safetensors"))
    other = Recipe(**{**vars(SMALL), "rounds": 1, "surplus": 10**6})
    place = folder / other.digest(dirty.digits)
    place.mkdir()
    (place / path.name).write_bytes(path.read_bytes())
    for network in path.parent.glob("*-*.safetensors"):
        (place / network.name).write_bytes(network.read_bytes())
    (place / "vae.safetensors").write_bytes((path.parent / "vae.safetensors").read_bytes())
    # Its own images can't be made: it asks for more of them than its one round finds.
    with (
        pytest.warns(UserWarning, match="another recipe"),
        pytest.raises(DataError, match=r"ambiguous images among 3000 mixtures, wanted 40000000"),
    ):
        dirty_mnist(other, folder=folder, progress=None)


@pytest.mark.slow
def test_recipes_that_make_no_sense():
    with pytest.raises(ValueError, match="members must be at least 2"):
        Recipe(members=1)
    with pytest.raises(ValueError, match="at least 1"):
        Recipe(train=0)
