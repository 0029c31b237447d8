"""How long one sample is, in tokens, audio samples or pixels: from the spec, the preset or the config, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from catalog.errors import RigplanError
from catalog.presets import Preset

if TYPE_CHECKING:
    from planner.spec import DataSpec

IMAGE = ("image-classification", "video-classification", "semantic-segmentation", "contrastive")
DEFAULT_SEQUENCE_LENGTH = 2048  # tokens, at most, where neither spec nor preset says
DEFAULT_TARGET_LENGTH = 128  # label tokens
DEFAULT_AUDIO_SAMPLES = 160_000  # ten seconds at 16 kHz
DEFAULT_IMAGE_SIZE = 224  # pixels
# Models that take any image size without being rebuilt: they interpolate their positions or have none.
ANY_IMAGE_SIZE = ("dinov2", "dinov2_with_registers", "swin", "swinv2", "convnext", "convnextv2", "resnet", "segformer")
# Models whose position table starts behind the padding id: 514 rows are 512 positions.
PADDED_POSITIONS = ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "xlm-roberta-xl", "longformer")
ROWS_OF_PADDING = 2


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sizes of one sample: tokens (or audio samples, or frames), label tokens, pixels of an edge; 0 where unused."""

    sequence: int
    target: int
    image: int
    assumptions: tuple[str, ...]


def vision_part(config: Any) -> Any:
    """The config of the image tower, or the whole config."""
    return getattr(config, "vision_config", None) or config


def text_part(config: Any) -> Any:
    """The config of the text tower, or the whole config."""
    return getattr(config, "text_config", None) or config


def hears(config: Any) -> bool:
    """Whether the model reads raw audio through a stack of convolutions, as wav2vec2 does."""
    return all(hasattr(config, name) for name in ("conv_stride", "conv_kernel", "num_feat_extract_layers"))


def sees(config: Any, task: str) -> bool:
    """Whether a sample is an image or a clip."""
    return task in IMAGE or (
        task == "pretraining" and hasattr(config, "num_channels") and hasattr(config, "image_size")
    )


def films(config: Any) -> bool:
    """Whether a sample is a clip of several frames."""
    return hasattr(config, "num_frames")


def lengths(config: Any, task: str, data: DataSpec, preset: Preset | None) -> Lengths:
    """Sizes from the spec; what it leaves open comes from the preset, else from the config, and is an assumption."""
    assumed: list[str] = []

    def pick(name: str, unit: str, used: bool, fallback: int) -> int:
        given: int | None = getattr(data, name)
        if given is not None or not used:
            return given or 0
        usual: int | None = getattr(preset, name, None)
        assumed.append(f"{name} {usual or fallback} {unit} assumed ({'preset' if usual else 'model'} default)")
        return usual or fallback

    image, longest = sees(config, task), _longest(config)
    if task == "speech-seq2seq":
        sequence = pick("sequence_length", "frames", True, 2 * getattr(config, "max_source_positions", 1500))
    elif hears(config):
        sequence = pick("sequence_length", "audio samples", True, DEFAULT_AUDIO_SAMPLES)
    else:
        usual = min(longest or DEFAULT_SEQUENCE_LENGTH, DEFAULT_SEQUENCE_LENGTH)
        sequence = pick("sequence_length", "tokens", task == "contrastive" or not image, usual)
        if longest and sequence > longest:
            assumed.append(f"sequence_length {sequence} is beyond the {longest} positions that the model was made for")
    target = pick("target_length", "tokens", task in ("seq2seq-lm", "speech-seq2seq", "ctc"), DEFAULT_TARGET_LENGTH)
    size = getattr(vision_part(config), "image_size", None)
    size = max(size) if isinstance(size, list | tuple) else size
    pixels = pick("image_size", "pixels", image, size or DEFAULT_IMAGE_SIZE)
    return Lengths(sequence, target, pixels, tuple(assumed))


def _longest(config: Any) -> int | None:
    """Most text positions that the config names."""
    text = text_part(config)
    longest: int | None = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return longest - ROWS_OF_PADDING if longest and text.model_type in PADDED_POSITIONS else longest


def adapt(config: Any, task: str, sizes: Lengths) -> None:
    """Change the config where sizes or task ask for another model: a ViT's image size, ids that the loss needs."""
    vision = vision_part(config)
    if sees(config, task) and hasattr(vision, "image_size") and vision.model_type not in ANY_IMAGE_SIZE:
        vision.image_size = sizes.image
    if task == "sequence-classification" and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # the last token that is not padding is classified
    if task == "seq2seq-lm" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # as T5 does


def check(module: torch.nn.Module, config: Any, task: str, sizes: Lengths) -> None:
    """RigplanError where real training would fail: positions beyond a table, more labels than CTC's frames allow."""
    if config.model_type == "whisper" and sizes.sequence != (wanted := 2 * config.max_source_positions):
        raise RigplanError(f"data.sequence_length is {sizes.sequence} frames: whisper takes exactly {wanted}")
    if task == "ctc" and 2 * sizes.target > (available := frames(config, sizes.sequence)):
        raise RigplanError(
            f"data.target_length {sizes.target} is too long for the {available} frames of {sizes.sequence} audio "
            f"samples: ctc needs at most {available // 2}"
        )
    for what, length, limit in _positions(module, config, task, sizes):
        if length > limit:
            raise RigplanError(f"data.{what} is {length}: {config.model_type} has {limit} positions, give at most that")


def _positions(module: torch.nn.Module, config: Any, task: str, sizes: Lengths) -> Iterator[tuple[str, int, int]]:
    """Every table of text positions of the module: the field that fills it, the length wanted, the rows it has."""
    for name, layer in module.named_modules():
        leaf = name.rsplit(".", 1)[-1]
        if not isinstance(layer, torch.nn.Embedding) or not ("position" in leaf or leaf == "wpe") or "vision" in name:
            continue
        decodes = "decoder" in name and task in ("seq2seq-lm", "speech-seq2seq")
        if task == "speech-seq2seq" and not decodes:
            continue  # its encoder counts frames, not tokens
        rows = layer.num_embeddings - (0 if layer.padding_idx is None else layer.padding_idx + 1)
        what, length = ("target_length", sizes.target) if decodes else ("sequence_length", sizes.sequence)
        yield what, length, min(rows, _longest(config) or rows)


def tokens_per_sample(config: Any, task: str, sizes: Lengths) -> int:
    """Tokens of one sample for tokens/s: text tokens (with the target's), audio frames, image patches, or 1 image."""
    if hears(config):
        return frames(config, sizes.sequence)
    if task == "speech-seq2seq":
        return sizes.sequence // 2 + sizes.target  # the encoder halves the frames
    if sees(config, task):
        patch = getattr(vision_part(config), "patch_size", None)
        patches = (sizes.image // patch) ** 2 if isinstance(patch, int) and patch else 1
        tubes = config.num_frames // getattr(config, "tubelet_size", 1) if films(config) else 1
        return patches * tubes + (sizes.sequence if task == "contrastive" else 0)
    return sizes.sequence + sizes.target


def frames(config: Any, samples: int) -> int:
    """Output frames of a wav2vec2-like convolution stack over audio samples; other models count frames already."""
    if not hears(config):
        return samples
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return samples
