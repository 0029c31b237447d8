"""Optimizers by the names that Hugging Face's `optim` has for them, and by those that a spec has.

Source: transformers.training_args.OptimizerNames, and DeepSpeed's documented `optimizer.type`.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.dialects.reading import Reading

# optim -> optimizer, its implementation (None: as the spec's default), and what differs
NAMES: Mapping[str, tuple[str, str | None, str | None]] = {
    "adamw_torch": ("adamw", "foreach", None),
    "adamw_torch_fused": ("adamw", "fused", None),
    "adamw_apex_fused": ("adamw", "fused", None),
    "adamw_hf": ("adamw", "for-loop", None),
    "adamw_anyprecision": ("adamw", None, "its states in bf16 are taken as AdamW's of the weights' dtype"),
    "paged_adamw": ("adamw", None, "paging states to the host is not modelled"),
    "paged_adamw_32bit": ("adamw", None, "paging states to the host is not modelled"),
    "adafactor": ("adafactor", None, None),
    "sgd": ("sgd", None, "with the momentum that a spec's sgd has"),
    "adamw_bnb_8bit": ("adamw-8bit", None, None),
    "adamw_8bit": ("adamw-8bit", None, None),
    "adamw_torch_8bit": ("adamw-8bit", None, "torchao's 8-bit states are taken as bitsandbytes'"),
    "adamw_torch_4bit": ("adamw-8bit", None, "4-bit states are taken as 8-bit ones"),
    "paged_adamw_8bit": ("adamw-8bit", None, "paging states to the host is not modelled"),
    "lion_32bit": ("lion", None, None),
    "paged_lion_32bit": ("lion", None, "paging states to the host is not modelled"),
    "lion_8bit": ("lion", None, "8-bit states are taken as full ones"),
    "paged_lion_8bit": ("lion", None, "8-bit states are taken as full ones, paging is not modelled"),
    "lion_pytorch": ("lion", None, None),
    "muon": ("muon", None, None),
}
# a spec's optimizer and its implementation -> optim; what is not here has no name there
WRITTEN: Mapping[tuple[str, str], str] = {
    ("adamw", "foreach"): "adamw_torch",
    ("adamw", "fused"): "adamw_torch_fused",
    ("adafactor", "foreach"): "adafactor",
    ("sgd", "foreach"): "sgd",
    ("lion", "foreach"): "lion_32bit",
    ("adamw-8bit", "foreach"): "adamw_bnb_8bit",
}
# DeepSpeed's optimizer.type, in lower case
DEEPSPEED: Mapping[str, str] = {
    "adam": "adamw",  # adam_w_mode is on by default
    "adamw": "adamw",
    "fusedadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "lion": "lion",
    "muon": "muon",
    "sgd": "sgd",
}
DEEPSPEED_WRITTEN: Mapping[str, str] = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion", "muon": "Muon"}


def say_optimizer(reading: Reading, name: str) -> None:
    """Hugging Face's name for an optimizer, as a spec has it; what a spec lacks is told with what is taken for it."""
    name = name.split(".")[-1].lower()  # OptimizerNames.ADAMW_TORCH prints with its class
    optimizer, implementation, differs = NAMES.get(name, ("adamw", None, "it is not modelled"))
    reading.say("training.optimizer", optimizer)
    reading.say("training.optimizer_implementation", implementation)
    if differs:
        reading.assume(f"optimizer {optimizer} for {name}: {differs}")


__all__ = ["DEEPSPEED", "DEEPSPEED_WRITTEN", "NAMES", "WRITTEN", "say_optimizer"]
