"""Data sets by name, normalised by their own constants, and augmented.

Files are looked for under the folder named by the environment variable ``JAXEFF_DATA`` (or passed
as ``root``): MNIST in ``mnist/`` or ``MNIST/raw/``, Fashion-MNIST in ``fashion-mnist/`` or
``FashionMNIST/raw/``, CIFAR-10 in ``cifar-10-batches-bin/`` or ``cifar-10/``. ``digits`` and
``digits-ood`` come with scikit-learn and need no files. Nothing is ever downloaded.

```python
from jaxeff.data import available, load

assert "digits" in available()                          # and what lies under JAXEFF_DATA
digits = load("digits")
assert len(digits.train_images) == len(digits.train_labels)
```
"""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped, UInt8

from jaxeff.core import path_like, real_array, static_integer, string, validate
from jaxeff.data import _formats as formats

VARIABLE = "JAXEFF_DATA"

_EMBEDDED = {"digits": formats.digits, "digits-ood": formats.digits_ood}
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "cifar-10": ("cifar-10-batches-bin", "cifar-10", "cifar-10/cifar-10-batches-bin"),
}
_IDX_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
_CLASSES = 10

NAMES = (*_FOLDERS, *_EMBEDDED)


@validate(name=string, root=path_like)
def load(name: str, root: str | os.PathLike[str] | None = None) -> formats.Dataset:
    """Loads a data set.

    Args:
        name: ``"mnist"``, ``"fashion-mnist"``, ``"cifar-10"``, ``"digits"`` or ``"digits-ood"``.
        root: The folder to look in; the one named by ``JAXEFF_DATA`` if None.

    Returns:
        The data set, in host memory.

    Raises:
        DataError: The name is unknown, no folder is set, or a file is missing or damaged; the
            message names the file, what was expected and what to do.
    """
    if name in _EMBEDDED:
        return _EMBEDDED[name]()
    if name not in _FOLDERS:
        raise formats.DataError(f"unknown data set {name!r}, expected one of {', '.join(NAMES)}")
    folder = _root(name, root)
    return _load_cifar(folder) if name == "cifar-10" else _load_idx(name, folder)


