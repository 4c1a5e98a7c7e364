"""Architectures of torchvision, timm, keras.applications and transformers, with random weights.

Each is built by its library's own constructor, at its published size and for images of the size
that it was made for; those of transformers have two narrow layers.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Built = tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]
"""A model, and the shapes of an example of its data."""

# Names that timm's documentation and papers compare; each family once or twice.
_TIMM = """
    beit_base_patch16_224 beitv2_base_patch16_224 caformer_s18 cait_xxs24_224 coat_lite_tiny
    coatnet_0_rw_224 convformer_s18 convit_tiny convmixer_768_32 convnext_atto convnext_tiny
    convnextv2_atto crossvit_tiny_240 cspdarknet53 cspresnet50 darknet53 davit_tiny
    deit3_small_patch16_224 deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 densenet121
    dla34 dm_nfnet_f0 dpn68 eca_nfnet_l0 ecaresnet50d edgenext_xx_small efficientformer_l1
    efficientformerv2_s0 efficientnet_b0 efficientnet_lite0 efficientnetv2_rw_t efficientvit_b0
    efficientvit_m0 eva02_tiny_patch14_224 fastvit_t8 fbnetc_100 focalnet_tiny_srf gcvit_xxtiny
    gernet_s ghostnet_100 ghostnetv2_100 gmixer_24_224 gmlp_s16_224 hardcorenas_a hgnet_tiny
    hgnetv2_b0 hiera_tiny_224 hrnet_w18_small inception_next_tiny inception_resnet_v2
    inception_v3 inception_v4 lcnet_050 legacy_seresnet18 levit_128s mambaout_femto
    maxvit_tiny_rw_224 mixer_s32_224 mixnet_s mnasnet_100 mobilenetv2_100 mobilenetv3_large_100
    mobilenetv3_small_100 mobilenetv4_conv_small mobilenetv4_hybrid_medium mobileone_s0
    mobilevit_xxs mobilevitv2_050 mvitv2_tiny nasnetalarge nest_tiny nf_resnet50 nfnet_f0
    pit_ti_224 pnasnet5large poolformer_s12 pvt_v2_b0 regnetx_002 regnety_002 regnetz_b16
    repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_26w_4s resmlp_12_224 resnest14d resnet18
    resnet26d resnet34 resnet50 resnet50d resnetv2_50 resnext50_32x4d rexnet_100 selecsls42b
    semnasnet_075 sequencer2d_s seresnet50 shvit_s1 skresnet18 spnasnet_100 starnet_s1
    swin_s3_tiny_224 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 tf_efficientnet_b0
    tinynet_e tiny_vit_5m_224 tnt_s_legacy_patch16_224 tresnet_m twins_pcpvt_small
    twins_svt_small vgg11 vgg16_bn visformer_tiny vit_base_patch16_clip_224
    vit_base_patch16_siglip_224 vit_small_patch14_dinov2 vit_small_patch32_224
    vit_tiny_patch16_224 vitamin_small_224 volo_d1_224 vovnet39a wide_resnet50_2 xception41
    xcit_nano_12_p16_224
"""

_NARROW = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32,
    "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4,
    "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "ffn_dim": 48,
    "word_embed_proj_dim": 32, "embedding_size": 16, "head_dim": 8, "state_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Settings that make a configuration small, of those that it has."""

