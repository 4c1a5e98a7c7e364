"""The tensors that the methods' tests quantize: a weight with channels, and an activation."""

from jaxeff.compression import Tensor

WEIGHT = Tensor("fc", "weights_1", "weight", 2, find_channels=lambda: (1,))
DATA = Tensor("fc", "input_0", "activation", 2)
