"""What a noise model is: protocols, and the base of those here.

`jaxeff.noisy` and `jaxeff.moments` take whatever fulfils a protocol; `NoiseModel` has what most
models share. `at` says where a layer is perturbed. `per` says which elements share one random draw:
none ("element"), those of one channel of one sample ("channel"), or all of one sample ("sample").
`along` says what an array of levels holds one entry for: each sample or each channel; without it an
array is broadcast as numpy does. `relative` gives a level in units of the signal's range: the
maximum minus the minimum of the array that is perturbed, without a gradient of its own. A model
declares those that it has, with the types below.

`DrawnNoise` states its random numbers beforehand, so that those of all sites are drawn at once: a
random function is hundreds of operations, which are compiled for every call and shape anew, and a
model with noise at a hundred sites would compile for most of a minute. A counter-based generator
(Salmon et al.) makes a number of a key and its place alone, so the numbers of all sites are one
array with a key per entry, and the very numbers that each site would have drawn by itself.

Sharp edges:
    The first axis counts samples and the last one channels, as in Flax. In weights the last axis
    counts channels, which share a draw over all other axes; there are no samples.
    The range is that of the whole array, so a sample's noise depends on the others in its batch.

References:
    Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Choice, Setting, check_broadcasts, jax_internals, with_leading_axes
from jaxeff.program import check_settings
from jaxeff.program.ir import DRAWN_TAG

PLACES = ("output", "weights", "input")


@runtime_checkable
class Noise(Protocol):
    """Noise model of `jaxeff.noisy`; any object with this method is one.

    A model may also have an attribute `at`, one of "output" (the default), "weights" and "input",
    and, if not all its numbers are levels of noise, the names of those that are, `levels`.
    """

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, of the same shape and dtype."""
        ...


@runtime_checkable
class SiteNoise(Noise, Protocol):
    """Noise model whose effect depends on the site, as that of a device does.

    `jaxeff.noisy` calls this method in the place of `perturb`, with a new key in every call but the
    same number for the same value of the same layer.
    """

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns a perturbed copy of `x`, the value that `site` numbers."""
        ...


Part: TypeAlias = tuple[Array, Array]
"""The mean and the variance of a random array, of independent entries."""


@runtime_checkable
class MomentNoise(Noise, Protocol):
    """A noise model that `jaxeff.moments` can integrate: a value and independent random arrays.

    A perturbed value is `combine(x, *draws)`, linear in each of the draws.
    """

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns mean and variance of each random array, whose shape broadcasts against `x`."""
        ...

    def combine(self, x: Any, *parts: Any) -> Any:
        """Returns the perturbed value, given draws of the random arrays."""
        ...


def check_noise(spec: Any) -> None:
    """Checks that a spec maps patterns to noise models or None.

    Raises:
        TypeError: It doesn't.
    """
    check_settings(
        spec, Noise, "a noise model with a method perturb(key, x), such as Additive(0.3)"
    )


def perturb_at(key: PRNGKeyArray, model: Noise, x: Any, site: int) -> Any:
    """Perturbs the value of a site; models of a device get the site's number too."""
    if isinstance(model, SiteNoise):
        return model.perturb_site(key, site, x)
    return model.perturb(key, x)


def place(model: Noise) -> str:
    """Returns the place of a layer that a model perturbs: "input", "output" or "weights".

    Raises:
        ValueError: Its `at` is none of the three.
    """
    at = getattr(model, "at", "output")
    if at not in PLACES:
        raise ValueError(f"A noise model's `at` must be one of {PLACES}, not {at!r}.")
    return at


Place = Annotated[str, Choice(*PLACES)]
Sharing = Annotated[str, Choice("element", "channel", "sample")]
Axis = Annotated[str | None, Choice(None, "sample", "channel")]
Flag = Annotated[bool, Choice(False, True)]


