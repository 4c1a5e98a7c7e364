"""Architectures of torchvision, timm, Keras and transformers, made small by their own settings.

Each is built by its library's own class, with random weights, and read by `jaxeff.functional`; what
it computes alone is computed by PyTorch, or by Keras. Statistics of batch norms are drawn, so that
none is that of an untrained network.
"""

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxeff
from experiments.beyond.zoo.models.packages import Built

# What Keras computes by: read when it is imported.
os.environ.setdefault("KERAS_BACKEND", "jax")

_CLASSES = 10
_KEY = jax.random.key(0)


def _images(size: int, channels_last: bool = False) -> jax.Array:
    return jax.random.normal(_KEY, (2, size, size, 3) if channels_last else (2, 3, size, size))


def _tokens() -> jax.Array:
    return jax.random.randint(_KEY, (2, 6), 3, 32)


def _of_torch(model: Any, last: str, *inputs: jax.Array, result: str | None = None) -> Built:
    """Takes a module of PyTorch, and one of its results if it has several."""
    torch = importlib.import_module("torch")
    norms = torch.nn.modules.batchnorm._BatchNorm
    generator = torch.Generator().manual_seed(0)
    model.eval()
    for layer in model.modules():
        if isinstance(layer, norms):
            layer.running_mean.normal_(0, 0.1, generator=generator)
            layer.running_var.uniform_(0.5, 1.5, generator=generator)
    with torch.no_grad():
        for w in model.parameters():
            # Layers that begin with next to no effect, as after the first updates of a training:
            # behind a head of 1e-5 no transform would be seen.
            if w.abs().max() < 1e-3:
                w.normal_(0, 0.1, generator=generator)
        alone = model(*(torch.tensor(np.asarray(x)) for x in inputs))
    f, params = jaxeff.functional(model)
    if result is None:
        return f, params, inputs, alone.numpy(), last
    return lambda p, *xs: f(p, *xs)[result], params, inputs, alone[result].numpy(), last


def _seeded(make: Callable[[Any], Any]) -> Any:
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    return make(torch)


def _torchvision(make: Callable[[Any], Any], last: str, size: int = 32) -> Callable[[], Built]:
    """Makes a builder of what `make` builds of torchvision's models."""

    def build() -> Built:
        models = importlib.import_module("torchvision.models")
        return _of_torch(_seeded(lambda _: make(models)), last, _images(size))

    return build


def _resnet(models: Any) -> Any:
    nn = importlib.import_module("torch.nn")
    model = models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=_CLASSES)
    # Its widths are fixed: without its last two stages it is small.
    model.layer3 = model.layer4 = nn.Identity()
    model.fc = nn.Linear(128, _CLASSES)
    return model


def _efficientnet(models: Any) -> Any:
    block = models.efficientnet.MBConvConfig
    stages = [
        block(1, 3, 1, 8, 8, 1, 1.0, 1.0), block(4, 3, 2, 8, 16, 1, 1.0, 1.0),
        block(4, 5, 2, 16, 24, 2, 1.0, 1.0),
    ]  # fmt: skip
    return models.EfficientNet(stages, 0.0, num_classes=_CLASSES, last_channel=32)


def _convnext(models: Any) -> Any:
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(8, 16, 1), block(16, None, 1)], num_classes=_CLASSES)


