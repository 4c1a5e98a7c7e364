import gzip

import numpy as np
import pytest

STEMS = {
    "train-images-idx3-ubyte": 6,
    "train-labels-idx1-ubyte": 6,
    "t10k-images-idx3-ubyte": 4,
    "t10k-labels-idx1-ubyte": 4,
}


def _idx_bytes(array):
    """An idx file written from its definition, independent of the reader."""
    header = bytes([0, 0, 8, array.ndim])
    return header + b"".join(size.to_bytes(4, "big") for size in array.shape) + array.tobytes()


@pytest.fixture(scope="session")
def idx_bytes():
    return _idx_bytes


@pytest.fixture
def arrays():
    rng = np.random.default_rng(3)
    return {
        stem: rng.integers(0, 256, (n, 28, 28), np.uint8)
        if "images" in stem
        else rng.integers(0, 10, n, np.uint8)
        for stem, n in STEMS.items()
    }


@pytest.fixture(params=["plain", "gz"])
def mnist_root(request, tmp_path, arrays):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for stem, array in arrays.items():
        if request.param == "gz":
            (folder / f"{stem}.gz").write_bytes(gzip.compress(_idx_bytes(array)))
        else:
            (folder / stem).write_bytes(_idx_bytes(array))
    return tmp_path
