"""The recipe: networks, mixtures of digits, and what makes one of them ambiguous.

```python
import jax.numpy as jnp

from jaxeff.dirty_mnist import is_ambiguous

certain, torn, other = [9.0, 0, 0], [4.0, 4, 0], [0.0, 9, 0]
logits = jnp.array([[certain, torn, certain], [certain, torn, other]])     # of two members
assert is_ambiguous(logits, largest_mi=0.05, smallest_entropy=0.05).tolist() == [False, True, False]
```
"""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, UInt8

from jaxeff import core
from jaxeff.data import DataError, Dataset, normalize
from jaxeff.nn import VAE, LeNet5
from jaxeff.nn.models import negative_evidence_bound
from jaxeff.training import CheckpointError, FitResult, cross_entropy, fit, stateless
from jaxeff.uncertainty import decompose_logits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything the data set depends on besides its source's images.

    The defaults are the published recipe's; ours, where it gives no number, are marked.

    Attributes:
        source: Data set that the digits come from, as `jaxeff.data.load` takes it.
        seed: Seed of everything random (ours).
        train: Ambiguous training images, made from the source's training digits.
        test: Ambiguous test images, made from the source's test digits.
        labels: Labels drawn for each image.
        vae_epochs: Epochs of the autoencoder.
        vae_rate: The learning rate (Adam).
        vae_drops: Epochs after which its learning rate falls to a fifth.
        members: LeNets in the ensemble.
        member_epochs: Epochs of each (ours; Adam at 1e-3 with cosine decay). After more, members
            are so sure that they hardly ever agree on an image of high entropy.
        batch_size: Images per training step of either.
        parts: Numbers of digits that are mixed, each as often (ours).
        largest_mi: Images with more mutual information, in nats, are left out.
        smallest_entropy: Images with less entropy, in nats, are left out.
        largest_entropy: Upper edge of the bins over which entropy is balanced.
        bins: Number of those bins.
        power: A bin with a share h of the candidates gets a share proportional to h ** power.
        candidates: Mixtures tried per round (ours).
        surplus: Candidates found for each image that is kept (ours).
        rounds: Rounds after which the search for candidates is given up (ours).
    """

    source: str = "mnist"
    seed: int = 0
    train: int = 6000
    test: int = 6000
    labels: int = 10
    vae_epochs: int = 74
    vae_rate: float = 1e-3
    vae_drops: tuple[int, ...] = (25, 50, 65)
    members: int = 5
    member_epochs: int = 2
    batch_size: int = 128
    parts: tuple[int, ...] = (2, 3, 4)
    largest_mi: float = 0.05
    smallest_entropy: float = 0.05
    largest_entropy: float = 1.6
    bins: int = 50
    power: float = 0.2
    candidates: int = 30_000
    surplus: int = 8
    rounds: int = 60

    def __post_init__(self) -> None:
        for name in ("train", "test", "labels", "candidates"):
            core.check_count(f"Recipe.{name}", getattr(self, name))
        core.check_count("Recipe.members", self.members, 2)  # whose agreement is asked for
        core.check_count("Recipe.parts", min(self.parts, default=0))

    def digest(self, source: Dataset) -> str:
        """Hashes this recipe and the images that it is applied to."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        # The images count as well: other digits under the same name make another data set.
        digest = hashlib.sha256(text.encode())
        for array in (
            source.train_images, source.train_labels, source.test_images, source.test_labels
        ):  # fmt: skip
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True, eq=False)
class DirtyMNIST:
    """Clean digits beside ambiguous ones, as host (NumPy) arrays.

    Attributes:
        digits: The source, MNIST.
        train_images: Ambiguous images, uint8, ``[n, 28, 28, 1]``.
        train_labels: int32, ``[n, labels]``: drawn independently from the image's class
            probabilities.
        train_probs: Probabilities of the labels, the ensemble's mean, ``[n, classes]``.
        test_images: Ambiguous images made from test digits, ``[m, 28, 28, 1]``.
        test_labels: int32, ``[m, labels]``.
        test_probs: ``[m, classes]``.
    """

    digits: Dataset
    train_images: UInt8[np.ndarray, "n 28 28 1"]
    train_labels: Int[np.ndarray, "n labels"]
    train_probs: Float[np.ndarray, "n classes"]
    test_images: UInt8[np.ndarray, "m 28 28 1"]
    test_labels: Int[np.ndarray, "m labels"]
    test_probs: Float[np.ndarray, "m classes"]

    def train(self) -> tuple[UInt8[np.ndarray, "all 28 28 1"], Int[np.ndarray, " all"]]:
        """Joins the training set: the clean digits, then each ambiguous image once per label."""
        images = np.repeat(self.train_images, self.train_labels.shape[1], axis=0)
        return (
            np.concatenate([self.digits.train_images, images]),
            np.concatenate([self.digits.train_labels, self.train_labels.reshape(-1)]),
        )