def _regnet(models: Any) -> Any:
    settings = models.regnet.BlockParams.from_init_params(
        depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return models.RegNet(settings, num_classes=_CLASSES, stem_width=8)


def _swin(version: str) -> Callable[[Any], Any]:
    def make(models: Any) -> Any:
        kinds = models.swin_transformer
        other = (
            {"block": kinds.SwinTransformerBlockV2, "downsample_layer": kinds.PatchMergingV2}
            if version == "v2"
            else {}
        )
        return models.SwinTransformer(
            [2, 2], 16, [1, 1], [2, 2], [4, 4], num_classes=_CLASSES, stochastic_depth_prob=0.0,
            **other,
        )  # fmt: skip

    return make


def _vit(models: Any) -> Any:
    return models.VisionTransformer(
        image_size=16, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=24,
        num_classes=_CLASSES,
    )  # fmt: skip


def _maxvit(models: Any) -> Any:
    return models.MaxVit(
        (32, 32), stem_channels=8, partition_size=4, block_channels=[8, 16], block_layers=[1, 1],
        head_dim=4, stochastic_depth_prob=0.0, num_classes=_CLASSES,
    )  # fmt: skip


def _timm(name: str, last: str, size: int = 32, **settings: Any) -> Callable[[], Built]:
    """Makes a builder of timm's network of a name, with other settings."""

    def build() -> Built:
        timm = importlib.import_module("timm")
        model = _seeded(lambda _: timm.create_model(name, num_classes=_CLASSES, **settings))
        return _of_torch(model, last, _images(size))

    return build


def _timm_class(kind: str, last: str, size: int = 32, **settings: Any) -> Callable[[], Built]:
    """Makes a builder of a class of timm's, whose networks have fixed settings."""

    def build() -> Built:
        importlib.import_module("torchvision")
        file, name = kind.split(".")
        make = getattr(importlib.import_module(f"timm.models.{file}"), name)
        model = _seeded(lambda _: make(num_classes=_CLASSES, **settings))
        return _of_torch(model, last, _images(size))

    return build


def _keras(make: Callable[[Any], Any], last: str, size: int = 32) -> Callable[[], Built]:
    """Makes a builder of what `make` builds of keras.applications."""

    def build() -> Built:
        keras = importlib.import_module("keras")
        keras.backend.clear_session()
        keras.utils.set_random_seed(0)
        model = make(keras.applications)
        generator = np.random.default_rng(0)
        for v in model.non_trainable_variables:
            if v.path.endswith("moving_mean"):
                v.assign(0.1 * generator.normal(size=v.shape))
            if v.path.endswith("moving_variance"):
                v.assign(generator.uniform(0.5, 1.5, v.shape))
        x = _images(size, channels_last=True)
        f, params = jaxeff.functional(model)
        return f, params, (x,), jnp.asarray(model(x, training=False)), last

    return build


_SMALL = {"weights": None, "classes": _CLASSES, "input_shape": (32, 32, 3)}
_PLAIN = {**_SMALL, "classifier_activation": None}

_WIDTHS = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 16, "head_dim": 8,
    "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "n_inner": 24,
    "d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 2, "num_heads": 2, "state_size": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Settings that make a configuration small, of those that it has."""


def _transformers(
    name: str, last: str, images: int | None = None, **settings: Any
) -> Callable[[], Built]:
    """Makes a builder of a model of transformers, of images of a size or of tokens."""

    def build() -> Built:
        kind = getattr(importlib.import_module("transformers"), name)
        fields = kind.config_class().to_dict()
        small = {key: value for key, value in _WIDTHS.items() if key in fields}
        model = _seeded(lambda _: kind(kind.config_class(**small | settings)))
        model.config.use_cache = False
        with contextlib.suppress(AttributeError, ValueError):
            model.set_attn_implementation("sdpa")
        x = _tokens() if images is None else _images(images)
        return _of_torch(model, last, x, result="last_hidden_state")

    return build


def _brought(kind: str, last: str, *shapes: tuple[Any, ...]) -> Callable[[], Built]:
    """Makes a builder of a class of ours and inputs of shapes; "words" begin one of words."""

    def build() -> Built:
        file, name = kind.split(".")
        kinds = importlib.import_module(f"experiments.beyond.zoo.models.brought_{file}")
        inputs = [
            jax.random.randint(_KEY, shape[1:], 1, 16)
            if shape[0] == "words"
            else jax.random.normal(jax.random.key(i), shape)
            for i, shape in enumerate(shapes)
        ]
        return _of_torch(_seeded(lambda _: getattr(kinds, name)()), last, *inputs)

    return build


_PATCHED = {"img_size": 16, "patch_size": 4, "embed_dim": 16}
_ATTENTION = {"embed_dim": 16, "depth": 2, "num_heads": 2}

OF_LIBRARIES: dict[str, Callable[[], Built]] = {
    "torchvision-resnet": _torchvision(_resnet, "fc"),
    "torchvision-mobilenet_v2": _torchvision(
        lambda m: m.MobileNetV2(_CLASSES, 0.25, [[1, 8, 1, 1], [4, 16, 2, 2], [4, 24, 1, 2]]),
        "classifier/1",
    ),
    "torchvision-mobilenet_v3": _torchvision(
        lambda m: m.mobilenet_v3_small(width_mult=0.25, reduced_tail=True, num_classes=_CLASSES),
        "classifier/3",
    ),
    "torchvision-mnasnet": _torchvision(
        lambda m: m.MNASNet(0.1, num_classes=_CLASSES), "classifier/1"
    ),
    "torchvision-shufflenet": _torchvision(
        lambda m: m.ShuffleNetV2([2, 2, 2], [8, 16, 24, 32, 32], num_classes=_CLASSES), "fc"
    ),
    "torchvision-efficientnet": _torchvision(_efficientnet, "classifier/1"),
    "torchvision-densenet": _torchvision(
        lambda m: m.DenseNet(4, (2, 2), 8, num_classes=_CLASSES), "classifier"
    ),
    "torchvision-regnet": _torchvision(_regnet, "fc"),
    "torchvision-convnext": _torchvision(_convnext, "classifier/2"),
    "torchvision-vit": _torchvision(_vit, "heads/head", 16),
    "torchvision-swin": _torchvision(_swin("v1"), "head", 16),
    "torchvision-swin_v2": _torchvision(_swin("v2"), "head", 16),
    "torchvision-maxvit": _torchvision(_maxvit, "classifier/5"),
    "timm-deit": _timm(
        "deit_tiny_distilled_patch16_224", "head", 16, img_size=16, patch_size=4, **_ATTENTION
    ),
    "timm-eva02": _timm(
        "eva02_tiny_patch14_224", "head", 16, img_size=16, patch_size=4, **_ATTENTION
    ),
    "timm-beit": _timm(
        "beit_base_patch16_224", "head", 16, img_size=16, patch_size=4, **_ATTENTION
    ),
    "timm-cait": _timm("cait_xxs24_224", "head", 16, img_size=16, patch_size=4, **_ATTENTION),
    "timm-xcit": _timm(
        "xcit_nano_12_p16_224", "head", 32, img_size=32, patch_size=8, **_ATTENTION
    ),
    "timm-mixer": _timm_class("mlp_mixer.MlpMixer", "head", 16, **_PATCHED, num_blocks=2),
    "timm-convmixer": _timm_class(
        "convmixer.ConvMixer", "head", 16, dim=16, depth=2, kernel_size=3, patch_size=4
    ),
    "timm-ghostnet": _timm("ghostnet_050", "classifier"),
    "timm-poolformer": _timm_class(
        "metaformer.MetaFormer", "head/fc", depths=(1, 1), dims=(8, 16), use_mlp_head=False
    ),
    "keras-MobileNet": _keras(
        lambda a: a.MobileNet(alpha=0.1, **_PLAIN), "conv_preds"
    ),
    "keras-MobileNetV3Small": _keras(
        lambda a: a.MobileNetV3Small(alpha=0.1, **_PLAIN), "logits"
    ),
    "keras-DenseNet": _keras(
        lambda a: importlib.import_module("keras.src.applications.densenet").DenseNet(
            [1, 1, 1, 1], **_PLAIN
        ),
        "predictions",
    ),
    "keras-NASNet": _keras(
        lambda a: importlib.import_module("keras.src.applications.nasnet").NASNet(
            penultimate_filters=96, num_blocks=1, stem_block_filters=8, **_PLAIN
        ),
        "predictions",
    ),
    "transformers-bert": _transformers("BertModel", "encoder/layer/1/output/dense"),
    "transformers-gpt2": _transformers("GPT2Model", "h/1/mlp/c_proj"),
    "transformers-llama": _transformers("LlamaModel", "layers/1/mlp/down_proj"),
    "transformers-t5": _transformers(
        "T5EncoderModel", "encoder/block/1/layer/1/DenseReluDense/wo"
    ),
    "transformers-mamba": _transformers("MambaModel", "layers/1/mixer/out_proj"),
    "transformers-convnext": _transformers(
        "ConvNextModel", "encoder/stages/1/layers/0/pwconv2", 32,
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2,
    ),
    "transformers-segformer": _transformers(
        "SegformerModel", "stages/1/blocks/0/mlp/fc2", 32,
        num_encoder_blocks=2, hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2],
        sr_ratios=[4, 2], patch_sizes=[7, 3], strides=[4, 2], mlp_ratios=[2, 2],
    ),
    "torch-unet": _brought("images.UNet", "out", (2, 3, 16, 16)),
    "torch-yolo": _brought("images.YOLO", "head", (2, 3, 32, 32)),
    "torch-dqn": _brought("images.DQN", "advantage/2", (2, 4, 44, 44)),
    "torch-convlstm": _brought("images.ConvLSTM", "out", (2, 3, 1, 8, 8)),
    "torch-se_resnext": _brought("images.SEResNeXt", "fc", (2, 3, 16, 16)),
    "torch-squeezenet": _brought("images.SqueezeNet", "out", (2, 3, 18, 18)),
    "torch-vqvae": _brought("images.VQVAE", "out", (2, 1, 16, 16)),
    "torch-volume": _brought("images.Volume", "fc", (2, 1, 8, 8, 8)),
    "torch-eegnet": _brought("sequences.EEGNet", "fc", (2, 1, 8, 64)),
    "torch-tcn": _brought("sequences.TCN", "fc", (2, 4, 20)),
    "torch-wavenet": _brought("sequences.WaveNet", "out", ("words", 2, 12)),
    "torch-bilstm": _brought("sequences.BiLSTM", "fc", ("words", 2, 7)),
    "torch-packed_tagger": _brought("sequences.PackedTagger", "fc", ("words", 2, 7)),
    "torch-conformer": _brought("sequences.Conformer", "fc", (2, 8, 12)),
    "torch-convtasnet": _brought("sequences.ConvTasNet", "decoder", (2, 64)),
    "torch-spectral": _brought("sequences.Spectral", "mask", (2, 64)),
    "torch-translator": _brought("sequences.Translator", "fc", ("words", 2, 12)),
    "torch-attentive_gru": _brought("sequences.AttentiveGRU", "fc", (2, 6, 4)),
    "torch-textcnn": _brought("sequences.TextCNN", "fc", ("words", 2, 8)),
    "torch-fasttext": _brought("sequences.FastText", "fc", ("words", 2, 6)),
    "torch-state_space": _brought("sequences.StateSpace", "out", (2, 10, 4)),
    "torch-linear_attention": _brought("sequences.LinearAttention", "out", (2, 6, 8)),
    "torch-realnvp": _brought("functions.RealNVP", "nets/1/2", (5, 4)),
    "torch-mixture_density": _brought("functions.MixtureDensity", "head", (5, 3), (5, 1)),
    "torch-nerf": _brought("functions.NeRF", "color", (2, 3, 3)),
    "torch-siren": _brought("functions.Siren", "out", (5, 2)),
    "torch-pinn": _brought("functions.PINN", "net/2", (5, 2)),
    "torch-deeponet": _brought("functions.DeepONet", "branch/2", (2, 6), (4, 1)),
    "torch-fourier_operator": _brought("functions.FourierOperator", "out", (2, 1, 16)),
    "torch-graph_network": _brought("functions.GraphNetwork", "out", (6, 4)),
    "torch-pointnet": _brought("functions.PointNet", "fc", (2, 7, 3)),
    "torch-deep_sets": _brought("functions.DeepSets", "all/2", (3, 5, 2)),
    "torch-mixture_of_experts": _brought("functions.Mixture", "experts/3/2", (4, 4)),
    "torch-hypernetwork": _brought("functions.HyperNetwork", "out", (4, 2), (4, 3)),
    "torch-perceiver": _brought("functions.Perceiver", "fc", (2, 5, 4)),
    "torch-kan": _brought("functions.RadialKAN", "second", (4, 3)),
}  # fmt: skip
"""How each model is built, its name after its library's."""
