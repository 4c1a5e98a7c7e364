"""``generate``: a decoder's bundle continues a text."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxeff_export.cli._terminal import BundlePath, Seed, console, failures_in_one_line

if TYPE_CHECKING:
    from jaxeff_export.bundle import Bundle
    from jaxeff_export.cli._continuation import TextCodec

_PREFILL = "Another bundle with the same cache, which reads the prompt in blocks; may be repeated."
_TOKENIZER = "A GGUF file with the tokenizer; by default the bundle's, or bytes, of 256 tokens."


def _text(prompt: str) -> str:
    """Refuses what the system hands on as bytes of no character."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter("its bytes are no text in UTF-8.") from error
    return prompt


def generate(
    bundle: BundlePath,
    prompt: Annotated[str, typer.Option(help="The text to continue.", callback=_text)],
    prefill: Annotated[list[Path], typer.Option(help=_PREFILL)] = [],  # noqa: B006
    tokenizer: Annotated[Path | None, typer.Option(help=_TOKENIZER)] = None,
    tokens: Annotated[int, typer.Option(min=1, help="The most tokens to draw.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1, help="Of so many tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=1e-6, max=1, help="Of those with this probability.")
    ] = None,
    seed: Seed = 0,
    certainty: Annotated[
        bool, typer.Option("--certainty", help="A line for each token: how probable it was.")
    ] = False,
) -> None:
    """Continue a text by a decoder that keeps its cache; prints it token by token."""
    with failures_in_one_line():
        # JAX takes seconds to import: `--help` and other commands do without.
        import jax

        # What loads TVM and JAX, as above.
        from jaxeff_export.bundle import Bundle
        from jaxeff_export.cli._continuation import Continuation

        main = Bundle.load(bundle)
        decoder = Continuation(main, [Bundle.load(path) for path in prefill])
        codec = _codec(tokenizer, main, decoder.words)
        # What isn't asked for stays None, and leaves all tokens to be drawn.
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        drawn, shown, began = [], 0, time.perf_counter()
        if not certainty:
            typer.echo(prompt, nl=False)
        texts = decoder.continued(codec.encode(prompt), jax.random.key(seed), codec.end, **how)
        # Drawn one by one: a text is shown while it is written.
        for token in itertools.islice(texts, tokens):
            drawn.append(token.number)
            if certainty:
                spread = "" if token.deviation is None else f", logit within {token.deviation:.2g}"
                text = codec.decode([token.number])
                typer.echo(f"{token.probability:.3f}{spread}  {text!r}")
                continue
            # A character may be several tokens: its first bytes alone are none yet.
            text = codec.decode(drawn).rstrip("\ufffd")
            typer.echo(text[shown:], nl=False)
            shown = max(shown, len(text))
        seconds = time.perf_counter() - began
    if not certainty:
        typer.echo()
    console.print(f"{len(drawn)} tokens, {len(drawn) / seconds:.1f} a second", highlight=False)


def _codec(path: Path | None, bundle: Bundle, words: int) -> TextCodec:
    """Returns the tokenizer of a file, that of the bundle, or bytes."""
    # JAX, as above.
    from jaxeff.contrib import load_tokenizer
    from jaxeff.weights import WeightsError
    from jaxeff_export.bundle.files import BundleError
    from jaxeff_export.cli._continuation import ByteCodec

    if path is None:
        codec, origin = bundle.tokenizer, bundle.folder
        if codec is None and words == 256:
            return ByteCodec()
        if codec is None:
            raise BundleError(
                f"the decoder has {words} tokens, which are no bytes, and the bundle has no "
                "tokenizer: deploy(..., tokenizer=...), or give --tokenizer FILE.gguf"
            )
    else:
        try:
            codec, origin = load_tokenizer(path), path
        except (WeightsError, ImportError) as error:
            raise BundleError(str(error)) from error
    # Numbers of another vocabulary would be read as other tokens, without a word.
    if len(codec.tokens) != words:
        raise BundleError(
            f"{origin} has {len(codec.tokens)} tokens, the decoder {words}; give its own"
        )
    return codec
