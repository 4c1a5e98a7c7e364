"""Networks of many kinds, small ones of the wiring that they are named after."""

from tests.pruning.networks import convolutional, sequential
from tests.pruning.networks.making import IMAGE, Network

NETWORKS = {**convolutional.NETWORKS, **sequential.NETWORKS}
__all__ = ["IMAGE", "NETWORKS", "Network"]
