"""LoRA by the names that configs have for its parts."""

from __future__ import annotations

from typing import Any

from planner.dialects.reading import Reading

ALL_LINEAR = "all-linear"
DEFAULT_TARGETS = ("q_proj", "v_proj")  # peft's own for Llama, Mistral, Qwen2 and most that follow them


def say_lora(
    reading: Reading, *, r: int, alpha: int, dropout: float, targets: list[str] | None, quantize: Any = None
) -> None:
    """A LoRA of rank `r`; without `targets` peft's own for the usual decoders are taken."""
    if not targets:
        reading.assume(f"LoRA on {' and '.join(DEFAULT_TARGETS)}: peft's own targets for most decoders")
    found: dict[str, Any] = {"r": r, "alpha": alpha, "target_modules": list(targets or DEFAULT_TARGETS)}
    if targets and any(target in ("all", ALL_LINEAR, "all_linear") for target in targets):
        found["target_modules"] = ALL_LINEAR
    if dropout:
        found["dropout"] = dropout
    if quantize:
        found["quantize"] = quantize
    reading.say("model.lora", found)


def say_half(reading: Reading, fp16: bool, why: str) -> None:
    """Weights in half precision, which a spec has as bf16; over quantized weights fp16 can be said as it is."""
    quantized = (reading.fields.get("model.lora") or {}).get("quantize")
    if fp16 and quantized:
        reading.say("training.precision", "fp16-mixed")
        return
    reading.say("training.precision", "bf16")
    reading.assume(f"precision bf16: {why}")
    if fp16:
        reading.assume(
            "bf16 for fp16, as large and as fast; a GPU without bf16 takes fp16-mixed, with the frozen weights in fp32"
        )


__all__ = ["ALL_LINEAR", "say_half", "say_lora"]
