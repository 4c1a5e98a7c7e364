"""Formats of four to eight bits whose values share a scale in small groups: NF4, MX, NVFP4.

Each is a setting of the methods that are here already, `Grouped(Levels(...))` or
`Grouped(Floating(...))`.

```python
from jaxeff.compression import LayerQuantization, mxfp, mxint, nf4, nvfp4, quantized
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
logits = quantized(f, {"fc2": LayerQuantization(nf4(16))})(params, x)      # weights alone
logits = quantized(f, {"fc2": nvfp4()})(params, x)                         # what it reads, too
both = LayerQuantization(mxfp("e2m1"), mxint(8))                           # MXFP4 times MXINT8
logits = quantized(f, {"fc2": both})(params, x)
```
"""

from typing import Literal

from jaxeff.compression.quantizers.codebooks import Floating, Levels
from jaxeff.compression.quantizers.uniform import Grouped
from jaxeff.core import static_integer, validate

NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, scaled to [-1, 1], zero among them (QLoRA, appendix E)."""
MX, NV = 32, 16
"""Values that share a scale."""


@validate(size=static_integer(1))
def nf4(size: int = 64) -> Grouped:
    """Returns NF4: 16 values at the quantiles of a normal distribution.

    Args:
        size: Entries that share a scale.

    References:
        Dettmers et al., "QLoRA", arXiv:2305.14314, section 3 and appendix E.
    """
    return Grouped(Levels(NF4_VALUES), size)


@validate()
def mxfp(format: Literal["e2m1", "e2m3", "e3m2", "e4m3", "e5m2"] = "e2m1") -> Grouped:
    """Returns an MX format of floating-point values: MXFP4, MXFP6 or MXFP8.

    Args:
        format: Bits of exponent and mantissa of a value.

    Raises:
        ValueError: The format is unknown.

    References:
        Rouhani et al., "Microscaling Data Formats for Deep Learning", arXiv:2310.10537, table 1.
    """
    names = {
        "e2m1": "float4_e2m1fn", "e2m3": "float6_e2m3fn", "e3m2": "float6_e3m2fn",
        "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    }  # fmt: skip
    if format not in names:
        raise ValueError(f"mxfp: format must be one of {', '.join(names)}, not {format!r}.")
    return Grouped(Floating(names[format], scaling="shared_exponent"), MX)


@validate(bits=static_integer(2, 8))
def mxint(bits: int = 8) -> Grouped:
    """Returns an MX format of whole numbers that share an exponent.

    MXINT8 is the standard's; other widths have its grid of fewer values. Its values are those of
    two's complement without the lowest, as the standard allows. What lies in the middle of two
    becomes the lower.

    Args:
        bits: Width of a value, 2 to 8.

    References:
        Rouhani et al., arXiv:2310.10537, table 1.
    """
    most = 2 ** (bits - 1) - 1
    unit = 2.0 ** (2 - bits)
    values = tuple(k * unit for k in range(-most, most + 1))
    return Grouped(Levels(values, scaling="shared_exponent"), MX)


@validate()
def nvfp4() -> Grouped:
    """Returns NVFP4: 4-bit floats whose groups of 16 have a scale of 8 bits in a unit of the array.

    References:
        NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149.
    """
    return Grouped(Floating("float4_e2m1fn", scaling="e4m3"), NV)
