import os

import numpy as np
import pytest

from jaxeff import data
from jaxeff.data._catalogue import CONSTANTS


def test_without_the_variable_only_embedded_data(monkeypatch):
    monkeypatch.delenv("JAXEFF_DATA", raising=False)
    assert data.available() == ("digits", "digits-ood")
    with pytest.raises(data.DataError, match=r"JAXEFF_DATA is not set.*'digits'"):
        data.load("mnist")


@pytest.mark.slow
def test_the_variable_is_read_when_called(monkeypatch, mnist_root):
    monkeypatch.setenv("JAXEFF_DATA", str(mnist_root))
    assert data.available() == ("mnist", "digits", "digits-ood")
    assert len(data.load("mnist").train_labels) == 6


def test_unknown_name():
    with pytest.raises(data.DataError, match="unknown data set 'mnits', expected one of mnist"):
        data.load("mnits")


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(data.DataError, match=r"expected a folder at .*nowhere.*root"):
        data.load("cifar-10", tmp_path / "nowhere")


def test_every_place_that_was_searched_is_named(tmp_path):
    with pytest.raises(data.DataError, match="expected train-images-idx3-ubyte, ") as caught:
        data.load("fashion-mnist", tmp_path)
    for part in ("fashion-mnist", "FashionMNIST", "t10k-labels-idx1-ubyte", "JAXEFF_DATA", ".gz"):
        assert part in str(caught.value)


@pytest.mark.slow
def test_one_missing_file(mnist_root):
    path = next((mnist_root / "mnist").glob("t10k-labels*"))
    path.unlink()
    assert data.available(mnist_root) == ("digits", "digits-ood")
    with pytest.raises(data.DataError, match="expected t10k-labels-idx1-ubyte ") as caught:
        data.load("mnist", mnist_root)
    assert "train-images" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("JAXEFF_DATA"), reason="JAXEFF_DATA is not set")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_real_data(name):
    """The real sets: their sizes, balanced test labels, and the constants of `normalize`."""
    if name not in data.available():
        pytest.skip(f"JAXEFF_DATA holds no {name}")
    loaded = data.load(name)
    size = 50_000 if name == "cifar-10" else 60_000
    assert (len(loaded.train_images), len(loaded.test_images)) == (size, 10_000)
    assert np.bincount(loaded.test_labels).shape == (10,)
    mean, std = CONSTANTS[name]
    values = np.arange(256) / 255
    for channel in range(len(mean)):  # how often each value occurs: a tenth of the time of a mean
        share = np.bincount(loaded.train_images[..., channel].ravel(), minlength=256)
        share = share / share.sum()
        # The constants are given to four decimals.
        found = share @ values
        assert found == pytest.approx(mean[channel], abs=5.1e-5)
        assert (share @ (values - found) ** 2) ** 0.5 == pytest.approx(std[channel], abs=1.1e-4)
