"""Texts that decoders in bundles continue, token by token, on a state that stays in them.

A decoder is a bundle of ``step(params, tokens, count, cache) -> (logits, cache)`` with the cache as
state: tokens are int32 of shape [1, n], of which the first `count` count, and logits [1, words] are
those of the last that counts. Bundles of other n that share its cache read a prompt in blocks.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxeff.contrib import sample
from jaxeff.moment_propagation import Gaussian
from jaxeff_export.artifact import belongs
from jaxeff_export.bundle import Bundle
from jaxeff_export.bundle.files import BundleError


class TextCodec(Protocol):
    """Text as numbers of tokens, and back."""

    @property
    def end(self) -> int | None:
        """The number of the token that ends a text; None if there is none."""

    def encode(self, text: str) -> list[int]:
        """Gives the numbers of a text's tokens."""

    def decode(self, numbers: Sequence[int]) -> str:
        """Gives the text of tokens."""


class ByteCodec:
    """Tokens that are bytes of UTF-8."""

    end: int | None = None

    def encode(self, text: str) -> list[int]:
        """Gives a text's bytes."""
        return list(text.encode())

    def decode(self, numbers: Sequence[int]) -> str:
        """Gives the text of bytes; those that are none become U+FFFD."""
        return bytes(numbers).decode(errors="replace")


class DrawnToken(NamedTuple):
    """A token of a text.

    Attributes:
        number: The number in the vocabulary.
        probability: How probable the decoder held it to be, before any limits of sampling.
        deviation: Standard deviation of its logit, where the decoder propagates variances.
    """

    number: int
    probability: float
    deviation: float | None


class Continuation:
    """A decoder's bundle with those that read prompts in blocks, on one cache.

    Args:
        decoder: Takes a token at a time, or several.
        readers: Take other numbers of tokens.
    """

    def __init__(self, decoder: Bundle, readers: Sequence[Bundle] = ()) -> None:
        session = decoder.session()
        self._steps: dict[int, Callable[..., Any]] = {_length(decoder): session.step}
        # One cache for all: whichever reads next goes on where the last one ended.
        for reader in readers:
            self._steps[_length(reader)] = reader.session(shared=session).step
        manifest = decoder.manifest
        self.words = int(manifest.outputs[0].shape[-1])
        caches = [s for n in manifest.state for s in manifest.inputs if belongs(s, n)]
        # Slots are the second axis of keys and values; what counts tokens has no axes.
        self.room = min((int(s.shape[1]) for s in caches if len(s.shape) > 2), default=0)
        # A session begins with the example's cache, which may hold tokens already.
        held = [np.asarray(leaf) for leaf in jax.tree.leaves(session.state())]
        counts = [int(leaf) for leaf in held if leaf.ndim == 0 and leaf.dtype.kind in "iu"]
        self._read = max(counts, default=0)

    def read(self, tokens: Sequence[int]) -> Any:
        """Reads tokens, and returns the logits of what follows."""
        if not tokens or max(tokens) >= self.words:
            raise BundleError(
                f"a prompt has at least one token, and each is one of {self.words}; it has "
                f"{len(tokens)}, the largest {max(tokens, default=-1)}"
            )
        rest = list(tokens)
        while rest:
            length = self._block(len(rest))
            block, rest = rest[:length], rest[length:]
            # What doesn't count is overwritten by the tokens that follow.
            padded = np.zeros((1, length), np.int32)
            padded[0, : len(block)] = block
            result = self._steps[length](padded, np.int32(len(block)))
            self._read += len(block)
        return result

    def _block(self, left: int) -> int:
        """Chooses how many tokens the next call takes, padding included."""
        # Any decoder's bundle may be read here. Of one that writes blocks whole, the padding of a
        # block past the end of the cache would move it over what is there.
        fitting = sorted(n for n in self._steps if self._read + n <= self.room)
        if not fitting or self._read + left > self.room:
            raise BundleError(
                f"the cache has room for {self.room} tokens; {self._read} are read, {left} left"
            )
        # The smallest that takes all that is left, or the largest there is.
        return next((n for n in fitting if n >= left), fitting[-1])

    def continued(
        self, prompt: Sequence[int], key: jax.Array, end: int | None, **how: Any
    ) -> Iterator[DrawnToken]:
        """Draws tokens until the end token, or the end of the cache.

        Token i is drawn by `jax.random.fold_in(key, i)`; `end` is the number of the token that ends
        a text, or None; `how` are settings of `jaxeff.contrib.sample`.
        """
        draw = jax.jit(lambda key, logits: sample(key, logits, **how))
        result = self.read(prompt)
        for i in range(self.room - self._read):
            logits = result.mean if isinstance(result, Gaussian) else result
            number = int(draw(jax.random.fold_in(key, i), logits)[0])
            # In float64, and shifted: a softmax of any logits.
            shifted = np.asarray(logits[0], np.float64) - np.max(logits)
            probability = float(np.exp(shifted[number]) / np.exp(shifted).sum())
            variance = result.var[0, number] if isinstance(result, Gaussian) else None
            deviation = None if variance is None else float(np.sqrt(variance))
            yield DrawnToken(number, probability, deviation)
            if number == end:
                return
            result = self.read([number])


def _length(bundle: Bundle) -> int:
    """Returns how many tokens a decoder's bundle takes in a call."""
    manifest = bundle.manifest
    kept = {old for old, _ in manifest.places}
    data = [spec for i, spec in enumerate(manifest.inputs) if i not in kept]
    shapes = [(spec.dtype, len(spec.shape)) for spec in data]
    logits = manifest.outputs[0]
    is_decoder = shapes == [("int32", 2), ("int32", 0)] and data[0].shape[0] == 1
    if not manifest.state or not is_decoder or len(logits.shape) != 2:
        taken = ", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in data)
        raise BundleError(
            f"{bundle.folder} is no decoder: it takes {taken or 'nothing'} and keeps "
            f"{', '.join(manifest.state) or 'no state'}; deploy step(params, tokens, count, cache) "
            "-> (logits, cache) with tokens int32[1, n], count int32[] and the cache as state"
        )
    return int(data[0].shape[1])