def to_unit(images: Any) -> jax.Array:
    """Converts uint8 pixels to 0 to 1."""
    return jnp.asarray(images, jnp.float32) / 255


def train_vae(
    key: jax.Array, recipe: Recipe, source: Dataset, path: Path, progress: bool | None
) -> Any:
    """Trains the autoencoder on the source's training images, and returns its parameters."""
    init_key, fit_key = jax.random.split(key)
    f, params = core.functional(VAE(rngs=nnx.Rngs(init_key)))

    def loss(key: Any, params: Any, batch: Any) -> jax.Array:
        # Bernoulli pixels are probabilities; the classifier below takes normalized ones.
        x = to_unit(batch[0])
        logits, mean, log_var = f(params, key, x)
        return negative_evidence_bound(logits, mean, log_var, x)

    steps = len(source.train_images) // recipe.batch_size
    # The schedule counts updates, the recipe epochs.
    rate = optax.piecewise_constant_schedule(
        recipe.vae_rate, {epoch * steps: 0.2 for epoch in recipe.vae_drops}
    )

    optimizer = optax.adam(rate)
    data = (source.train_images,)
    train = partial(fit, fit_key, stateless(loss), params, data, optimizer=optimizer)
    return _trained(train, epochs=recipe.vae_epochs, batch_size=recipe.batch_size, checkpoint=path,
                    progress=progress)  # fmt: skip


def train_member(
    key: jax.Array, recipe: Recipe, source: Dataset, path: Path, progress: bool | None
) -> Any:
    """Trains one LeNet of the ensemble, and returns its parameters; see `train_vae`."""
    init_key, fit_key = jax.random.split(key)
    f, params = core.functional(LeNet5(padding="VALID", rngs=nnx.Rngs(init_key)))
    steps = len(source.train_images) // recipe.batch_size
    # Falls to zero at the last update; an epoch has as many as there are full batches.
    rate = optax.cosine_decay_schedule(1e-3, recipe.member_epochs * steps)

    loss = cross_entropy(lambda params, x: f(params, normalize(x, source.name)))
    data = (source.train_images, source.train_labels)
    train = partial(fit, fit_key, loss, params, data, optimizer=optax.adam(rate))
    return _trained(train, epochs=recipe.member_epochs, batch_size=recipe.batch_size,
                    checkpoint=path, progress=progress)  # fmt: skip


def _trained(train: Callable[..., FitResult], **options: Any) -> Any:
    """Trains, from the checkpoint on or anew where it is of no use; returns the parameters."""
    try:
        return train(**options).params
    except CheckpointError as error:
        warnings.warn(f"training starts again from the beginning: {error}", stacklevel=3)
        return train(**options, resume=False).params


@core.validate(
    codes=core.real_array(2),
    labels=core.integer_array(1),
    parts=core.static_integer(),
    n=core.static_integer(),
)
def mix_codes(
    rng: np.random.Generator,
    codes: Float[np.ndarray, "digits latents"],
    labels: Int[np.ndarray, " digits"],
    parts: int,
    n: int,
) -> Float[np.ndarray, "n latents"]:
    """Mixes the codes of digits of distinct classes (convex combinations).

    ```python
    import numpy as np
    from jaxeff.dirty_mnist import mix_codes

    labels = np.arange(30) % 10
    codes = mix_codes(np.random.default_rng(0), np.eye(30), labels, parts=3, n=200)
    assert ((codes > 0).sum(1) == 3).all() and np.allclose(codes.sum(1), 1)  # weights
    ```

    Args:
        rng: Source of randomness.
        codes: A code per digit.
        labels: The digits' classes.
        parts: Digits per combination. Their weights are uniform on the simplex.
        n: Number of combinations.

    Returns:
        The combinations.

    Raises:
        ValueError: The labels name fewer classes than there are parts.
    """
    # Sorted by class, the digits of a class are a run, drawn from by its start and length.
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    if not 1 <= parts <= len(starts):
        raise ValueError(f"can't mix {parts} digits of distinct classes out of {len(starts)}")
    # The order of uniform draws is a random permutation of the classes: its first entries are
    # distinct, each class equally likely.
    classes = np.argsort(rng.random((n, len(starts))), axis=1)[:, :parts]
    digits = order[starts[classes] + rng.integers(counts[classes])]
    # Dirichlet with all parameters 1: uniform on the simplex.
    weights = rng.dirichlet(np.ones(parts), n).astype(codes.dtype)
    return np.einsum("np,npl->nl", weights, codes[digits])