# The class of the model, the shape of its data, and settings that aren't as above.
_TOKENS: tuple[int, ...] = (1, 8)
_PIXELS: tuple[int, ...] = (1, 3, 32, 32)
_TRANSFORMERS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "AlbertModel": (_TOKENS, {}), "BertModel": (_TOKENS, {}), "BloomModel": (_TOKENS, {}),
    "DistilBertModel": (_TOKENS, {}), "ElectraModel": (_TOKENS, {}),
    "FalconModel": (_TOKENS, {"num_kv_heads": 4}), "GemmaModel": (_TOKENS, {}),
    "GPT2Model": (_TOKENS, {}), "GPTNeoXModel": (_TOKENS, {}), "LlamaModel": (_TOKENS, {}),
    "MambaModel": (_TOKENS, {}), "MistralModel": (_TOKENS, {}), "OPTModel": (_TOKENS, {}),
    "PhiModel": (_TOKENS, {}), "Qwen2Model": (_TOKENS, {}), "Qwen3Model": (_TOKENS, {}),
    "RobertaModel": (_TOKENS, {}), "T5EncoderModel": (_TOKENS, {"d_model": 32}),
    "BeitModel": (_PIXELS, {"image_size": 32, "patch_size": 8}),
    "CLIPVisionModel": (_PIXELS, {"image_size": 32, "patch_size": 8}),
    "ConvNextModel": (_PIXELS, {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}),
    "DeiTModel": (_PIXELS, {"image_size": 32, "patch_size": 8}),
    "Dinov2Model": (_PIXELS, {"image_size": 32, "patch_size": 8}),
    "MobileNetV1Model": (_PIXELS, {}), "MobileNetV2Model": (_PIXELS, {}),
    "MobileViTModel": (
        (1, 3, 64, 64),
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8] * 7},
    ),
    "ResNetModel": (
        _PIXELS, {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
    ),
    "SegformerModel": (
        (1, 3, 64, 64),
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "num_attention_heads": [1, 2, 3, 4]},
    ),
    "SwinModel": (
        _PIXELS,
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1],
         "num_heads": [2, 2], "window_size": 4},
    ),
    "ViTModel": (_PIXELS, {"image_size": 32, "patch_size": 8}),
}  # fmt: skip


def names(library: str) -> Sequence[str]:
    """Names of a library's architectures.

    Raises:
        ImportError: The library isn't installed.
    """
    if library == "torchvision":
        models = _torchvision_models()
        listed: Sequence[str] = models.list_models(module=models)
        return listed
    if library == "keras":
        applications = importlib.import_module("keras.applications")
        return sorted(n for n in dir(applications) if n[0].isupper())
    importlib.import_module(library)
    return _TIMM.split() if library == "timm" else [*_TRANSFORMERS]


def build(library: str, name: str) -> Built:
    """Builds an architecture, with the shapes of an example of its data.

    Raises:
        ImportError: The library isn't installed.
    """
    return _BUILDERS[library](name)


def _images(channels_last: bool, size: int) -> tuple[jax.ShapeDtypeStruct]:
    shape = (1, size, size, 3) if channels_last else (1, 3, size, size)
    return (jax.ShapeDtypeStruct(shape, jnp.float32),)


def _torchvision_models() -> Any:
    """Imports torchvision's models, also of a wheel for CUDA under PyTorch for processors."""
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError:
        # Its compiled operators don't load there. Only detectors call them, but these two have to
        # be declared for the import to succeed.
        library = importlib.import_module("torch.library")
        for operator in ("nms", "qnms"):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(f"torchvision::{operator}", schema)
        return importlib.import_module("torchvision.models")


def _of_torchvision(name: str) -> Built:
    model = _torchvision_models().get_model(name, weights=None).eval()
    return model, _images(False, 299 if name == "inception_v3" else 224)


def _of_timm(name: str) -> Built:
    _torchvision_models()  # timm imports it
    model = importlib.import_module("timm").create_model(name, pretrained=False).eval()
    return model, _images(False, model.default_cfg["input_size"][-1])


def _of_keras(name: str) -> Built:
    model = getattr(importlib.import_module("keras.applications"), name)(weights=None)
    return model, _images(True, model.input_shape[1] or 224)


def _of_transformers(name: str) -> Built:
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, name)
    shape, other = _TRANSFORMERS[name]
    fields = kind.config_class().to_dict()
    settings = {key: value for key, value in _NARROW.items() if key in fields}
    model = kind(kind.config_class(**settings | other)).eval()
    model.config.use_cache = False
    return model, (jax.ShapeDtypeStruct(shape, jnp.int32 if shape is _TOKENS else jnp.float32),)


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "torchvision": _of_torchvision, "timm": _of_timm, "keras": _of_keras,
    "transformers": _of_transformers,
}  # fmt: skip
LIBRARIES = tuple(_BUILDERS)
"""Names of the libraries, by which they are imported."""
