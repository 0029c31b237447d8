"""The options of Hugging Face's Trainer, which TrainingArguments, TRL and LLaMA-Factory share: what a spec has of them.

Names and defaults are those of transformers.TrainingArguments, and a test reads them there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from catalog.errors import RigplanError
from planner.dialects.optimizers import say_optimizer
from planner.dialects.reading import Options, Reading, bearing_nothing

# place in a spec -> what TrainingArguments takes where nothing is said
DEFAULTS: Mapping[str, Any] = {
    "training.micro_batch": 8,
    "training.accumulation": 1,
    "training.precision": "fp32",
    "training.optimizer": "adamw",
    "training.optimizer_implementation": "fused",
    "training.max_grad_norm": 1.0,
    "training.checkpointing": "none",
}
# FSDP's strategies by the names that `fsdp` and `sharding_strategy` have for them
FSDP_SHARDINGS: Mapping[str, str] = {
    "full_shard": "fsdp",
    "shard_grad_op": "fsdp-grad-op",
    "hybrid_shard": "hsdp",
    "hybrid_shard_zero2": "hsdp",
    "no_shard": "none",
    "1": "fsdp",
    "2": "fsdp-grad-op",
    "3": "none",
    "4": "hsdp",
    "5": "hsdp",
    "true": "fsdp",
    "false": "fsdp-grad-op",
}
HALF_DTYPES = ("bfloat16", "bf16", "torch.bfloat16", "float16", "fp16", "torch.float16", "half")
# options that do change them, and that a spec has no field for
NOT_HELD: Mapping[str, str] = {
    "neftune_noise_alpha": "the noise on the embeddings is not counted",
    "torch_empty_cache_steps": "emptying the cache is not modelled",
    "auto_find_batch_size": "the micro-batch is taken as given, and not halved when memory runs out",
    "group_by_length": "every sample is taken at the full length",
    "optim_target_modules": "the optimizer is taken to step every parameter that is trained",
    "ddp_bucket_cap_mb": "DDP's buckets are taken at torch's default size",
    "parallelism_config": "only the sizes that a spec has are taken",
    "use_cpu": "a GPU is taken",
    "use_mps_device": "a GPU of the catalog is taken",
}


def read_trainer(options: Options, reading: Reading, defaults: Mapping[str, Any] = DEFAULTS) -> None:
    """Say what the Trainer's options say. Raises RigplanError for a value that cannot be read."""
    reading.say("training.micro_batch", options.whole("per_device_train_batch_size", "per_gpu_train_batch_size"))
    reading.say("training.accumulation", options.whole("gradient_accumulation_steps"))
    norm = options.number("max_grad_norm")
    say_norm(reading, norm)
    _optimizer(options, reading)
    _checkpointing(options, reading)
    _fsdp(options, reading)
    _deepspeed(options, reading)
    if options.flag("torch_compile"):
        reading.say("training.compile", True)
    _length_of_run(options, reading)
    for name, words in NOT_HELD.items():
        value = options.take(name)
        if value not in (None, False, "False", "false", ""):
            reading.assume(f"{options.shown(name, value)}: {words}")
    for place, value in defaults.items():
        reading.default(place, value, "the default of TrainingArguments")


def say_liger(reading: Reading, shown: str, *, causal: bool = True) -> None:
    """Liger's kernels, of which the fused loss of causal language models is modelled."""
    if causal:
        reading.say("training.loss", "fused-linear")
        reading.assume(f"loss fused-linear for {shown}: Liger's other kernels are not modelled")
    else:
        reading.assume(f"{shown}: the Liger kernels are not modelled, and the logits are counted in full")


def say_norm(reading: Reading, norm: float | None) -> None:
    """The norm that gradients are clipped to; 0 is no clipping."""
    if norm is not None:
        reading.fields["training.max_grad_norm"] = norm or None


def read_precision(options: Options, reading: Reading) -> None:
    """Precision by the flags, and by the dtype the weights are loaded in where an option says that."""
    bf16, fp16, tf32 = options.flag("bf16"), options.flag("fp16"), options.flag("tf32")
    dtype = str(options.take("torch_dtype", "dtype", "model_dtype") or "").lower()
    if bf16 and fp16:
        raise RigplanError(f"{options.source}: found both bf16 and fp16, wanted one of them")
    if dtype in HALF_DTYPES:
        reading.say("training.precision", "bf16")
        if dtype not in HALF_DTYPES[:3]:
            reading.assume(f"precision bf16 for weights loaded in {dtype}: as large and as fast")
    elif bf16 or fp16:
        reading.say("training.precision", "bf16-mixed" if bf16 else "fp16-mixed")
        reading.assume(
            f"weights in fp32 under {'bf16' if bf16 else 'fp16'} autocast: where the script loads them in half "
            "precision (--dtype bfloat16, or transformers 5 on a checkpoint in bfloat16), write precision: bf16"
        )
    elif tf32:
        reading.say("training.precision", "tf32")
    elif bf16 is False or fp16 is False or dtype in ("float32", "fp32"):
        reading.say("training.precision", "fp32")


