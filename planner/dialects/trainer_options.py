"""An option of a plan as options of TrainingArguments: what the YAML, torchrun and Slurm exports share."""

from __future__ import annotations

from typing import Any

from planner.dialects import deepspeed_json
from planner.dialects.optimizers import WRITTEN
from planner.dialects.option import FULL_ONLY, Option, outside
from planner.strategy import FSDP


def trainer_options(option: Option) -> tuple[dict[str, Any], list[str]]:
    """The options by name, and in words what they cannot say."""
    strategy = option.strategy
    notices = outside(option)
    found: dict[str, Any] = {
        "output_dir": "output",
        "per_device_train_batch_size": option.micro_batch,
        "gradient_accumulation_steps": option.accumulation,
    }
    if option.steps is not None:
        found["max_steps"] = option.steps
    if strategy.precision == "fp8-mixed":
        notices.append("precision fp8-mixed: launch with accelerate and mixed_precision fp8, see --to accelerate")
    # DeepSpeed's part and the Trainer's own flag have to agree, also where the weights themselves are in bf16
    low = {"bf16-mixed", "fp8-mixed"} | ({"bf16"} if option.zero_stage is not None else set())
    found["bf16"] = strategy.precision in low
    found["fp16"] = strategy.precision == "fp16-mixed"
    if strategy.precision == "tf32":
        found["tf32"] = True
    optimizer = WRITTEN.get((strategy.optimizer, strategy.optimizer_implementation))
    if optimizer is not None:
        found["optim"] = optimizer
    elif strategy.optimizer == "adam":
        found["optim"] = WRITTEN["adamw", "fused" if strategy.optimizer_implementation == "fused" else "foreach"]
        found["weight_decay"] = 0.0
        notices.append("optimizer adam: AdamW without weight decay is the same")
    else:
        notices.append(
            f"optimizer {strategy.optimizer} ({strategy.optimizer_implementation}) has no name in `optim`: pass it to "
            "Trainer(optimizers=...), or adamw_torch_fused is taken"
        )
    if strategy.optimizer == "sgd":
        notices.append("optimizer sgd: the plan counts momentum, which `optim: sgd` leaves out")
    found["max_grad_norm"] = strategy.max_grad_norm or 0.0
    if strategy.compile:
        found["torch_compile"] = True
    if strategy.loss == "fused-linear":
        found["use_liger_kernel"] = True
    _sharding(option, found, notices)
    return found, notices


def _sharding(option: Option, found: dict[str, Any], notices: list[str]) -> None:
    strategy = option.strategy
    if strategy.checkpointing == "selective":
        notices.append(FULL_ONLY)
    if strategy.sharding in FSDP:
        found["fsdp"] = True
        found["fsdp_config"] = {
            "version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": strategy.sharding != "fsdp-grad-op",
            "activation_checkpointing": strategy.checkpointing != "none",
            "cpu_offload": strategy.offload == "all",
        }
    elif strategy.checkpointing != "none":
        found["gradient_checkpointing"] = True
    if strategy.sharding == "hsdp":
        notices.append(
            f"sharding hsdp: here it is fsdp over all {option.hardware.count} GPUs; `--to accelerate` says the "
            f"{option.nodes} replicas of {option.gpus_per_node}"
        )
    if option.zero_stage is not None:
        found["deepspeed"] = deepspeed_json.engine(option)
    if strategy.tensor_parallel > 1:
        notices.append(
            f"tensor_parallel {strategy.tensor_parallel}: load the model with tp_plan='auto', or see --to accelerate"
        )


__all__ = ["trainer_options"]