@core.validate(
    logits=core.real_array(3), largest_mi=core.non_negative, smallest_entropy=core.non_negative
)
def is_ambiguous(
    logits: Float[Array, "members n classes"], largest_mi: float, smallest_entropy: float
) -> Bool[Array, " n"]:
    """Tells whether an ensemble agrees that an image may be of several classes.

    Args:
        logits: Logits of each member.
        largest_mi: Upper bound on the mutual information of label and member, in nats.
        smallest_entropy: Lower bound on the entropy of the mean prediction, in nats.

    Returns:
        A mask.
    """
    uncertainty = decompose_logits(logits)
    return (uncertainty.epistemic <= largest_mi) & (uncertainty.total >= smallest_entropy)


@core.validate(
    entropy=core.real_array(1),
    n=core.static_integer(),
    low=core.non_negative,
    high=core.positive,
    bins=core.static_integer(),
    power=core.non_negative,
)
def balance_entropy(
    rng: np.random.Generator,
    entropy: Float[np.ndarray, " candidates"],
    n: int,
    *,
    low: float = 0.05,
    high: float = 1.6,
    bins: int = 50,
    power: float = 0.2,
) -> Int[np.ndarray, " n"]:
    """Chooses candidates so that all entropies occur about as often.

    Entropies are counted in equal bins; a bin that holds ``h`` candidates is drawn from in
    proportion to ``h ** power``, and each of its candidates alike.

    ```python
    import numpy as np
    from jaxeff.dirty_mnist import balance_entropy

    rng = np.random.default_rng(0)
    entropy = rng.uniform(0, 1.6, 1000) ** 2 / 1.6                       # low ones are frequent
    chosen = balance_entropy(rng, entropy, 100)
    assert np.median(entropy[chosen]) > np.median(entropy)
    ```

    Args:
        rng: Source of randomness.
        entropy: Entropy of each candidate's prediction, in nats.
        n: Number of candidates to choose, without repetition.
        low: Lower edge of the bins.
        high: Upper edge; candidates outside the bins are never chosen.
        bins: Number of bins.
        power: 1 keeps the candidates' own distribution, 0 makes it flat.

    Returns:
        Their indices, in random order.

    Raises:
        ValueError: Fewer than `n` candidates lie within the bins.
    """
    counts, edges = np.histogram(entropy, bins, (low, high))
    inside = (entropy >= low) & (entropy <= high)
    if inside.sum() < n:
        raise ValueError(
            f"{n} images are wanted, but only {inside.sum()} candidates have an entropy of "
            f"{low} to {high} nats"
        )
    # `digitize` puts the last edge into a bin of its own, `histogram` into the last bin.
    held = counts[np.clip(np.digitize(entropy, edges) - 1, 0, bins - 1)]
    # h candidates of weight h**(power - 1) give their bin the weight h**power.
    weights = np.where(inside, np.maximum(held, 1) ** (power - 1.0), 0.0)
    return rng.choice(len(entropy), n, replace=False, p=weights / weights.sum())


@core.validate(probs=core.real_array(2), labels=core.static_integer())
def draw_labels(
    rng: np.random.Generator, probs: Float[np.ndarray, "n classes"], labels: int
) -> Int[np.ndarray, "n labels"]:
    """Draws labels independently from each image's class probabilities (inverse transform).

    ```python
    import numpy as np
    from jaxeff.dirty_mnist import draw_labels

    drawn = draw_labels(np.random.default_rng(0), np.array([[0.5, 0.5, 0.0]]), 10)   # of one image
    assert set(drawn[0]) <= {0, 1}
    ```
    """
    edges = np.cumsum(probs, axis=1)
    # The last edge is 1 exactly: rounded below it, a draw could fall beyond the last class.
    edges /= edges[:, -1:]
    drawn = rng.random((len(probs), labels, 1)) >= edges[:, None, :]
    return drawn.sum(-1).astype(np.int32)


