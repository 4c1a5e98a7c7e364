"""The check that all quantizers' tests share, for those of `contrib`."""

from tests.compression.conftest import check_method

__all__ = ["check_method"]  # a fixture
