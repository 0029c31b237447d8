"""An option of a plan as an accelerate YAML, for `accelerate launch --config_file`."""

from __future__ import annotations

from typing import Any

import yaml

from planner.dialects.accelerate import PARALLEL, PRECISIONS
from planner.dialects.option import FULL_ONLY, Option, Written, commented, outside
from planner.strategy import FSDP


def write(option: Option) -> Written:
    """The YAML, with what it cannot say as comments."""
    strategy = option.strategy
    notices = [
        f"the script's own: batch size {option.micro_batch} a GPU, {option.accumulation} accumulation steps, optimizer "
        f"{strategy.optimizer} ({strategy.optimizer_implementation}), gradients clipped at {strategy.max_grad_norm}",
        *outside(option),
    ]
    words = {precision: word for word, precision in PRECISIONS.items()}
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": _kind(option),
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": words.get(strategy.precision, "no"),
        "num_machines": option.nodes,
        "num_processes": option.hardware.count,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if strategy.precision == "fp8-mixed":
        found["fp8_config"] = {"backend": "AO"}  # torchao's float8 layers, which the plan counts
    if strategy.precision == "tf32":
        notices.append("precision tf32: set torch.backends.cuda.matmul.allow_tf32 = True in the script")
    if strategy.sharding in FSDP:
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": strategy.sharding != "fsdp-grad-op",
            "fsdp_activation_checkpointing": strategy.checkpointing != "none",
            "fsdp_offload_params": strategy.offload == "all",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    elif strategy.checkpointing != "none":
        notices.append(
            f"checkpointing {strategy.checkpointing}: switch it on in the model (gradient_checkpointing_enable)"
        )
    if strategy.sharding in FSDP and strategy.checkpointing == "selective":
        notices.append(FULL_ONLY)
    if option.zero_stage is not None:
        found["deepspeed_config"] = {
            "zero_stage": option.zero_stage,
            "gradient_accumulation_steps": option.accumulation,
            "gradient_clipping": strategy.max_grad_norm or 0.0,
            "offload_optimizer_device": "none" if strategy.offload == "none" else "cpu",
            "offload_param_device": "cpu" if strategy.offload == "all" else "none",
            "zero3_init_flag": option.zero_stage == 3,
        }
    if strategy.compile:
        found["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    sizes = _parallel(option)
    if sizes:
        found["parallelism_config"] = {f"{PARALLEL}{name}_size": size for name, size in sizes.items()}
    if option.nodes > 1:
        notices.append("on each node set machine_rank, main_process_ip and main_process_port")
    return Written(
        commented([*option.head("accelerate YAML"), *notices]) + yaml.safe_dump(found, sort_keys=False), notices
    )


def _kind(option: Option) -> str:
    if option.zero_stage is not None:
        return "DEEPSPEED"
    if option.strategy.sharding in FSDP:
        return "FSDP"
    return "MULTI_GPU" if option.hardware.count > 1 else "NO"


def _parallel(option: Option) -> dict[str, int]:
    """Mesh sizes, where the option has more than one way of spreading."""
    strategy = option.strategy
    if strategy.sharding == "hsdp":
        shard = option.gpus_per_node // strategy.tensor_parallel
        return {"dp_replicate": option.nodes, "dp_shard": shard, "tp": strategy.tensor_parallel}
    if strategy.tensor_parallel == 1:
        return {}
    spread = {"dp_shard" if strategy.sharding in FSDP else "dp_replicate": option.data_parallel}
    return {**spread, "tp": strategy.tensor_parallel}


__all__ = ["write"]
