"""An option of a plan as a torchtitan TOML (a JobConfig, torchtitan up to 0.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from catalog.errors import RigplanError
from planner.dialects.option import Option, Written, commented, outside
from planner.strategy import FSDP

# preset -> torchtitan's model and its flavor: torchtitan/models/{llama3,qwen3}/__init__.py
MODELS: Mapping[str, tuple[str, str]] = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
}
DTYPES = {"fp32": ("float32", "float32"), "tf32": ("float32", "float32"), "bf16-mixed": ("float32", "bfloat16"),
          "bf16": ("bfloat16", "bfloat16"), "fp8-mixed": ("float32", "bfloat16")}  # fmt: skip
NO_CLIPPING = 1e9
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam"}

Sections = dict[str, dict[str, Any]]


def write(option: Option) -> Written:
    """The TOML. Raises RigplanError for an option whose sharding, precision or offload torchtitan does not do."""
    strategy = option.strategy
    if strategy.sharding not in ("none", *FSDP):
        raise RigplanError(
            f"the option shards by {strategy.sharding}, which torchtitan does not do; export it --to deepspeed, or "
            "write sharding: fsdp"
        )
    if strategy.precision not in DTYPES:
        raise RigplanError(f"torchtitan has no precision {strategy.precision}; write precision: bf16-mixed")
    sections, notices = _sections(option)
    told = [line for line in outside(option) if not line.startswith("samples are ")]
    head = [*option.head("torchtitan TOML"), _without_toml(option, sections), *told, *notices]
    body = "".join(
        f"\n[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in sections.items()
    )
    return Written(commented(head) + body, [*told, *notices])


def _sections(option: Option) -> tuple[Sections, list[str]]:
    """The TOML's sections, and in words what they cannot say."""
    strategy, notices = option.strategy, []
    sections: Sections = {"job": {"description": option.head("torchtitan")[0]}}
    preset = option.preset
    if preset is not None and preset.name in MODELS:
        sections["model"] = dict(zip(("name", "flavor"), MODELS[preset.name], strict=True))
    else:
        notices.append(f"the model is none of torchtitan's own ({option.model}): write model.name and model.flavor")
    if strategy.precision == "fp8-mixed":
        sections.setdefault("model", {})["converters"] = ["quantize.linear.float8"]
    if strategy.optimizer in OPTIMIZERS:
        name, implementation = OPTIMIZERS[strategy.optimizer], strategy.optimizer_implementation
        sections["optimizer"] = {"name": name, "implementation": implementation}
    else:
        notices.append(f"torchtitan's optimizers are AdamW and Adam: {strategy.optimizer} is for a custom one")
    dtype, computing = DTYPES[strategy.precision]
    sections["training"] = {
        "local_batch_size": option.micro_batch,
        "global_batch_size": option.global_batch,
        "max_norm": strategy.max_grad_norm or NO_CLIPPING,
        "dtype": dtype,
        "mixed_precision_param": computing,
        "enable_cpu_offload": strategy.offload == "all",
    }
    if option.sequence_length is not None:
        sections["training"]["seq_len"] = option.sequence_length
    else:
        notices.append("write training.seq_len: the spec leaves the length to the model")
    if option.steps is not None:
        sections["training"]["steps"] = option.steps
    sections["parallelism"] = _parallelism(option)
    sections["activation_checkpoint"] = {"mode": strategy.checkpointing}
    if strategy.checkpointing == "selective":
        sections["activation_checkpoint"]["selective_ac_option"] = "op"
        notices.append("checkpointing selective: torchtitan keeps every second matrix product, the plan keeps them all")
    sections["compile"] = {"enable": strategy.compile}
    if strategy.max_grad_norm is None:
        notices.append(f"no clipping is written as the norm {NO_CLIPPING:g}")
    if strategy.precision == "tf32":
        notices.append("precision tf32: set torch.set_float32_matmul_precision('high')")
    return sections, notices


def _without_toml(option: Option, sections: Sections) -> str:
    """The line for torchtitan 0.3 and later, which takes options instead of a TOML."""
    flags = [
        f"--{section}.{key}" + ("" if value is True else f" {value}")
        for section in ("training", "parallelism", "compile")
        for key, value in sections[section].items()
        if value is not False
    ]
    return (
        f"from torchtitan 0.3 on, without a TOML: torchrun --nnodes={option.nodes} --nproc_per_node="
        f"{option.gpus_per_node} -m torchtitan.train --module ... --config ... {' '.join(flags)}, and checkpointing "
        f"{option.strategy.checkpointing} in the config that --config names"
    )


def _parallelism(option: Option) -> dict[str, Any]:
    strategy = option.strategy
    replicate, shard = option.data_parallel, 1
    if strategy.sharding in FSDP:
        replicate = option.nodes if strategy.sharding == "hsdp" else 1
        shard = option.data_parallel // replicate
    return {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "never" if strategy.sharding == "fsdp-grad-op" else "always",
        "tensor_parallel_degree": strategy.tensor_parallel,
    }


__all__ = ["MODELS", "write"]
