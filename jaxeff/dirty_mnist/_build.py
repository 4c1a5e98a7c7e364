"""`dirty_mnist`: the data set from its cache, built first where it isn't there.

```python
from jaxeff.dirty_mnist import Recipe, dirty_mnist

tiny = Recipe(                                           # of scikit-learn's digits, in seconds
    source="digits", train=8, test=8, labels=3, vae_epochs=2, vae_drops=(), members=2,
    member_epochs=1, candidates=200, surplus=1, largest_mi=1.0, largest_entropy=2.4,
    batch_size=64,
)
data = dirty_mnist(tiny, folder="cache", progress=None)  # dirty_mnist() is the published one
images, labels = data.train()                            # digits, and ambiguous ones three times
assert len(images) == len(data.digits.train_images) + 8 * 3
```
"""

import dataclasses
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import entropy

from jaxeff import data
from jaxeff.core import function_of_form, path_like, validate
from jaxeff.data import DataError, Dataset
from jaxeff.dirty_mnist import _recipe
from jaxeff.store import CheckpointError, cache_folder, load_metadata, load_pytree, save_pytree

Say = Callable[[str], None]


def build(
    recipe: _recipe.Recipe, source: Dataset, folder: Path, say: Say | None
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
    splits = {
        "train": (source.train_images, source.train_labels, recipe.train),
        "test": (source.test_images, source.test_labels, recipe.test),
    }
    for split, (_, labels, _) in splits.items():
        if missing := set(range(source.num_classes)) - set(labels.tolist()):
            raise DataError(f"{source.name}: no {split} image of class {min(missing)} to mix")

    vae, judge = _networks(recipe, source, folder, tell, None if say is not None else False)
    parts = {}
    for i, (split, (images, labels, n)) in enumerate(splits.items()):
        # A generator for each split: how many draws one takes doesn't change the other.
        rng = np.random.default_rng([recipe.seed, i])
        # More candidates than wanted, so that balancing has some to choose from in every bin.
        judged = _recipe.search(
            rng, recipe, judge, _recipe.encode(vae, images), labels, recipe.surplus * n, tell
        )
        rows = _recipe.balance_entropy(
            rng,
            entropy(judged.probs, axis=1),
            n,
            low=recipe.smallest_entropy,
            high=recipe.largest_entropy,
            bins=recipe.bins,
            power=recipe.power,
        )
        probs = np.asarray(judged.probs)[rows]
        parts[split] = {
            "images": np.asarray(judged.images)[rows],
            "labels": _recipe.draw_labels(rng, probs, recipe.labels),
            "probs": probs,
        }
    return parts


def _networks(
    recipe: _recipe.Recipe, source: Dataset, folder: Path, tell: Say, show: bool | None
) -> tuple[Any, Any]:
    """Trains the autoencoder, and the classifiers that judge what it draws."""
    keys = jax.random.split(jax.random.key(recipe.seed), 1 + recipe.members)
    tell(f"autoencoder, {recipe.vae_epochs} epochs")
    vae = _recipe.train_vae(keys[0], recipe, source, folder / "vae.safetensors", show)
    members = []
    for i, key in enumerate(keys[1:], 1):
        tell(f"LeNet {i} of {recipe.members}, {recipe.member_epochs} epochs")
        path = folder / f"lenet-{i}.safetensors"
        members.append(_recipe.train_member(key, recipe, source, path, show))
    return vae, _recipe.make_judge(recipe, source.name, vae, members)


@validate(root=path_like, progress=function_of_form("progress(line)"))
def dirty_mnist(
    recipe: _recipe.Recipe | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    progress: Say | None = print,
) -> _recipe.DirtyMNIST:
    """Loads MNIST and ambiguous digits made from it, or makes them.

    The first call trains the networks and makes the images, about ten minutes on one core; it can
    be killed and called again, and goes on. Later calls read the file it leaves, which holds a
    checksum of its content and the recipe: each recipe has a folder of its own, a file that is
    damaged or of another recipe is built anew, with a warning.

    Args:
        recipe: Recipe of the images; the published recipe if None. The same recipe makes the
            same images on the same machine and versions.
        folder: Folder that keeps the data set; ``dirty-mnist`` in `jaxeff.store.cache_folder` if
            None.
        root: Folder of the source's files, as `jaxeff.data.load` takes it.
        progress: Called with one line per step; None for silence.

    Returns:
        The data set, in host memory.

    Raises:
        DataError: The source is missing or damaged, or too few ambiguous images are found.
    """
    recipe = recipe or _recipe.Recipe()
    source = data.load(recipe.source, root)
    digest = recipe.digest(source)
    place = Path(folder) if folder is not None else cache_folder() / "dirty-mnist"
    # A folder per recipe and source: data sets of several recipes stay side by side.
    place = place.expanduser() / digest
    path = place / "ambiguous.safetensors"
    metadata = {"digest": digest, "recipe": _plain(recipe)}
    try:
        stored = _read_kept_images(path, metadata)
    except FileNotFoundError:
        stored = None
    # A damaged file is no reason to fail: all that it held can be made again.
    except CheckpointError as error:
        warnings.warn(f"Dirty-MNIST is built again: {error}", stacklevel=2)
        stored = None
    if stored is None:
        stored = build(recipe, source, place, progress)
        save_pytree(path, stored, metadata)
    # The names of `DirtyMNIST`'s fields: train_images, train_labels and so on.
    parts = {f"{s}_{n}": np.asarray(a) for s, split in stored.items() for n, a in split.items()}
    return _recipe.DirtyMNIST(digits=source, **parts)


def _read_kept_images(path: Path, metadata: dict[str, Any]) -> Any:
    stored = load_metadata(path)
    if stored != metadata:
        raise CheckpointError(f"{path} was made by another recipe or from other digits.")
    return jax.device_get(load_pytree(path))


def _plain(recipe: _recipe.Recipe) -> dict[str, Any]:
    """Converts the recipe to what comes back from JSON."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))
