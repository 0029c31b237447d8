"""An accelerate YAML, as `accelerate config` writes it: processes, precision, FSDP or DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.dialects.deepspeed import SHARDINGS, say_stage
from planner.dialects.document import Document
from planner.dialects.launcher import say_gpus
from planner.dialects.reading import Options, Reading, bearing_nothing
from planner.dialects.trainer import read_fsdp_config, say_norm

PRECISIONS: Mapping[str, str] = {"no": "fp32", "bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8-mixed"}
PARALLEL = "parallelism_config_"
PARTS = ("fsdp_config", "deepspeed_config", "dynamo_config", "parallelism_config")
COMPILERS = ("no", "none", "")


def looks_so(document: Document) -> bool:
    """A mapping with the keys that every accelerate config has."""
    return document.mapping is not None and bool({"distributed_type", "compute_environment"} & set(document.mapping))


def read(document: Document) -> Reading:
    """Say what the YAML says. Raises RigplanError for a value that cannot be read."""
    reading = Reading(document.source)
    whole = Options(document.mapping or {}, document.source)
    given = {name: value for name, value in whole.given.items() if name not in PARTS}
    for name in PARTS:
        given |= whole.part(name)
    read_options(Options(given, document.source), reading)
    return reading


def read_options(options: Options, reading: Reading) -> None:
    """The same as a flat list of options, which is also what `accelerate launch` takes."""
    given = options.take("distributed_type")
    kind = "" if given is None else str(given).upper()
    machines, processes = options.whole("num_machines"), options.whole("num_processes")
    say_gpus(reading, machines, None, 1 if kind in ("NO", "FALSE") else processes)  # YAML reads a bare NO as false
    precision = options.take("mixed_precision")
    if precision is not None:
        word = "no" if precision is False else str(precision).lower()  # YAML reads a bare no as false
        if word in PRECISIONS:
            reading.say("training.precision", PRECISIONS[word])
        else:
            reading.assume(f"precision bf16-mixed for mixed_precision {word}, which is not modelled")
            reading.say("training.precision", "bf16-mixed")
    fsdp = {name: options.take(name) for name in options.given if name.startswith("fsdp_")}
    if kind == "FSDP" or (fsdp and not kind):
        reading.say("training.sharding", "fsdp")
        read_fsdp_config(Options(fsdp, options.source, options.shown), reading)
    _deepspeed(options, reading)
    _parallel(options, reading)
    if kind == "MULTI_GPU":
        reading.say("training.sharding", "none")
    elif kind == "MEGATRON_LM":
        reading.assume("Megatron-LM's own parallelism is not modelled: taken as data parallel")
    options.part("fp8_config")
    compiler = str(options.take("dynamo_backend") or "").lower()
    options.take("dynamo_mode", "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation")
    if compiler not in COMPILERS:
        reading.say("training.compile", True)
    options.finish(reading, bearing_nothing("accelerate"))


def _deepspeed(options: Options, reading: Reading) -> None:
    file = options.take("deepspeed_config_file")
    if file is not None:
        reading.companions.append((str(file), "deepspeed"))
    stage = options.whole("zero_stage")
    if stage is not None:
        if not 0 <= stage < len(SHARDINGS):
            raise options.mistake(["zero_stage"], stage, "0, 1, 2 or 3")
        say_stage(reading, stage)
    accumulation = options.take("gradient_accumulation_steps")
    if accumulation not in (None, "auto"):
        reading.say("training.accumulation", options.whole("gradient_accumulation_steps"))
    if options.take("gradient_clipping") not in (None, "auto"):
        say_norm(reading, options.number("gradient_clipping"))
    for name, offload in (("offload_optimizer_device", "optimizer"), ("offload_param_device", "all")):
        device = str(options.take(name) or "none").lower()
        if device in ("cpu", "nvme"):
            reading.say("training.offload", offload)
        if device == "nvme":
            reading.assume(f"offload {offload} to the host's memory for nvme, which is slower")
    options.take("offload_optimizer_nvme_path", "offload_param_nvme_path")


def _parallel(options: Options, reading: Reading) -> None:
    sizes: dict[str, Any] = {}
    for name in list(options.given):
        if name.startswith(PARALLEL) and name.endswith("_size"):
            sizes[name.removeprefix(PARALLEL).removesuffix("_size")] = options.whole(name)
        elif name.startswith(PARALLEL):
            options.take(name)
    reading.say("training.tensor_parallel", sizes.get("tp"))
    replicate, shard = sizes.get("dp_replicate") or 1, sizes.get("dp_shard") or 1
    if replicate > 1 and shard > 1:
        reading.say("training.sharding", "hsdp")
    for name in ("cp", "sp"):
        if (sizes.get(name) or 1) > 1:
            reading.assume(f"{name} {sizes[name]}: context and sequence parallelism are not modelled")


__all__ = ["PRECISIONS", "looks_so", "read", "read_options"]
