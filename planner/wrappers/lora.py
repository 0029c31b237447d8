"""Low-rank adapters, by peft (an extra): the base frozen, two thin matrices trained beside each target."""

from __future__ import annotations

import warnings

import torch

from catalog.errors import RigplanError
from planner.libraries import require_peft
from planner.spec import LoraSpec
from planner.wrappers import quantized


def apply(module: torch.nn.Module, lora: LoraSpec) -> torch.nn.Module:
    """The module with adapters of rank `lora.r` on its target modules. Raises RigplanError without peft or a target."""
    require_peft()
    from peft import LoraConfig, get_peft_model

    targets = list(lora.target_modules)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if targets == ["all-linear"] else targets,
    )
    if lora.quantize is not None:
        config._register_custom_module({quantized.QuantizedLinear: quantized.adapted()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft still asks transformers by an older name
            return get_peft_model(module, config)
    except ValueError as error:
        raise RigplanError(f"model.lora.target_modules: {str(error).splitlines()[0]}") from error
