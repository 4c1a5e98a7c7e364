"""Beside the core: models and methods that are tested, and that nothing else builds on.

Quantizers of one paper each, decoders of text with their tokenizers, a classifier of files, and
latencies of accelerators by formula. CONTRIBUTING says what belongs here. Names are found when they
are asked for: a decoder loads no search.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxeff.contrib._accelerators import DataflowPipeline as DataflowPipeline
    from jaxeff.contrib._accelerators import SystolicArray as SystolicArray
    from jaxeff.contrib._codebook import BinaryBases as BinaryBases
    from jaxeff.contrib._codebook import Discrete as Discrete
    from jaxeff.contrib._codebook import LearnedBasis as LearnedBasis
    from jaxeff.contrib._data_free import HalfQuadratic as HalfQuadratic
    from jaxeff.contrib._data_free import HalfWave as HalfWave
    from jaxeff.contrib._data_free import half_wave_levels as half_wave_levels
    from jaxeff.contrib._decoder import Decoder as Decoder
    from jaxeff.contrib._decoder import DecoderCache as DecoderCache
    from jaxeff.contrib._decoder import DecoderConfig as DecoderConfig
    from jaxeff.contrib._decoder import smollm2_135m as smollm2_135m
    from jaxeff.contrib._file_types import Magika as Magika
    from jaxeff.contrib._file_types import PretrainedMagika as PretrainedMagika
    from jaxeff.contrib._file_types import file_tokens as file_tokens
    from jaxeff.contrib._file_types import load_magika as load_magika
    from jaxeff.contrib._learned_bits import BayesianBits as BayesianBits
    from jaxeff.contrib._learned_bits import PosteriorBits as PosteriorBits
    from jaxeff.contrib._learned_bits import posterior_bits as posterior_bits
    from jaxeff.contrib._learned_step import LearnedWidth as LearnedWidth
    from jaxeff.contrib._learned_step import Relaxed as Relaxed
    from jaxeff.contrib._powers import Incremental as Incremental
    from jaxeff.contrib._powers import LearnedPowers as LearnedPowers
    from jaxeff.contrib._powers import incremental_quantization as incremental_quantization
    from jaxeff.contrib._powers import share_schedule as share_schedule
    from jaxeff.contrib._pretrained import PretrainedDecoder as PretrainedDecoder
    from jaxeff.contrib._pretrained import Tokenizer as Tokenizer
    from jaxeff.contrib._pretrained import load_decoder as load_decoder
    from jaxeff.contrib._pretrained import load_tokenizer as load_tokenizer
    from jaxeff.contrib._sampling import generate as generate
    from jaxeff.contrib._sampling import sample as sample

_MODULES = {
    "_accelerators": ("DataflowPipeline", "SystolicArray"),
    "_codebook": ("BinaryBases", "Discrete", "LearnedBasis"),
    "_data_free": ("HalfQuadratic", "HalfWave", "half_wave_levels"),
    "_decoder": ("Decoder", "DecoderCache", "DecoderConfig", "smollm2_135m"),
    "_file_types": ("Magika", "PretrainedMagika", "file_tokens", "load_magika"),
    "_learned_bits": ("BayesianBits", "PosteriorBits", "posterior_bits"),
    "_learned_step": ("LearnedWidth", "Relaxed"),
    "_powers": ("Incremental", "LearnedPowers", "incremental_quantization", "share_schedule"),
    "_pretrained": ("PretrainedDecoder", "Tokenizer", "load_decoder", "load_tokenizer"),
    "_sampling": ("generate", "sample"),
}
"""The public names by the module that has them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # found once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
