"""Padding: a model with its vocabulary or widths brought to a multiple that matrix units like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catalog import presets
from planner.spec import Spec

MULTIPLE = 64  # elements: whole tiles of every dtype's matrix units
TEXT = "text_config"  # where models of text and images keep the sizes of their text
HIDDEN = ("hidden_size", "d_model", "n_embd", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
INNER = ("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim")

Changed = tuple[Spec, str, str]  # the spec, the change as a config has it, why


def padded_vocabulary(spec: Spec) -> Changed | None:
    """The spec with the next larger vocabulary that is a multiple; None where it is one, or no config is known."""
    config = config_of(spec)
    if config is None:
        return None
    part = config[TEXT] if isinstance(config.get(TEXT), Mapping) and "vocab_size" in config[TEXT] else config
    size = part.get("vocab_size")
    if not isinstance(size, int) or size % MULTIPLE == 0:
        return None
    wanted = _up(size, MULTIPLE)
    larger = {**part, "vocab_size": wanted}
    changed = larger if part is config else {**config, TEXT: larger}
    return _with(spec, changed), f"vocab_size: {wanted}", f"{size} is no multiple of {MULTIPLE}"


def padded_widths(spec: Spec) -> Changed | None:
    """The spec with hidden and inner sizes brought to the next multiple, heads still dividing them."""
    config = config_of(spec)
    if config is None:
        return None
    heads = [config[key] for key in HEADS if isinstance(config.get(key), int)]
    larger = {}
    for key in (*HIDDEN, *INNER):
        size = config.get(key)
        if isinstance(size, int) and size % MULTIPLE:
            wanted = _up(size, MULTIPLE)
            while key in HIDDEN and any(wanted % count for count in heads):
                wanted += MULTIPLE
            larger[key] = wanted
    if not larger:
        return None
    sizes = ", ".join(str(config[key]) for key in larger)
    change = ", ".join(f"{key}: {size}" for key, size in larger.items())
    return _with(spec, {**config, **larger}), change, f"{sizes} no multiple of {MULTIPLE}"


def config_of(spec: Spec) -> dict[str, Any] | None:
    """The transformers config of a spec as a mapping; None for a module of one's own or a model of the hub."""
    model = spec.model
    if isinstance(model.config, str):
        path = Path(model.config)
        return dict(json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")))
    if model.config is not None:
        return dict(model.config)
    preset = presets.lookup(model.name) if model.name else None
    return None if preset is None else dict(preset.config)


def _with(spec: Spec, config: dict[str, Any]) -> Spec:
    """The spec with this config; what a preset said besides is said by the spec."""
    model, data = spec.model, spec.data
    preset = presets.lookup(model.name) if model.name else None
    task = model.task or (preset.task if preset is not None else None)
    if preset is not None:
        usual = {name: getattr(preset, name) for name in ("sequence_length", "target_length", "image_size")}
        data = data.model_copy(update={name: size for name, size in usual.items() if getattr(data, name) is None})
    return spec.model_copy(
        update={"model": model.model_copy(update={"name": None, "config": config, "task": task}), "data": data}
    )


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


__all__ = ["MULTIPLE", "config_of", "padded_vocabulary", "padded_widths"]
