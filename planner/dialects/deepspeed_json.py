"""An option of a plan as a DeepSpeed JSON, with numbers in place of "auto"."""

from __future__ import annotations

import json
from typing import Any

from catalog.errors import RigplanError
from planner.dialects.optimizers import DEEPSPEED_WRITTEN
from planner.dialects.option import Option, Written, outside
from planner.passes.zero import BUCKET_ELEMENTS, LIVE_ELEMENTS
from planner.strategy import FSDP

LEARNING_RATE = 1e-3  # torch.optim.AdamW's default, which DeepSpeed takes as well


def write(option: Option) -> Written:
    """The JSON. Raises RigplanError for an option that shards by FSDP, which DeepSpeed does not."""
    strategy = option.strategy
    found, notices = engine(option), outside(option)
    if strategy.optimizer in DEEPSPEED_WRITTEN:
        found["optimizer"] = {"type": DEEPSPEED_WRITTEN[strategy.optimizer], "params": {"lr": LEARNING_RATE}}
        notices.append(f"the learning rate {LEARNING_RATE:g} is torch's default for AdamW, and no part of the plan")
    else:
        notices.append(
            f"optimizer {strategy.optimizer}: DeepSpeed has none of its own; pass one to deepspeed.initialize"
        )
    if strategy.precision == "tf32":
        notices.append("precision tf32: set torch.backends.cuda.matmul.allow_tf32 = True in the script")
    if strategy.precision == "fp8-mixed":
        notices.append("precision fp8-mixed: convert the model with torchao.float8.convert_to_float8_training")
    if strategy.precision == "bf16" and option.zero_stage is not None:
        notices.append("precision bf16: DeepSpeed keeps fp32 copies of the weights too, which the plan does not count")
    if strategy.checkpointing != "none":
        notices.append(
            f"checkpointing {strategy.checkpointing}: switch it on with model.gradient_checkpointing_enable()"
        )
    if strategy.compile:
        notices.append("compile: call engine.compile() in the script")
    if strategy.tensor_parallel > 1:
        notices.append(f"tensor_parallel {strategy.tensor_parallel}: is for the model to do")
    return Written(json.dumps(found, indent=2) + "\n", [*option.head("DeepSpeed JSON"), *notices])


def engine(option: Option) -> dict[str, Any]:
    """The keys that hold for any optimizer, as TrainingArguments' `deepspeed` takes them too."""
    strategy = option.strategy
    if option.shards_optimizer:
        raise RigplanError(
            "the option's zero1 is torch's ZeroRedundancyOptimizer, whose memory is another; write zero1: deepspeed, "
            "or export it --to torchrun"
        )
    if strategy.sharding in FSDP:
        raise RigplanError(
            f"the option shards by {strategy.sharding}, which DeepSpeed does not do; export it --to accelerate, or "
            "write sharding: zero3"
        )
    return {
        "train_batch_size": option.global_batch,
        "train_micro_batch_size_per_gpu": option.micro_batch,
        "gradient_accumulation_steps": option.accumulation,
        "gradient_clipping": strategy.max_grad_norm or 0.0,
        "bf16": {"enabled": strategy.precision in ("bf16-mixed", "bf16", "fp8-mixed")},
        "fp16": {"enabled": strategy.precision == "fp16-mixed"},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": _zero(option),
    }


def _zero(option: Option) -> dict[str, Any]:
    stage = option.zero_stage or 0
    found: dict[str, Any] = {"stage": stage}
    if stage in (1, 2):
        found |= {
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "allgather_bucket_size": BUCKET_ELEMENTS,
        }
    if stage == 3:
        found |= {
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": BUCKET_ELEMENTS,
            "stage3_max_live_parameters": LIVE_ELEMENTS,
            "stage3_max_reuse_distance": LIVE_ELEMENTS,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if option.strategy.offload in ("optimizer", "all"):
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if option.strategy.offload == "all":
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return found


__all__ = ["engine", "write"]