@core.validate(images=core.real_array(nan=True, empty=True))
def stretch_contrast(images: Float[Array, "..."]) -> Float[Array, "..."]:
    """Stretches decoded images, which are soft, to MNIST's contrast: clip(1.2 x - 0.15).

    ```python
    import jax.numpy as jnp
    from jaxeff.dirty_mnist import stretch_contrast

    images = stretch_contrast(jnp.array([0.1, 0.5, 0.99]))               # of what is decoded
    assert jnp.allclose(images, jnp.array([0.0, 0.45, 1.0]))
    ```
    """
    return jnp.clip(1.2 * images - 0.15, 0, 1)


BATCH = 1000


class Judged(NamedTuple):
    """Images, and what the ensemble predicts for them.

    Attributes:
        images: uint8, ``[n, 28, 28, 1]``.
        probs: The ensemble's mean class probabilities, ``[n, classes]``.
        ambiguous: Whether its members agree on them, ``[n]``.
    """

    images: UInt8[Array | np.ndarray, "n 28 28 1"]
    probs: Float[Array | np.ndarray, "n classes"]
    ambiguous: Bool[Array | np.ndarray, " n"]


Judge = Callable[[Float[np.ndarray, "n latents"]], Judged]


def make_judge(recipe: Recipe, source: str, vae: Any, members: list[Any]) -> Judge:
    """Makes a function that decodes codes ``[BATCH, latents]`` and judges the images.

    `source` names the digits, by whose statistics the ensemble's inputs are normalised; `vae` and
    `members` are the networks' parameters.
    """
    # Structure and shapes are enough: parameters come with each call, none are made here.
    decode, _ = core.functional(nnx.eval_shape(lambda: VAE(rngs=nnx.Rngs(0))), method="decode")
    lenet, _ = core.functional(nnx.eval_shape(lambda: LeNet5(padding="VALID", rngs=nnx.Rngs(0))))

    @jax.jit
    def judge(vae: Any, members: list[Any], codes: jax.Array) -> Judged:
        pixels = stretch_contrast(jax.nn.sigmoid(decode(vae, codes)))
        images = jnp.rint(pixels * 255).astype(jnp.uint8).reshape(-1, 28, 28, 1)
        # The images are judged as they will be stored. One member after the other: convolutions
        # vmapped over kernels are slow on CPUs.
        logits = jnp.stack([lenet(member, normalize(images, source)) for member in members])
        ambiguous = is_ambiguous(logits, recipe.largest_mi, recipe.smallest_entropy)
        return Judged(images, jax.nn.softmax(logits).mean(0), ambiguous)

    return partial(judge, vae, members)


def encode(vae: Any, images: UInt8[np.ndarray, "n 28 28 1"]) -> Float[np.ndarray, "n latents"]:
    """Encodes images: the means of their codes."""
    f, _ = core.functional(nnx.eval_shape(lambda: VAE(rngs=nnx.Rngs(0))), method="encode")
    return np.asarray(jax.jit(f)(vae, to_unit(images))[0])


def search(
    rng: np.random.Generator,
    recipe: Recipe,
    judge: Judge,
    codes: Float[np.ndarray, "digits latents"],
    labels: Int[np.ndarray, " digits"],
    wanted: int,
    tell: Callable[[str], None],
) -> Judged:
    """Tries mixtures, round by round, until there are enough ambiguous ones.

    Args:
        rng: Source of randomness.
        recipe: What to mix, how much of it per round, and when to give up.
        judge: From `make_judge`.
        codes: Latent codes of the digits that are mixed.
        labels: Their classes.
        wanted: Least number of ambiguous images to find.
        tell: Called with one line per round.

    Returns:
        The ambiguous images.

    Raises:
        DataError: Too few were found.
    """
    kept: list[Judged] = []
    tried = ambiguous = 0
    for _ in range(recipe.rounds):
        # Every number of parts as often, in batches of one size: one program for the search.
        for parts in recipe.parts * -(-recipe.candidates // (len(recipe.parts) * BATCH)):
            judged: Judged = jax.device_get(judge(mix_codes(rng, codes, labels, parts, BATCH)))
            # Selected on the host: how many are ambiguous is known only there.
            kept.append(Judged(*(array[judged.ambiguous] for array in judged)))
            tried, ambiguous = tried + BATCH, ambiguous + len(kept[-1].probs)
        tell(f"{ambiguous:,} ambiguous images among {tried:,} mixtures")
        if ambiguous >= wanted:
            return Judged(*(np.concatenate(arrays) for arrays in zip(*kept, strict=True)))
    raise DataError(
        f"only {ambiguous} ambiguous images among {tried} mixtures, wanted {wanted}: train the "
        "networks longer, ask for fewer images, or raise the recipe's rounds"
    )
