"""Recipe and content of a Dirty-MNIST."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

from jaxeff.core import check_count
from jaxeff.data import Dataset


@dataclass(frozen=True, kw_only=True)
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
            check_count(f"Recipe.{name}", getattr(self, name))
        check_count("Recipe.members", self.members, 2)  # whose agreement is asked for
        check_count("Recipe.parts", min(self.parts, default=0))

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


@dataclass(frozen=True, eq=False)
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
