"""What the suites of this package run: whole models with random weights, and calls on tensors.

Models of transformers and diffusers are made from configurations, of which those values stand here
that the sources name and defaults do not have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

from implicit_conv.testing import Case
from perf.layers import SUITES as LAYERS
from perf.upsampling import MEL_CHANNELS, MEL_FRAMES

MODELS, COMPILED, TENSORS = "models", "compiled", "tensors"  # suites
WHOLE = MODELS, COMPILED
IMAGE = (1, 3, 224, 224)
CLASSES = 1000
# Ronneberger et al. (2015) cut images into tiles, of which the network takes 16 n + 12 pixels: this
# is a smaller one than that of figure 1, which has 572.
UNET_TILE = (1, 1, 316, 316)
LATENT = (1, 4, 16, 16)  # of an image of 128 x 128 pixels
SPEECH = (1, 16000)  # one second
WHISPER_INPUT = (1, 80, 3000)  # 30 s, which the encoder always takes
BATCH = 8  # images of a training step


class Network(NamedTuple):
    """A model, or one call, with random weights."""

    name: str
    make: Callable[[], Any]  # a function of one tensor, or a module
    shape: tuple[int, ...]  # of its input
    package: str = "torch"  # that defines it
    trains: bool = False  # a step of training is timed: forward, backward and SGD
    compiled: bool = False  # ours is torch.compile with our backend, and not `enable`


def resnet(depths: tuple[int, ...], kind: str, widths: tuple[int, ...]) -> Any:
    """He et al., "Deep Residual Learning for Image Recognition" (2016), table 1."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"depths": [*depths], "hidden_sizes": [*widths], "layer_type": kind}
    return ResNetForImageClassification(ResNetConfig(**sizes, num_labels=CLASSES))


def mobilenet() -> Any:
    """Sandler et al., "MobileNetV2" (2018), table 2: width 1.0, the default."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=CLASSES))


def convnext() -> Any:
    """Liu et al., "A ConvNet for the 2020s" (2022), section 3: ConvNeXt-T."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768]}
    return ConvNextForImageClassification(ConvNextConfig(**sizes, num_labels=CLASSES))


def regnet() -> Any:
    """Radosavovic et al., "Designing Network Design Spaces" (2020), figure 12: RegNetY-4.0GF."""
    from transformers import RegNetConfig, RegNetForImageClassification

    sizes = {"depths": [2, 6, 12, 2], "hidden_sizes": [128, 192, 512, 1088], "groups_width": 64}
    config = RegNetConfig(**sizes, layer_type="y", num_labels=CLASSES)
    return RegNetForImageClassification(config)


def efficientnet() -> Any:
    """Tan and Le, "EfficientNet" (2019), table 1: B0. Its blocks are the default's, whose widths
    and depths are those of B7.
    """
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    scale = {"width_coefficient": 1.0, "depth_coefficient": 1.0}
    sizes = {"image_size": 224, "hidden_dim": 1280, "dropout_rate": 0.2}
    config = EfficientNetConfig(**scale, **sizes, num_labels=CLASSES)
    return EfficientNetForImageClassification(config)


def vae_decoder() -> Any:
    """Rombach et al., "High-Resolution Image Synthesis with Latent Diffusion Models" (2022): the
    decoder of Stable Diffusion 1, from latents to an image of eight times as many rows.
    """
    from diffusers import AutoencoderKL
    from torch.nn import Sequential

    levels = (128, 256, 512, 512)
    vae = AutoencoderKL(
        block_out_channels=levels,
        down_block_types=("DownEncoderBlock2D",) * len(levels),
        up_block_types=("UpDecoderBlock2D",) * len(levels),
        layers_per_block=2,
    )
    return Sequential(vae.post_quant_conv, vae.decoder)


def wav2vec() -> Any:
    """Baevski et al., "wav2vec 2.0" (2020), section 4.2: BASE, the default."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return Wav2Vec2Model(Wav2Vec2Config())


def whisper() -> Any:
    """Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), table 1:
    the encoder of "base".
    """
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    heads = {"encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    return WhisperEncoder(WhisperConfig(d_model=512, encoder_layers=6, **heads))


def unet() -> Any:
    """U-Net on one tile of an image."""
    from perf.models.written import UNet

    return UNet()


def hifi_gan() -> Any:
    """HiFi-GAN V1."""
    from perf.models.written import Generator

    return Generator("V1")


def call(case: Case) -> Any:
    """One convolution of a tensor, by torch's function."""
    from perf.models.call import Call

    return Call(case)


RESNET50: Callable[[], Any] = partial(resnet, (3, 4, 6, 3), "bottleneck", (256, 512, 1024, 2048))
RESNET18: Callable[[], Any] = partial(resnet, (2, 2, 2, 2), "basic", (64, 128, 256, 512))


def models() -> tuple[Network, ...]:
    """The whole models."""
    return (
        Network("ResNet-50", RESNET50, IMAGE, "transformers"),
        Network("MobileNetV2", mobilenet, IMAGE, "transformers"),
        Network("ConvNeXt-T", convnext, IMAGE, "transformers"),
        Network("RegNetY-4.0GF", regnet, IMAGE, "transformers"),
        Network("EfficientNet-B0", efficientnet, IMAGE, "transformers"),
        Network("U-Net", unet, UNET_TILE),
        Network("Stable Diffusion's VAE, decoder", vae_decoder, LATENT, "diffusers"),
        Network("wav2vec 2.0 BASE", wav2vec, SPEECH, "transformers"),
        Network("Whisper base, encoder", whisper, WHISPER_INPUT, "transformers"),
        Network("HiFi-GAN V1", hifi_gan, (1, MEL_CHANNELS, MEL_FRAMES)),
        Network("ResNet-18, training", RESNET18, (BATCH, *IMAGE[1:]), "transformers", trains=True),
    )


def tensors() -> tuple[Network, ...]:
    """The layers of suite "small"."""
    return tuple(
        Network(name, partial(call, case), case.problem.input_shape)
        for name, case in LAYERS["small"][1]()
    )


def compiled() -> tuple[Network, ...]:
    """The whole models, compiled for our backend."""
    return tuple(network._replace(compiled=True) for network in models())


SUITES: dict[str, Callable[[], tuple[Network, ...]]] = {
    MODELS: models,
    COMPILED: compiled,
    TENSORS: tensors,
}


def chosen(suite: str, names: list[str] | None) -> dict[int, Network]:
    """What of a suite has one of `names` in its name, by its place in the suite.

    Raises
    ------
    ValueError
        Nothing has.
    """
    wanted = names or [""]
    found = {
        at: one
        for at, one in enumerate(SUITES[suite]())
        if any(part in one.name for part in wanted)
    }
    if not found:
        raise ValueError(f"nothing of {suite} has {' or '.join(wanted)!r} in its name")
    return found


def installed(networks: dict[int, Network]) -> tuple[dict[int, Network], dict[str, str]]:
    """Those whose package is installed, and why the others are left out, by name."""
    found = {at: one for at, one in networks.items() if find_spec(one.package)}
    missing = [one for at, one in networks.items() if at not in found]
    return found, {
        one.name: f"{one.package} is not installed: pip install '.[models]'" for one in missing
    }
