"""An axolotl YAML. Names and defaults are those of axolotl.utils.schemas.config.AxolotlInputConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.dialects.adapters import ALL_LINEAR, say_half, say_lora
from planner.dialects.document import Document
from planner.dialects.launcher import say_gpus
from planner.dialects.model_names import say_model
from planner.dialects.optimizers import say_optimizer
from planner.dialects.reading import Options, Reading, bearing_nothing
from planner.dialects.trainer import read_fsdp_config, say_attention, say_norm

# place in a spec -> what axolotl takes where nothing is said
DEFAULTS: Mapping[str, Any] = {
    "training.micro_batch": 1,
    "training.accumulation": 1,
    "training.optimizer": "adamw",
    "training.optimizer_implementation": "fused",
    "training.max_grad_norm": 1.0,
    "training.checkpointing": "none",
    "data.sequence_length": 512,
}
ATTENTIONS = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
    "xformers_attention": "xformers",
    "flex_attention": "flex_attention",
    "sage_attention": "sage",
}
NOT_HELD: Mapping[str, str] = {
    "sequence_parallel_degree": "sequence parallelism is not modelled",
    "context_parallel_size": "context parallelism is not modelled",
    "activation_offloading": "activations are taken to stay on the GPU",
    "layer_offloading": "layers are taken to stay on the GPU",
    "plugins": "of the kernels that plugins bring (Liger, cut cross-entropy) only a fused loss is modelled",
    "liger_rope": "the Liger kernels are not modelled",
    "liger_rms_norm": "the Liger kernels are not modelled",
    "liger_glu_activation": "the Liger kernels are not modelled",
    "liger_layer_norm": "the Liger kernels are not modelled",
    "unfrozen_parameters": "every parameter is taken to be trained",
    "lora_modules_to_save": "the modules to save are taken as frozen",
    "rl": "only the loss of plain fine-tuning is modelled",
    "neftune_noise_alpha": "the noise on the embeddings is not counted",
    "lora_mlp_kernel": "axolotl's LoRA kernels are not modelled",
    "lora_qkv_kernel": "axolotl's LoRA kernels are not modelled",
    "lora_o_kernel": "axolotl's LoRA kernels are not modelled",
    "peft_use_dora": "DoRA is taken as LoRA",
    "flash_attn_cross_entropy": "the plain loss is taken",
    "auto_find_batch_size": "the micro-batch is taken as given",
    "group_by_length": "every sample is taken at the full length",
    "expert_parallel_size": "expert parallelism is not modelled",
}


def looks_so(document: Document) -> bool:
    """A mapping with base_model, as every axolotl config has."""
    return document.mapping is not None and "base_model" in document.mapping


def read(document: Document) -> Reading:
    """Say what the YAML says. Raises RigplanError for a value that cannot be read."""
    options = Options(document.mapping or {}, document.source)
    reading = Reading(document.source)
    model = options.take("base_model")
    if model is not None:
        say_model(document, reading, str(model))
    reading.say("model.task", "causal-lm")
    reading.say("data.sequence_length", options.whole("sequence_len"))
    if not options.flag("sample_packing") and not options.flag("pad_to_sequence_len"):
        reading.assume("every sample is taken at the full sequence_len, as with sample_packing")
    reading.say("training.micro_batch", options.whole("micro_batch_size"))
    reading.say("training.accumulation", options.whole("gradient_accumulation_steps"))
    reading.say("training.global_batch", options.whole("batch_size"))
    say_norm(reading, options.number("max_grad_norm"))
    optimizer = options.take("optimizer")
    if optimizer is not None:
        say_optimizer(reading, str(optimizer))
    _checkpointing(options, reading)
    _attention(options, reading)
    _adapter(options, reading)
    _sharding(options, reading)
    _precision(options, reading)
    reading.say("training.tensor_parallel", options.whole("tensor_parallel_size"))
    if options.flag("torch_compile"):
        reading.say("training.compile", True)
    _loss(options, reading)
    steps, epochs = options.whole("max_steps"), options.number("num_epochs")
    if steps is not None and steps > 0:
        reading.say("data.total", f"{steps} steps")
    else:
        reading.say("epochs", 1.0 if epochs is None else epochs)
    for name, words in NOT_HELD.items():
        value = options.take(name)
        if value not in (None, False, [], 1):
            reading.assume(f"{options.shown(name, value)}: {words}")
    for place, value in DEFAULTS.items():
        reading.default(place, value, "the default of axolotl")
    options.finish(reading, bearing_nothing("axolotl"))
    return reading


def _checkpointing(options: Options, reading: Reading) -> None:
    selective = options.take("selective_checkpointing")
    on = options.take("gradient_checkpointing")
    if on in ("offload", "offload_disk", "unsloth"):
        reading.assume(f"checkpointing full for gradient_checkpointing {on}: the inputs are taken to stay on the GPU")
        on = True
    if selective:
        reading.say("training.checkpointing", "selective")
    elif on is not None:
        reading.say("training.checkpointing", "full" if on is True or str(on).lower() == "true" else "none")


def _loss(options: Options, reading: Reading) -> None:
    liger, cut = options.flag("liger_fused_linear_cross_entropy"), options.flag("cut_cross_entropy")
    if liger or cut:
        reading.say("training.loss", "fused-linear")
    if cut and not liger:
        reading.assume("loss fused-linear for cut_cross_entropy, which keeps fewer logits still")


def _attention(options: Options, reading: Reading) -> None:
    name = options.take("attn_implementation")
    for option, meant in ATTENTIONS.items():
        if options.flag(option):
            name = meant
    say_attention(reading, name)


def _adapter(options: Options, reading: Reading) -> None:
    adapter = options.take("adapter")
    four, eight = options.flag("load_in_4bit"), options.flag("load_in_8bit")
    r, alpha = options.whole("lora_r"), options.whole("lora_alpha")
    dropout, targets = options.number("lora_dropout"), options.words("lora_target_modules")
    linear = options.flag("lora_target_linear")
    if adapter in (None, ""):
        return
    if adapter not in ("lora", "qlora"):
        reading.assume(f"LoRA for the adapter {adapter}, which is not modelled")
    if eight:
        reading.assume("weights in nf4 for load_in_8bit: 8-bit weights are not modelled, and take twice as much")
    say_lora(
        reading,
        r=r or LORA_R,
        alpha=alpha or LORA_ALPHA,
        dropout=dropout or 0.0,
        targets=[ALL_LINEAR] if linear else targets,
        quantize="nf4" if four or eight or adapter == "qlora" else None,
    )
    if r is None or alpha is None:
        reading.assume(f"LoRA of rank {r or LORA_R} and alpha {alpha or LORA_ALPHA}: peft's defaults where not given")


LORA_R, LORA_ALPHA = 8, 8  # peft.LoraConfig


def _sharding(options: Options, reading: Reading) -> None:
    fsdp, settings = options.take("fsdp"), options.part("fsdp_config")
    version = options.take("fsdp_version")
    if fsdp or settings:
        words = fsdp if isinstance(fsdp, list) else str(fsdp or "").split()
        reading.say("training.sharding", "fsdp-grad-op" if "shard_grad_op" in words else "fsdp")
        if "offload" in words:
            reading.say("training.offload", "all")
        if version is not None:
            settings.setdefault("fsdp_version", version)
        read_fsdp_config(Options(settings, options.source), reading)
    replicate, shard = options.whole("dp_replicate_size") or 1, options.whole("dp_shard_size") or 1
    group = shard * (options.whole("tensor_parallel_size") or 1)
    if replicate * group > 1:
        say_gpus(reading, replicate, group)
    if replicate > 1 and shard > 1:
        reading.say("training.sharding", "hsdp")
    deepspeed = options.take("deepspeed")
    if deepspeed:
        reading.companions.append((str(deepspeed), "deepspeed"))


def _precision(options: Options, reading: Reading) -> None:
    """axolotl loads the weights in the dtype it computes in; FSDP and DeepSpeed keep fp32 copies of what is trained."""
    half = [name for name in ("bf16", "fp16", "bfloat16", "float16") if _on(options.take(name))]
    tf32, fp8 = _on(options.take("tf32")), _on(options.take("fp8"))
    options.take("float32")
    if fp8:
        reading.say("training.precision", "fp8-mixed")
        return
    if not half:
        reading.say("training.precision", "tf32" if tf32 else "fp32")
        return
    low = half[0]
    sharded = "training.sharding" in reading.fields or any(kind == "deepspeed" for _, kind in reading.companions)
    if sharded and "model.lora" not in reading.fields:
        reading.say("training.precision", "bf16-mixed" if low in ("bf16", "bfloat16") else "fp16-mixed")
        reading.assume("FSDP and DeepSpeed keep the trained weights in fp32 beside the half precision they compute in")
    else:
        say_half(reading, low in ("fp16", "float16"), "axolotl loads the weights in the dtype that it computes in")


def _on(value: Any) -> bool:
    return value is True or str(value).lower() in ("auto", "true")


__all__ = ["DEFAULTS", "looks_so", "read"]
