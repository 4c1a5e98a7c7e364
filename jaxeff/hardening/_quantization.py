"""Settings of the source's quantization-aware training, as a spec for `quantized`.

```python
from jaxeff.compression import initial_ranges, quantized, running
from jaxeff.hardening import relu_quantization
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy

f, params, (x, y) = small_classifier()
spec = relu_quantization(4, last="fc2", scale=0.5)
loss = cross_entropy(quantized(f, spec))                        # constant scale

spec = relu_quantization(4, last="fc2")
loss = cross_entropy(running(f, spec), mutable=True)            # dynamic scale; the state that
ranges = initial_ranges(f, spec, params, x)                     # `fit` starts from and returns
logits, _ = running(f, spec, training=False)(params, ranges, x)
```

Weights have one range per output channel, those of the last layer one for the whole tensor; only
ReLUs' outputs are quantized among the activations. With a constant scale k the largest value is
15 k with 4 bits, whose values are then multiples of k, and 256 k with 8. Noise goes around the
quantized network, `noisy(quantized(f, spec), ...)`: a ReLU's noise follows its rounding.

Source: Wang et al., "Hardening neural networks against noise", arXiv:2501.14531.
"""

from jaxeff.compression import Int
from jaxeff.core import check_number, positive, static_integer, string, validate

LARGEST = {4: 15.0, 8: 256.0}
"""Largest value of a constant scale of 1, by bit width, as published."""


@validate(bits=static_integer(1, 16), last=string, scale=positive, activations=string)
def relu_quantization(
    bits: int, *, last: str, scale: float | None = None, activations: str = "relu*"
) -> dict[str, Int | None]:
    """Makes the settings of quantization-aware training.

    Args:
        bits: Bit width of weights and activations.
        last: Site of the last layer.
        scale: The constant scale k of activations; None leaves their range open, to be found on
            every call by `quantized` or over a training by `jaxeff.compression.running`.
        activations: Pattern of the activations.

    Returns:
        A spec.

    Raises:
        ValueError: The scale isn't positive, or given for a bit width other than 4 and 8, for
            which the source names no largest value.
    """
    largest = None
    if scale is not None:
        check_number("scale", scale, low=1e-30)
        # The source states largest values, not steps; at other widths neither follows from it.
        if bits not in LARGEST:
            raise ValueError(
                f"A constant scale is defined for {sorted(LARGEST)} bits, not for {bits}; give the "
                "range itself: {activations: Int(bits, at='output', weights=False, range=...)}."
            )
        largest = scale * LARGEST[bits]
    # A name is more specific than a kind: for the last layer its own entry applies.
    return {
        last: Int(bits, per="tensor", activations=False),
        "*:linear": Int(bits, activations=False),
        activations: Int(bits, weights=False, at="output", activations_per="tensor", range=largest),
    }