class NoiseModel(Setting):
    """Base of the noise models; subclasses are frozen dataclasses with these fields.

    Attributes:
        at: Place where a layer is perturbed: "output", "weights" or "input".
        per: Scope of one draw, in models that draw per element, channel or sample.
        along: Axis that an array of levels has one entry along.
        relative: Whether an amount of signal is in units of the signal's range.
    """

    at: Place = "output"
    per: Sharing = "element"
    along: Axis = None
    relative: Flag = False

    def __post_init__(self) -> None:
        """Checks the fields.

        Raises:
            TypeError: A number is none.
            ValueError: A number is out of bounds, a choice is unknown, or asks for the samples of
                weights.
        """
        super().__post_init__()
        for field in ("per", "along"):
            if self.at == "weights" and getattr(self, field) == "sample":
                raise ValueError(
                    f'{type(self).__name__}.{field}="sample" acts on samples, which weights don\'t '
                    'have; choose another, or at="output".'
                )

    def _aligned(self, field: str, x: Any) -> Array:
        """Reshapes a number or array of the model so that it broadcasts against `x`."""
        name, value = f"{type(self).__name__}.{field}", getattr(self, field)
        shape = jnp.shape(x)
        if self.along is None or jnp.ndim(value) == 0:
            check_broadcasts(name, value, shape)
            # NumPy's rule, spelt out in the shape: leading axes of size one.
            return with_leading_axes(value, shape)
        wanted = shape[:1] if self.along == "sample" else shape[-1:]
        if jnp.shape(value) != wanted:
            raise ValueError(
                f"{name} holds one number per {self.along} and must be a number or of shape "
                f"{wanted} for the array of shape {shape} that it acts on, but has shape "
                f"{jnp.shape(value)}."
            )
        if self.along == "channel":
            return with_leading_axes(value, shape)
        return jnp.reshape(value, (-1, *(1,) * (len(shape) - 1)))

    def _level(self, field: str, x: Any) -> Array:
        """Converts a level to the dtype of `x`, so that it never promotes the result."""
        return self._aligned(field, x).astype(jnp.result_type(x))

    def _amount(self, field: str, x: Any) -> Array:
        """Converts a level to the units of `x`: times its range if relative."""
        value = self._level(field, x)
        # A measured range is no parameter: a gradient through it would reward a smaller signal.
        return value * jax.lax.stop_gradient(jnp.max(x) - jnp.min(x)) if self.relative else value

    def _draw_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Computes the shape of fresh draws for an array, which broadcasts against it."""
        if self.per == "element":
            return shape
        distinct_axes = {0} if self.per == "sample" else {0, len(shape) - 1}
        if self.at == "weights":
            # The channels of weights are their outputs; samples don't exist there.
            distinct_axes = {len(shape) - 1}
        return tuple(n if axis in distinct_axes else 1 for axis, n in enumerate(shape))

    def _fitting(self, field: str, variance: Array, shape: tuple[int, ...]) -> Array:
        """Broadcasts a variance to the shape of the draws that it belongs to."""
        name = f"{type(self).__name__}.{field}"
        if self.relative:
            raise ValueError(
                f"{name} is in units of the signal's range, which is random itself: moments need "
                "an absolute amount, relative=False"
            )
        check_broadcasts(name, variance, shape)
        return jnp.broadcast_to(variance, shape)


def real_dtype(x: Any) -> Any:
    """Returns the dtype of an array that noise can act on."""
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(
            f"Noise needs a real floating-point array, but this one has dtype {dtype}; convert it "
            "with .astype(jnp.float32) or leave it out of the spec."
        )
    return dtype


LARGEST = 2**20
"""Entries of a draw up to which it is drawn with others: a larger one runs longer than it
compiles."""
_MOST = 2**22
"""Entries that are drawn in one loop, for they are held at once."""
_ROW = 256
"""Entries of a row of numbers of one key."""
_STEP = 32
"""Rows that are drawn in a step, at most."""


class Draw(NamedTuple):
    """Random numbers that a model needs.

    Attributes:
        shape: Their shape.
        dtype: Their dtype.
        normal: Whether they are standard normal, or uniform between 0 and 1.
    """

    shape: tuple[int, ...]
    dtype: Any
    normal: bool = True

    def numbers(self, key: PRNGKeyArray) -> Array:
        """Draws them."""
        draw = jax.random.normal if self.normal else jax.random.uniform
        return draw(key, self.shape, self.dtype)


@dataclass(frozen=True)
class DrawnNoise(NoiseModel):
    """Base of the models that state what they draw."""

    def _normal(self, x: Any) -> Draw:
        """Returns a draw of standard normal numbers for `x`."""
        return Draw(self._draw_shape(x.shape), real_dtype(x))

    def _uniform(self, x: Any) -> Draw:
        """Returns a draw of numbers for `x`, uniform between 0 and 1."""
        return Draw(self._draw_shape(x.shape), real_dtype(x), normal=False)

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns what is drawn for a value, of which the shape and dtype are enough."""
        raise NotImplementedError

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Perturbs a value by numbers that were drawn, one array per draw."""
        raise NotImplementedError

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Perturbs `x` by fresh numbers."""
        draws = self.draws(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)))
        numbers = [one.numbers(k) for one, k in zip(draws, draw_keys(key, draws), strict=True)]
        return self.apply(x, *numbers)


def draw_keys(key: PRNGKeyArray, draws: Sequence[Draw]) -> Sequence[PRNGKeyArray]:
    """Returns a key for each of a model's draws."""
    # Independent parts: from one key all would be the same numbers.
    return [key] if len(draws) == 1 else list(jax.random.split(key, len(draws)))


def fits(draw: Draw) -> bool:
    """Returns whether a draw can be, and is better, drawn with others."""
    return (
        jnp.dtype(draw.dtype) == jnp.float32
        and all(isinstance(n, int) for n in draw.shape)
        and 0 < np.prod(draw.shape, dtype=int) <= LARGEST
    )


