"""A DeepSpeed JSON: its batch sizes, precision, ZeRO stage, offload and clipping.

Keys and defaults: https://www.deepspeed.ai/docs/config-json/. "auto" is Hugging Face's word for what the Trainer's own
options say; the other file gives it, or the Trainer's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.dialects.document import Document
from planner.dialects.optimizers import DEEPSPEED
from planner.dialects.reading import Options, Reading, bearing_nothing
from planner.dialects.trainer import DEFAULTS, say_norm

AUTO = "auto"
KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer")
SHARDINGS = ("none", "zero1", "zero2", "zero3")
BUCKETS = (
    "reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "sub_group_size", "overlap_comm", "contiguous_gradients",
    "round_robin_gradients",
)  # fmt: skip
NOT_HELD: Mapping[str, str] = {
    "pipeline": "pipeline parallelism is not modelled",
    "tensor_parallel": "write tensor_parallel in the spec",
    "sparse_attention": "attention is taken as dense",
    "sparse_gradients": "gradients are taken as dense",
}


def looks_so(document: Document) -> bool:
    """A mapping with a key that only DeepSpeed has."""
    return document.mapping is not None and any(key in document.mapping for key in KEYS)


def read(document: Document) -> Reading:
    """Say what the JSON says. Raises RigplanError for a value that cannot be read."""
    reading = Reading(document.source)
    given = dict(document.mapping or {})
    autos = [key for key, value in given.items() if value == AUTO]
    options = Options({key: value for key, value in given.items() if value != AUTO}, document.source)
    reading.say("training.micro_batch", options.whole("train_micro_batch_size_per_gpu"))
    reading.say("training.accumulation", options.whole("gradient_accumulation_steps"))
    reading.say("training.global_batch", options.whole("train_batch_size"))
    say_norm(reading, options.number("gradient_clipping"))
    _precision(options, reading, autos)
    _zero(options, reading)
    _optimizer(options, reading)
    if autos:
        reading.assume(f'"auto" of {", ".join(autos)} comes from the training options, or from their defaults')
        for place, value in DEFAULTS.items():
            reading.default(place, value, 'what "auto" is without training options: the default of TrainingArguments')
    else:
        reading.default("training.accumulation", 1, "the default of DeepSpeed")
        reading.default("training.max_grad_norm", None, "DeepSpeed clips nothing unless gradient_clipping says so")
    for key, words in NOT_HELD.items():
        if options.take(key) is not None:
            reading.assume(f"{key}: {words}")
    options.finish(reading, bearing_nothing("deepspeed"))
    return reading


def _precision(options: Options, reading: Reading, autos: list[str]) -> None:
    for key, precision in (("bf16", "bf16-mixed"), ("bfloat16", "bf16-mixed"), ("fp16", "fp16-mixed")):
        part = options.take(key)
        enabled = part.get("enabled") if isinstance(part, Mapping) else part
        if enabled == AUTO:
            autos.append(f"{key}.enabled")
        elif enabled:
            reading.say("training.precision", precision)
    if not any(auto.startswith(("bf16", "fp16")) for auto in autos):
        reading.default("training.precision", "fp32", "neither bf16 nor fp16 is enabled")


def _zero(options: Options, reading: Reading) -> None:
    zero = Options(options.part("zero_optimization"), options.source)
    stage = zero.whole("stage")
    stage = 0 if stage is None else stage
    if not 0 <= stage < len(SHARDINGS):
        raise zero.mistake(["stage"], stage, "0, 1, 2 or 3")
    say_stage(reading, stage)
    offloads = [(_device(zero.take("offload_optimizer")), "optimizer"), (_device(zero.take("offload_param")), "all")]
    if zero.flag("cpu_offload"):
        offloads.append(("cpu", "optimizer"))
    for device, offload in offloads:
        if device in ("cpu", "nvme"):
            reading.say("training.offload", offload)
        if device == "nvme":
            reading.assume(f"offload {offload} to the host's memory for nvme, which is slower")
    sized = {name: zero.take(name) for name in BUCKETS}
    told = [
        f"{name} {value:g}" for name, value in sized.items() if isinstance(value, int | float) and value is not True
    ]
    if told:
        reading.assume(f"ZeRO's buckets and limits as in Hugging Face's examples, for {', '.join(told)}")
    for name in ("zero_quantized_weights", "zero_quantized_gradients", "zero_hpz_partition_size", "mics_shard_size"):
        value = zero.take(name)
        if value not in (None, False, 1, -1):
            reading.assume(f"{name} {value}: ZeRO++ and MiCS are not modelled")
    zero.finish(reading, bearing_nothing("zero"))


def say_stage(reading: Reading, stage: int) -> None:
    """Say DeepSpeed's stage, 0 to 3."""
    reading.say("training.sharding", SHARDINGS[stage])
    if stage == 1:
        reading.say("training.zero1", "deepspeed")


def _device(part: Any) -> str:
    device = part.get("device", "none") if isinstance(part, Mapping) else part
    return str(device or "none").lower()


def _optimizer(options: Options, reading: Reading) -> None:
    part = options.take("optimizer")
    kind = part.get("type") if isinstance(part, Mapping) else part
    if kind is None:
        return
    known = DEEPSPEED.get(str(kind).lower())
    if known is None:
        reading.assume(f"optimizer adamw for DeepSpeed's {kind}, which is not modelled")
    reading.say("training.optimizer", known or "adamw")


__all__ = ["SHARDINGS", "looks_so", "read", "say_stage"]
