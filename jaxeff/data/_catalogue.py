"""Data sets by name: where each one's files may lie, and how they are read.

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

import numpy as np

from jaxeff.core import path_like, string, validate
from jaxeff.data import _cifar as cifar
from jaxeff.data._dataset import Dataset
from jaxeff.data._digits import digits, digits_ood
from jaxeff.data._errors import DataError
from jaxeff.data._idx import read_idx

VARIABLE = "JAXEFF_DATA"

_EMBEDDED = {"digits": digits, "digits-ood": digits_ood}
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
def load(name: str, root: str | os.PathLike[str] | None = None) -> Dataset:
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
        raise DataError(f"unknown data set {name!r}, expected one of {', '.join(NAMES)}")
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
    found = []
    for name in _FOLDERS:
        try:
            folder = _root(name, root)
            _cifar_files(folder) if name == "cifar-10" else _idx_files(name, folder)
        except DataError:
            continue
        found.append(name)
    return (*found, *_EMBEDDED)


def _root(name: str, root: str | os.PathLike[str] | None) -> Path:
    chosen = root if root is not None else os.environ.get(VARIABLE)
    if not chosen:
        raise DataError(
            f"{name}: {VARIABLE} is not set; set it to the folder that holds "
            f"{_FOLDERS[name][0]}/, or use the embedded 'digits'"
        )
    path = Path(chosen).expanduser()
    if not path.is_dir():
        raise DataError(
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
    raise DataError(_missing(name, missing, folders, "each plain or as .gz"))


def _load_idx(name: str, root: Path) -> Dataset:
    paths = _idx_files(name, root)
    parts = {part: read_idx(path, 3 if "images" in part else 1) for part, path in paths.items()}
    for split in ("train", "test"):
        images, images_path = parts[f"{split}_images"], paths[f"{split}_images"]
        labels, labels_path = parts[f"{split}_labels"], paths[f"{split}_labels"]
        if images.shape[1:] != (28, 28):
            found = " x ".join(map(str, images.shape[1:]))
            raise DataError(f"{images_path}: expected images of 28 x 28 pixels, found {found}")
        _check_labels(labels_path, labels, images_path, len(images))
    return _dataset(
        name,
        (parts["train_images"][..., None], parts["train_labels"]),
        (parts["test_images"][..., None], parts["test_labels"]),
    )


def _cifar_files(root: Path) -> tuple[Path, ...]:
    """Finds the five training batches and the test batch, or the archive alone."""
    folders = [root / folder for folder in _FOLDERS["cifar-10"]]
    names = (*cifar.TRAIN_BATCHES, cifar.TEST_BATCH)
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
            if (folder / cifar.ARCHIVE).is_file():
                return (folder / cifar.ARCHIVE,)
    raise DataError(_missing("cifar-10", missing, folders, f"or {cifar.ARCHIVE} instead of them"))


def _load_cifar(root: Path) -> Dataset:
    paths = _cifar_files(root)
    if len(paths) == 1:
        train, test = cifar.read_archive(paths[0])
    else:
        batches = [cifar.read_batch(path) for path in paths]
        images, labels = zip(*batches[:-1], strict=True)
        train, test = (np.concatenate(images), np.concatenate(labels)), batches[-1]
    for split, path in ((train, paths[0]), (test, paths[-1])):
        _check_labels(path, split[1], path, len(split[0]))
    return _dataset("cifar-10", train, test)


def _check_labels(path: Path, labels: np.ndarray, images_path: Path, images: int) -> None:
    if len(labels) != images or images == 0:
        raise DataError(
            f"{path}: expected one label for each of the {images} images of {images_path.name} "
            f"(and at least one), found {len(labels)}"
        )
    if labels.max() >= _CLASSES:
        raise DataError(f"{path}: expected labels from 0 to {_CLASSES - 1}, found {labels.max()}")


def _missing(name: str, files: list[str], folders: list[Path], form: str) -> str:
    places = " and ".join(str(folder) for folder in folders)
    return (
        f"{name}: expected {', '.join(files)} ({form}), looked in {places}; put the files there or "
        f"set {VARIABLE} to the folder that holds {_FOLDERS[name][0]}/"
    )


def _dataset(
    name: str, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> Dataset:
    return Dataset(
        name,
        train[0],
        train[1].astype(np.int32),
        test[0],
        test[1].astype(np.int32),
        num_classes=_CLASSES,
    )