@validate(root=path_like)
def available(root: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Lists the data sets whose files are there (their content is not checked).

    Args:
        root: The folder to look in; the one named by ``JAXEFF_DATA`` if None.

    Returns:
        Names that `load` takes, the embedded ones always among them.
    """
    names = []
    for name in _FOLDERS:
        try:
            folder = _root(name, root)
            _cifar_files(folder) if name == "cifar-10" else _idx_files(name, folder)
        except formats.DataError:
            continue
        names.append(name)
    return (*names, *_EMBEDDED)


def _root(name: str, root: str | os.PathLike[str] | None) -> Path:
    chosen = root if root is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise formats.DataError(
            f"{name}: {VARIABLE} is not set; set it to the folder that holds "
            f"{_FOLDERS[name][0]}/, or use the embedded 'digits'"
        )
    path = Path(chosen).expanduser()
    if not path.is_dir():
        raise formats.DataError(
            f"{name}: expected a folder at {path} (from {VARIABLE if root is None else 'root'}), "
            "found none"
        )
    return path


def _idx_files(name: str, root: Path) -> dict[str, Path]:
    """Finds the four files, all in the first folder that holds any of them."""
    folders = [root / folder for folder in _FOLDERS[name]]
    missing: list[str] = []
    for folder in folders:
        paths: dict[str, Path] = {}
        for part, stem in _IDX_FILES.items():
            for path in (folder / f"{stem}.gz", folder / stem):  # the plain file wins
                if path.is_file():
                    paths[part] = path
        missing = [stem for part, stem in _IDX_FILES.items() if part not in paths]
        if not missing:
            return paths
        # A folder with some of the files is the one that was meant: what it lacks is named, and
        # files of two folders, perhaps of different origin, are never mixed.
        if paths:
            folders = [folder]
            break
    raise formats.DataError(_missing(name, missing, folders, "each plain or as .gz"))


def _load_idx(name: str, root: Path) -> formats.Dataset:
    paths = _idx_files(name, root)
    parts = {
        part: formats.read_idx(path, 3 if "images" in part else 1) for part, path in paths.items()
    }
    for split in ("train", "test"):
        images, images_path = parts[f"{split}_images"], paths[f"{split}_images"]
        labels, labels_path = parts[f"{split}_labels"], paths[f"{split}_labels"]
        if images.shape[1:] != (28, 28):
            size = " x ".join(map(str, images.shape[1:]))
            raise formats.DataError(
                f"{images_path}: expected images of 28 x 28 pixels, found {size}"
            )
        _check_labels(labels_path, labels, images_path, len(images))
    return _dataset(
        name,
        (parts["train_images"][..., None], parts["train_labels"]),
        (parts["test_images"][..., None], parts["test_labels"]),
    )


def _cifar_files(root: Path) -> tuple[Path, ...]:
    """Finds the five training batches and the test batch, or the archive alone."""
    folders = [root / folder for folder in _FOLDERS["cifar-10"]]
    names = (*formats.CIFAR_TRAIN_BATCHES, formats.CIFAR_TEST_BATCH)
    missing = list(names)
    for folder in folders:
        lacking = [name for name in names if not (folder / name).is_file()]
        if not lacking:
            return tuple(folder / name for name in names)
        # A folder that has some of the files is the one that was meant.
        if len(lacking) < len(missing):
            missing, folders = lacking, [folder]
            break
    else:
        for folder in folders:
            if (folder / formats.CIFAR_ARCHIVE).is_file():
                return (folder / formats.CIFAR_ARCHIVE,)
    raise formats.DataError(
        _missing("cifar-10", missing, folders, f"or {formats.CIFAR_ARCHIVE} instead of them")
    )


def _load_cifar(root: Path) -> formats.Dataset:
    paths = _cifar_files(root)
    if len(paths) == 1:
        train, test = formats.read_cifar_archive(paths[0])
    else:
        batches = [formats.read_cifar_batch(path) for path in paths]
        images, labels = zip(*batches[:-1], strict=True)
        train, test = (np.concatenate(images), np.concatenate(labels)), batches[-1]
    for split, path in ((train, paths[0]), (test, paths[-1])):
        _check_labels(path, split[1], path, len(split[0]))
    return _dataset("cifar-10", train, test)


def _check_labels(path: Path, labels: np.ndarray, images_path: Path, images: int) -> None:
    if len(labels) != images or images == 0:
        raise formats.DataError(
            f"{path}: expected one label for each of the {images} images of {images_path.name} "
            f"(and at least one), found {len(labels)}"
        )
    if labels.max() >= _CLASSES:
        raise formats.DataError(
            f"{path}: expected labels from 0 to {_CLASSES - 1}, found {labels.max()}"
        )


def _missing(name: str, files: list[str], folders: list[Path], form: str) -> str:
    places = " and ".join(str(folder) for folder in folders)
    return (
        f"{name}: expected {', '.join(files)} ({form}), looked in {places}; put the files there or "
        f"set {VARIABLE} to the folder that holds {_FOLDERS[name][0]}/"
    )


def _dataset(
    name: str, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> formats.Dataset:
    return formats.Dataset(
        name,
        train[0],
        train[1].astype(np.int32),
        test[0],
        test[1].astype(np.int32),
        num_classes=_CLASSES,
    )


# Of the training pixels scaled to [0, 1]; MNIST and Fashion-MNIST rounded as in Klein's thesis.
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "digits": ((0.1558,), (0.2774,)),
}


@validate(images=real_array(nan=True, empty=True), name=string)
def normalize(
    images: UInt8[Array | np.ndarray, "*batch channels"]
    | Float[Array | np.ndarray, "*batch channels"],
    name: str,
) -> Float[Array, "*batch channels"]:
    """Scales images to zero mean and unit variance of a training set: ``(image - mean) / std``.

    `normalize` takes mean and standard deviation per channel of each training set:

    ```python
    import numpy as np

    from jaxeff.data import normalize

    white = np.full((1, 28, 28, 1), 255, np.uint8)
    assert abs(normalize(white, "mnist") - (1 - 0.1307) / 0.3081).max() < 1e-5
    ```

    Sharp edges:
        An out-of-domain image must be normalised as the model's own training data was, so pass the
        name of the *model's* data set: ``normalize(fashion.test_images, "mnist")``.

    Args:
        images: NHWC, or any shape with channels last. uint8 is taken as 0 to 255, a float dtype
            as already scaled to [0, 1].
        name: The data set whose constants to use.

    Returns:
        float32 (or the floating dtype that came in), the same shape.

    Raises:
        DataError: There are no constants for the name, or the channels don't fit.
        TypeError: The dtype is neither uint8 nor floating.
    """
    if name not in CONSTANTS:
        raise formats.DataError(
            f"no normalisation constants for {name!r}, expected one of {sorted(CONSTANTS)}; "
            "pass the data set the model was trained on"
        )
    mean, std = CONSTANTS[name]
    if images.shape[-1:] != (len(mean),):
        raise formats.DataError(
            f"{name}: expected images with {len(mean)} channel(s) last, found shape {images.shape}"
        )
    if images.dtype == np.uint8:
        scaled = jnp.asarray(images, jnp.float32) / 255
    elif jnp.issubdtype(images.dtype, jnp.floating):
        scaled = jnp.asarray(images)
    else:
        raise TypeError(f"expected uint8 or floating images, found {images.dtype}")
    # Ranks are made equal here: JAX's promotion of ranks may be refused.
    shape = (1,) * (scaled.ndim - 1) + (len(mean),)
    # In the dtype of the images, so that bfloat16 isn't promoted.
    centre, spread = (jnp.asarray(v, scaled.dtype).reshape(shape) for v in (mean, std))
    return (scaled - centre) / spread


@validate(images=real_array(nan=True), pad=static_integer(0))
def augment(
    key: PRNGKeyArray,
    images: Shaped[Array, "batch height width channels"],
    pad: int = 4,
    flip: bool = True,
) -> Shaped[Array, "batch height width channels"]:
    """Shifts each image by up to ``pad`` pixels (zeros move in) and mirrors half of them.

    Pure and jittable (``pad`` and ``flip`` are static). Augment before normalising, or zeros will
    not be black.

    `augment` is the usual one of CIFAR-10: a random crop of the padded image, and a random flip.

    ```python
    import jax
    import jax.numpy as jnp

    from jaxeff.data import augment

    images = jnp.ones((8, 32, 32, 3))
    assert augment(jax.random.key(0), images, pad=4).shape == images.shape
    ```

    Args:
        key: Random key.
        images: NHWC, any dtype.
        pad: Largest shift in pixels, up to which each direction is equally likely.
        flip: Whether to mirror left and right with probability 1/2.

    Returns:
        Images of the same shape and dtype.
    """
    crop_key, flip_key = jax.random.split(key)
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    # Corners of the crop in the padded image: 0 shifts by +pad, 2 pad by -pad.
    corners = jax.random.randint(crop_key, (len(images), 2), 0, 2 * pad + 1)
    # `dynamic_slice` takes indices of one dtype only.
    zero = jnp.zeros((), corners.dtype)

    def crop(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], zero), images.shape[1:])

    cropped = jax.vmap(crop)(padded, corners)
    if not flip:
        return cropped
    mirrored = jax.random.bernoulli(flip_key, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, cropped[:, :, ::-1], cropped)
