import zipfile

import numpy as np
import pytest

from jaxeff import data
from jaxeff.data import _formats as formats


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A full-size delta-coded archive: constant images, but for one test image with all pixels."""
    root = tmp_path_factory.mktemp("root")
    (root / "cifar-10").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    red, green, blue = image.transpose(2, 0, 1)
    planes = np.stack([green, red - green, blue - green])
    rows = np.diff(planes, axis=2, prepend=np.zeros((3, 32, 1), np.uint8))
    delta = np.diff(rows, axis=1, prepend=np.zeros((3, 1, 32), np.uint8))
    batch = np.zeros((3, 2, 32, 32), np.uint8)
    arrays = {f"delta_batch_{i}": batch for i in range(1, 6)}
    arrays["delta_test"] = np.stack([delta, np.zeros_like(delta)], axis=1)
    arrays["labels_train"] = np.arange(10, dtype=np.uint8)
    arrays["labels_test"] = np.array([3, 9], np.uint8)
    np.savez_compressed(root / "cifar-10" / formats.CIFAR_ARCHIVE, **arrays)
    return root, image, arrays


@pytest.mark.slow
def test_archive(archive):
    root, image, _ = archive
    loaded = data.load("cifar-10", root)
    np.testing.assert_array_equal(loaded.test_images[0], image)
    np.testing.assert_array_equal(loaded.train_labels, np.arange(10))
    assert not loaded.train_images.any()
    assert loaded.train_images.shape == (10, 32, 32, 3)


def test_an_archive_may_be_packed_by_lzma(archive, tmp_path):
    """As the one that users fetch is."""
    (tmp_path / "cifar-10").mkdir()
    deflated, packed = (
        root / "cifar-10" / formats.CIFAR_ARCHIVE for root in (archive[0], tmp_path)
    )
    with zipfile.ZipFile(deflated) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as to:
        for name in source.namelist():
            to.writestr(name, source.read(name))
    loaded = data.load("cifar-10", tmp_path)
    np.testing.assert_array_equal(loaded.test_images[0], archive[1])


def test_archive_cut_short(archive, tmp_path):
    (tmp_path / "cifar-10").mkdir()
    path = tmp_path / "cifar-10" / formats.CIFAR_ARCHIVE
    path.write_bytes((archive[0] / "cifar-10" / formats.CIFAR_ARCHIVE).read_bytes()[:-40])
    with pytest.raises(data.DataError, match="complete npz archive") as caught:
        data.load("cifar-10", tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta_batch_3": None}, "expected an array 'delta_batch_3'"),
        ({"delta_test": np.zeros((3, 2, 28, 32), np.uint8)}, r"found uint8 \(3, 2, 28, 32\)"),
        ({"labels_test": np.zeros(2, np.int64)}, r"'labels_test' to be uint8 \(2,\), found int64"),
        ({"labels_test": np.full(2, 11, np.uint8)}, "labels from 0 to 9, found 11"),
    ],
)
def test_archive_with_other_arrays(archive, tmp_path, change, message):
    (tmp_path / "cifar-10").mkdir()
    arrays = {k: v for k, v in (archive[2] | change).items() if v is not None}
    np.savez_compressed(tmp_path / "cifar-10" / formats.CIFAR_ARCHIVE, **arrays)
    with pytest.raises(data.DataError, match=message):
        data.load("cifar-10", tmp_path)


def test_binary_batch(tmp_path):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (4, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, 4, np.uint8)
    records = [
        bytes([y]) + x[..., 0].tobytes() + x[..., 1].tobytes() + x[..., 2].tobytes()
        for x, y in zip(images, labels, strict=True)
    ]
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(b"".join(records))
    read_images, read_labels = formats.read_cifar_batch(path, records=4)
    np.testing.assert_array_equal(read_images, images)
    np.testing.assert_array_equal(read_labels, labels)


def test_a_batch_cut_between_two_records_is_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in (*formats.CIFAR_TRAIN_BATCHES, formats.CIFAR_TEST_BATCH):
        (folder / name).write_bytes(bytes(3073 * 9))
    with pytest.raises(data.DataError, match=r"expected 30730000 bytes .* found 27657"):
        data.load("cifar-10", tmp_path)


def test_a_missing_batch_is_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for name in formats.CIFAR_TRAIN_BATCHES:
        (folder / name).write_bytes(b"")
    with pytest.raises(data.DataError, match=r"expected test_batch.bin .*JAXEFF_DATA") as caught:
        data.load("cifar-10", tmp_path)
    assert str(folder) in str(caught.value)
    assert "data_batch_1.bin" not in str(caught.value)