def read_attention(options: Options, reading: Reading) -> None:
    """The attention's implementation, by the names that scripts have for it."""
    name = options.take("attn_implementation", "attn_impl", "_attn_implementation")
    flash = options.flag("use_flash_attention_2", "use_flash_attn", "use_flash_attention", "flash_attention")
    if name is None and flash:
        name = "flash_attention_2"
    say_attention(reading, name)


def say_attention(reading: Reading, name: Any) -> None:
    """The attention as transformers names it; others are taken as the nearest that a spec has."""
    if name is None:
        return
    name = str(name)
    nearest = name if name in ("eager", "sdpa", "flash_attention_2") else None
    if nearest is None:
        nearest = "flash_attention_2" if "flash" in name else "sdpa"
        reading.assume(f"attention {nearest} for {name}")
    reading.say("model.attention", nearest)


def _optimizer(options: Options, reading: Reading) -> None:
    name = options.take("optim")
    if options.flag("adafactor"):
        name = "adafactor"
    if name is not None:
        say_optimizer(reading, str(name))


def _checkpointing(options: Options, reading: Reading) -> None:
    on = options.flag("gradient_checkpointing", "activation_checkpointing")
    if on is not None:
        reading.say("training.checkpointing", "full" if on else "none")


def _fsdp(options: Options, reading: Reading) -> None:
    given = options.take("fsdp")
    config = options.take("fsdp_config")
    options.take("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
    if given in (None, False, "", [], "False", "false"):
        return
    if isinstance(config, str) and config.lstrip().startswith("{"):
        try:
            config = json.loads(config)
        except json.JSONDecodeError as error:
            raise options.mistake(["fsdp_config"], config, f"JSON ({error.msg})") from None
    words = given if isinstance(given, list) else str(given).split()
    sharding = next(
        (FSDP_SHARDINGS[str(word).lower()] for word in words if str(word).lower() in FSDP_SHARDINGS), "fsdp"
    )
    reading.say("training.sharding", sharding)
    if "offload" in words:
        reading.say("training.offload", "all")
    if isinstance(config, str) and config:
        reading.companions.append((config, "fsdp-config"))
    elif isinstance(config, dict):
        read_fsdp_config(Options(config, options.source), reading)
    elif config:
        raise options.mistake(["fsdp_config"], config, "a mapping, or the path of a JSON file")


def read_fsdp_config(options: Options, reading: Reading) -> None:
    """Settings of FSDP, with or without `fsdp_` before their names."""
    bare = Options({name.removeprefix("fsdp_"): value for name, value in options.given.items()}, options.source)
    strategy = bare.take("sharding_strategy", "reshard_after_forward")
    if strategy is not None:
        word = str(strategy).lower()
        if word not in FSDP_SHARDINGS:
            raise bare.mistake(["sharding_strategy"], strategy, "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD")
        reading.say("training.sharding", FSDP_SHARDINGS[word])
    if bare.flag("activation_checkpointing"):
        reading.say("training.checkpointing", "full")
    if bare.flag("offload_params", "cpu_offload"):
        reading.say("training.offload", "all")
    if str(bare.take("auto_wrap_policy") or "").upper() == "NO_WRAP":
        reading.assume(
            "FSDP wraps each layer: auto_wrap_policy NO_WRAP, which gathers all weights at once, is not modelled"
        )
    version = bare.take("version")
    if str(version) == "1":
        reading.assume("FSDP as torch's fully_shard (version 2) does it, for version 1")
    bare.finish(reading, bearing_nothing("fsdp"))


def _deepspeed(options: Options, reading: Reading) -> None:
    given, config = options.take("deepspeed"), options.take("deepspeed_config")
    given = config if config is not None and given in (None, True) else given  # --deepspeed --deepspeed_config FILE
    if isinstance(given, dict):
        given = json.dumps(given)
    if given not in (None, False, True, ""):
        reading.companions.append((str(given), "deepspeed"))


def _length_of_run(options: Options, reading: Reading) -> None:
    steps, epochs = options.whole("max_steps"), options.number("num_train_epochs")
    samples = options.whole("max_train_samples")
    if steps is not None and steps > 0:
        reading.say("data.total", f"{steps} steps")
    elif epochs is not None:
        reading.say("epochs", epochs)
    reading.say("samples", samples)


__all__ = [
    "DEFAULTS",
    "FSDP_SHARDINGS",
    "read_attention",
    "read_fsdp_config",
    "read_precision",
    "read_trainer",
    "say_attention",
    "say_liger",
    "say_norm",
]
