import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxeff import data
from jaxeff.data._formats import read_idx


@settings(deadline=None, max_examples=25)
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=3, min_side=0, max_side=5)), st.booleans())
def test_reads_back_what_was_written(idx_bytes, tmp_path_factory, array, compressed):
    path = tmp_path_factory.mktemp("idx") / ("x.gz" if compressed else "x")
    content = idx_bytes(array)
    path.write_bytes(gzip.compress(content) if compressed else content)
    np.testing.assert_array_equal(read_idx(path, array.ndim), array)


@pytest.mark.slow
def test_loads_the_four_files(mnist_root, arrays):
    loaded = data.load("mnist", mnist_root)
    np.testing.assert_array_equal(loaded.train_images[..., 0], arrays["train-images-idx3-ubyte"])
    np.testing.assert_array_equal(loaded.test_labels, arrays["t10k-labels-idx1-ubyte"])
    assert loaded.train_images.dtype == np.uint8
    assert loaded.test_labels.dtype == np.int32
    assert loaded.num_classes == 10
    assert loaded.image_shape == (28, 28, 1)


@pytest.mark.slow
def test_cut_short(mnist_root):
    path = next((mnist_root / "mnist").glob("train-images*"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(data.DataError, match=r"fetch (it|the file) again") as caught:
        data.load("mnist", mnist_root)
    assert str(path) in str(caught.value)
    if path.suffix != ".gz":
        assert "4720 bytes" in str(caught.value)
        assert "found 4620" in str(caught.value)


def test_trailing_bytes(idx_bytes, tmp_path):
    path = tmp_path / "labels"
    path.write_bytes(idx_bytes(np.zeros(5, np.uint8)) + b"\0")
    with pytest.raises(data.DataError, match=r"so 13 bytes \(uncompressed\) were .* found 14"):
        read_idx(path, 1)


def test_shorter_than_a_header(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(b"\0\0\x08\x03\0")
    with pytest.raises(data.DataError, match=r"header of 16 bytes .* found 5 bytes"):
        read_idx(path, 3)


def test_magic_number_of_another_file(idx_bytes, mnist_root, arrays):
    images = next((mnist_root / "mnist").glob("t10k-images*"))
    content = idx_bytes(arrays["t10k-labels-idx1-ubyte"].repeat(10))
    images.write_bytes(gzip.compress(content) if images.suffix == ".gz" else content)
    with pytest.raises(data.DataError, match=r"0x00000803 .*found 0x00000801") as caught:
        data.load("mnist", mnist_root)
    assert str(images) in str(caught.value)


def test_gz_that_is_not_gzip(idx_bytes, tmp_path):
    path = tmp_path / "labels.gz"
    path.write_bytes(idx_bytes(np.zeros(5, np.uint8)))
    with pytest.raises(data.DataError, match="complete gzip file"):
        read_idx(path, 1)


@pytest.mark.parametrize(
    ("stem", "array", "message"),
    [
        ("train-labels-idx1-ubyte", np.zeros(5, np.uint8), "each of the 6 images .* found 5"),
        ("t10k-labels-idx1-ubyte", np.full(4, 10, np.uint8), "labels from 0 to 9, found 10"),
        ("t10k-images-idx3-ubyte", np.zeros((4, 32, 32), np.uint8), "28 x 28 .* found 32 x 32"),
    ],
)
def test_files_that_do_not_belong_together(idx_bytes, tmp_path, arrays, stem, array, message):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for name, content in (arrays | {stem: array}).items():
        (folder / name).write_bytes(idx_bytes(content))
    with pytest.raises(data.DataError, match=message) as caught:
        data.load("fashion-mnist", tmp_path)
    assert str(folder / stem) in str(caught.value)
