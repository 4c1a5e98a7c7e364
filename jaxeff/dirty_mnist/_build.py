"""Makes the ambiguous images: trains the networks, searches mixtures, balances and labels."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from scipy.stats import entropy

from jaxeff.data import DataError, Dataset
from jaxeff.dirty_mnist._ambiguous import balance_entropy, draw_labels
from jaxeff.dirty_mnist._networks import train_member, train_vae
from jaxeff.dirty_mnist._recipe import Recipe
from jaxeff.dirty_mnist._search import encode, make_judge, search

Say = Callable[[str], None]


def build(
    recipe: Recipe, source: Dataset, folder: Path, say: Say | None
) -> dict[str, dict[str, np.ndarray]]:
    """Makes the ambiguous images of both splits.

    Args:
        recipe: Recipe of the data set.
        source: The digits.
        folder: Folder of the networks' checkpoints; an interrupted build goes on from them.
        say: Called with one line per step; None for silence.

    Returns:
        ``images``, ``labels`` and ``probs`` for ``train`` and ``test``.

    Raises:
        DataError: A class has no digit, or too few ambiguous images are found.
    """
    tell: Say = say or (lambda line: None)
    show = None if say is not None else False
    splits = {
        "train": (source.train_images, source.train_labels, recipe.train),
        "test": (source.test_images, source.test_labels, recipe.test),
    }
    for split, (_, labels, _) in splits.items():
        if missing := set(range(source.num_classes)) - set(labels.tolist()):
            raise DataError(f"{source.name}: no {split} image of class {min(missing)} to mix")

    keys = jax.random.split(jax.random.key(recipe.seed), 1 + recipe.members)
    tell(f"autoencoder, {recipe.vae_epochs} epochs")
    vae = train_vae(keys[0], recipe, source, folder / "vae.safetensors", show)
    members = []
    for i, key in enumerate(keys[1:], 1):
        tell(f"LeNet {i} of {recipe.members}, {recipe.member_epochs} epochs")
        path = folder / f"lenet-{i}.safetensors"
        members.append(train_member(key, recipe, source, path, show))
    judge = make_judge(recipe, source.name, vae, members)

    made = {}
    for i, (split, (images, labels, n)) in enumerate(splits.items()):
        # A generator for each split: how many draws one takes doesn't change the other.
        rng = np.random.default_rng([recipe.seed, i])
        # More candidates than wanted, so that balancing has some to choose from in every bin.
        found = search(rng, recipe, judge, encode(vae, images), labels, recipe.surplus * n, tell)
        rows = balance_entropy(
            rng,
            entropy(found.probs, axis=1),
            n,
            low=recipe.smallest_entropy,
            high=recipe.largest_entropy,
            bins=recipe.bins,
            power=recipe.power,
        )
        probs = np.asarray(found.probs)[rows]
        made[split] = {
            "images": np.asarray(found.images)[rows],
            "labels": draw_labels(rng, probs, recipe.labels),
            "probs": probs,
        }
    return made