def is_counted(key: PRNGKeyArray) -> bool:
    """Returns whether a key's numbers are a function of the key and their place."""
    # Without partitions, places share blocks of numbers.
    split = jax_internals.numbers_by_place()
    return split and str(jax.random.key_impl(key)) == "threefry2x32"


def counted_keys(key: PRNGKeyArray, numbers: Sequence[Sequence[int]]) -> PRNGKeyArray:
    """Folds numbers into a counted key, those of each level into the keys of the one before it.

    Args:
        key: The key.
        numbers: Numbers to fold in: by level, one for each result.
    """
    words: Any = jnp.broadcast_to(jax.random.key_data(key)[:, None], (2, len(numbers[0])))
    # A loop, so that the generator is compiled once for all levels.
    words, _ = jax.lax.scan(_fold, tuple(words), np.array(numbers, np.uint32))
    return jax.random.wrap_key_data(jnp.stack(words, -1), impl="threefry2x32")


def _fold(words: Any, level: Any) -> tuple[Any, None]:
    first, second = words
    return jax_internals.counter_words(first, second, level), None


def drawn_together(draws: Sequence[Draw], keys: PRNGKeyArray) -> list[Array]:
    """Draws numbers for all, as `Draw.numbers` would one by one.

    Args:
        draws: Draws that fit.
        keys: One counted key per draw, `[draws]`.
    """
    drawn: list[Any] = [None] * len(draws)
    words = jax.random.key_data(keys)
    for loop in _loops(draws):
        sizes = [int(np.prod(draws[i].shape)) for i in loop]
        # Every draw fills rows of its own: the key of a row is then one entry of a short table,
        # where one array put together of hundreds would compile for as long as what it replaces.
        rows = [-(-n // _ROW) for n in sizes]
        starts = np.cumsum([0, *rows])
        table = _numbers(words, loop, rows, draws[loop[0]].normal)
        for i, n, start, count in zip(loop, sizes, starts, rows, strict=False):
            # By an array of places, not as a slice: XLA compiles what differs in numbers anew, and
            # what differs in arrays once, so that equal layers share their functions.
            places = start + np.arange(count, dtype=np.int32)
            flat = table.at[places].get(mode="promise_in_bounds").reshape(-1)[:n]
            drawn[i] = checkpoint_name(flat.reshape(draws[i].shape), DRAWN_TAG)
    return drawn


def _loops(draws: Sequence[Draw]) -> Iterator[list[int]]:
    """Yields the numbers of draws that one loop makes: of one kind, and not too many."""
    for normal in (True, False):
        loop: list[int] = []
        total = 0
        for i, draw in enumerate(draws):
            if draw.normal != normal:
                continue
            size = int(np.prod(draw.shape))
            if loop and total + size > _MOST:
                yield loop
                loop, total = [], 0
            loop.append(i)
            total += size
        if loop:
            yield loop


def _numbers(words: Any, which: Sequence[int], rows: Sequence[int], normal: bool) -> Array:
    """Draws so many rows of numbers with each of some keys, one after the other."""
    # At least two steps: a loop of one is none to XLA.
    of_step = min(_STEP, -(-sum(rows) // 2))
    steps = max(2, -(-sum(rows) // of_step))
    left = steps * of_step - sum(rows)
    key_of = np.pad(np.repeat(np.asarray(which, np.uint32), rows), (0, left))
    row = np.pad(np.concatenate([np.arange(n, dtype=np.uint32) for n in rows]), (0, left))

    chunks = [a.reshape(steps, of_step) for a in (key_of, row)]
    return _drawn_in_steps(words, *chunks, normal)


# Compiled once for calls outside of `jit`; inside of one it leaves no trace.
@functools.partial(jax.jit, static_argnums=3, inline=True)
def _drawn_in_steps(words: Array, keys: Array, rows: Array, normal: bool) -> Array:
    """Draws rows of numbers, `[steps, rows of a step]` of them, by the number of their key."""

    def step(chunk: tuple[Array, Array]) -> Array:
        key, row = chunk
        places = row[:, None] * np.uint32(_ROW) + np.arange(_ROW, dtype=np.uint32)[None]
        first, second = (jnp.broadcast_to(words[key, i][:, None], places.shape) for i in range(2))
        high, low = jax_internals.counter_words(first, second, places)
        # The mantissa of a number between 1 and 2 is random, as in `jax.random.uniform`.
        bits = ((high ^ low) >> np.uint32(9)) | np.float32(1).view(np.uint32)
        uniform = jax.lax.bitcast_convert_type(bits, jnp.float32) - np.float32(1)
        if not normal:
            return uniform
        least = np.nextafter(np.float32(-1), np.float32(0))
        inner = jnp.maximum(least, uniform * (np.float32(1) - least) + least)
        return np.float32(np.sqrt(2)) * jax.lax.erf_inv(inner)

    # A loop, so that XLA compiles the generator once: outside of one it would put a copy into every
    # function that reads some of the numbers. A step's arrays stay in the processor's cache.
    return jax.lax.map(step, (keys, rows)).reshape(-1, _ROW)
