"""Legal random inputs of every task, labels included, as a training run passes them.

They are the least that training needs: ids and labels without attention masks, for all samples are full;
encoder-decoder models derive their decoder ids from the labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from catalog.errors import RigplanError
from planner.model_lengths import Lengths, films, frames, text_part, vision_part

Tensors = dict[str, torch.Tensor]

# What a forward that asks its own results yes or no is answered, by model type and task, where both ways take the same
# memory and time but for a small kernel: wav2vec2 asks whether any negative has the codes of its positive, to hide it.
ANSWERS = {("wav2vec2", "pretraining"): False}
IGNORED = -100  # the label that transformers' losses skip
MASKED_EVERY = 7  # one token in seven is predicted: the 15 % of BERT's recipe
SEEN_EVERY = 10  # one patch in ten is seen: the 90 % masking of VideoMAE
MEL_BINS = 80  # of a speech model whose config does not say


@dataclass(frozen=True, slots=True)
class _Draw:
    """Random values of one batch: integers always real (forwards branch on them), floats without memory on meta."""

    config: Any
    lengths: Lengths
    main_input: str
    device: str
    batch: int
    generator: torch.Generator

    @property
    def real_device(self) -> str:
        return "cpu" if self.device == "meta" else self.device

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        drawn = torch.randint(low, high, (self.batch, *shape), generator=self.generator, device="cpu")
        return drawn.to(self.real_device)

    def floats(self, *shape: int) -> torch.Tensor:
        if self.device == "meta":
            return torch.empty((self.batch, *shape), device="meta")
        return torch.randn((self.batch, *shape), generator=self.generator, device="cpu").to(self.device)

    def ids(self, length: int) -> torch.Tensor:
        """Token ids without the padding id: full samples have none, and transformers warns of padding without mask."""
        text = text_part(self.config)
        drawn = self.integers(0, text.vocab_size, length)
        pad = getattr(text, "pad_token_id", None)
        return drawn if pad is None else torch.where(drawn == pad, (pad + 1) % text.vocab_size, drawn)

    def pixels(self) -> torch.Tensor:
        vision, size = vision_part(self.config), self.lengths.image
        clip = (self.config.num_frames,) if films(self.config) else ()
        return self.floats(*clip, getattr(vision, "num_channels", 3), size, size)

    def classes(self, *shape: int) -> torch.Tensor:
        return self.integers(0, self.config.num_labels, *shape)


def _causal_lm(draw: _Draw) -> Tensors:
    ids = draw.ids(draw.lengths.sequence)
    return {"input_ids": ids, "labels": ids.clone()}


def _masked_lm(draw: _Draw) -> Tensors:
    ids = draw.ids(draw.lengths.sequence)
    masked = torch.arange(draw.lengths.sequence, device=ids.device) % MASKED_EVERY == 0
    return {"input_ids": ids, "labels": torch.where(masked, ids, IGNORED)}


def _seq2seq_lm(draw: _Draw) -> Tensors:
    return {"input_ids": draw.ids(draw.lengths.sequence), "labels": draw.ids(draw.lengths.target)}


def _sequence_classification(draw: _Draw) -> Tensors:
    return {"input_ids": draw.ids(draw.lengths.sequence), "labels": draw.classes()}


def _classification(draw: _Draw) -> Tensors:
    return {"pixel_values": draw.pixels(), "labels": draw.classes()}


def _segmentation(draw: _Draw) -> Tensors:
    return {"pixel_values": draw.pixels(), "labels": draw.classes(draw.lengths.image, draw.lengths.image)}


def _speech(draw: _Draw) -> Tensors:
    bins = getattr(draw.config, "num_mel_bins", None) or getattr(draw.config, "input_feat_per_channel", MEL_BINS)
    length = draw.lengths.sequence
    shape = (bins, length) if draw.config.model_type == "whisper" else (length, bins)
    values = draw.floats(*shape) if draw.main_input == "input_features" else draw.floats(length)
    return {draw.main_input: values, "labels": draw.ids(draw.lengths.target)}


def _ctc(draw: _Draw) -> Tensors:
    blank = draw.config.pad_token_id or 0  # transformers takes the padding id as CTC's blank, no legal label
    labels = draw.integers(0, draw.config.vocab_size - 1, draw.lengths.target)
    bins = getattr(draw.config, "feature_projection_input_dim", None) or getattr(draw.config, "num_mel_bins", MEL_BINS)
    features = (draw.lengths.sequence, bins) if draw.main_input == "input_features" else (draw.lengths.sequence,)
    return {draw.main_input: draw.floats(*features), "labels": labels + (labels >= blank)}


def _contrastive(draw: _Draw) -> Tensors:
    return {"input_ids": draw.ids(draw.lengths.sequence), "pixel_values": draw.pixels()}


def _pretrain_bert(draw: _Draw) -> Tensors:
    return {**_masked_lm(draw), "next_sentence_label": draw.integers(0, 2)}


def _pretrain_electra(draw: _Draw) -> Tensors:
    return {"input_ids": draw.ids(draw.lengths.sequence), "labels": draw.integers(0, 2, draw.lengths.sequence)}


def _pretrain_vit_mae(draw: _Draw) -> Tensors:
    return {"pixel_values": draw.pixels()}


def _pretrain_videomae(draw: _Draw) -> Tensors:
    """The same patches hidden in every clip, nine in ten as published."""
    patches = (draw.lengths.image // draw.config.patch_size) ** 2
    tubes = draw.config.num_frames // draw.config.tubelet_size
    hidden = (torch.arange(patches * tubes) % SEEN_EVERY != 0).expand(draw.batch, -1).contiguous()
    return {"pixel_values": draw.pixels(), "bool_masked_pos": hidden.to(draw.real_device)}


def _pretrain_wav2vec2(draw: _Draw) -> Tensors:
    """Every second frame masked, about the share of the published recipe, with negatives drawn from all frames."""
    length = frames(draw.config, draw.lengths.sequence)
    masked = (torch.arange(length) % 2 == 0).expand(draw.batch, -1).contiguous()
    first = torch.arange(draw.batch).view(-1, 1, 1) * length  # negatives of a sample come from the sample itself
    negatives = draw.integers(0, length, length, draw.config.num_negatives)
    return {
        "input_values": draw.floats(draw.lengths.sequence),
        "mask_time_indices": masked.to(negatives.device),
        "sampled_negative_indices": negatives + first.to(negatives.device),
    }


MAKERS: dict[str, Callable[[_Draw], Tensors]] = {
    "causal-lm": _causal_lm,
    "masked-lm": _masked_lm,
    "seq2seq-lm": _seq2seq_lm,
    "sequence-classification": _sequence_classification,
    "image-classification": _classification,
    "video-classification": _classification,
    "semantic-segmentation": _segmentation,
    "speech-seq2seq": _speech,
    "ctc": _ctc,
    "contrastive": _contrastive,
}
PRETRAINING: dict[str, Callable[[_Draw], Tensors]] = {
    "bert": _pretrain_bert,
    "electra": _pretrain_electra,
    "vit_mae": _pretrain_vit_mae,
    "videomae": _pretrain_videomae,
    "wav2vec2": _pretrain_wav2vec2,
}


def make(config: Any, task: str, lengths: Lengths, main_input: str, device: str, micro_batch: int) -> Tensors:
    """Keyword inputs of `micro_batch` samples, the same at every call.

    On 'meta' integers and masks are real cpu tensors, floats meta ones. RigplanError where inputs are not known.
    """
    maker = PRETRAINING.get(config.model_type) if task == "pretraining" else MAKERS[task]
    if maker is None:
        known = ", ".join(PRETRAINING)
        raise RigplanError(f"pretraining inputs of {config.model_type} are not known (only {known}): give model.module")
    generator = torch.Generator().manual_seed(micro_batch)
    return maker(_Draw(config, lengths, main_input, device, micro_batch, generator))
