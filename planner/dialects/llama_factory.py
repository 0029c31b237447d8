"""A LLaMA-Factory YAML or command line: the Trainer's options, and those of llamafactory.hparams beside them."""

from __future__ import annotations

from planner.dialects.adapters import ALL_LINEAR, say_half, say_lora
from planner.dialects.document import Document
from planner.dialects.model_names import say_model
from planner.dialects.reading import Options, Reading, bearing_nothing
from planner.dialects.trainer import read_trainer, say_attention, say_liger

MARKS = {"stage", "finetuning_type", "cutoff_len", "template", "dataset_dir"}
# what LLaMA-Factory sets otherwise than TrainingArguments, and its own: llamafactory/hparams, model/adapter.py
CUTOFF_LEN, LORA_RANK, ALPHA_OF_RANK = 2048, 8, 2
ATTENTIONS = {
    "auto": "sdpa",
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash_attention_2",
    "fa3": "flash_attention_3",
}
NOT_HELD = {
    "use_unsloth": "unsloth's kernels are not modelled",
    "use_unsloth_gc": "the checkpoints are taken to stay on the GPU",
    "use_galore": "GaLore is not modelled: the optimizer's states are counted in full",
    "use_apollo": "APOLLO is not modelled: the optimizer's states are counted in full",
    "use_badam": "BAdam is not modelled: every parameter is taken to be trained",
    "use_adam_mini": "Adam-mini is not modelled: AdamW's states are counted",
    "use_dora": "DoRA is taken as LoRA",
    "shift_attn": "attention is taken over the full length",
    "additional_target": "the additional modules are taken as frozen",
    "mixture_of_depths": "every layer is taken to run",
    "upcast_layernorm": "the norms are taken in the weights' dtype",
    "freeze_trainable_layers": "every parameter is taken to be trained",
    "use_llama_pro": "every parameter is taken to be trained",
    "image_max_pixels": "images are taken at the model's own size",
    "ref_model": "the reference model is not counted",
    "reward_model": "the reward model is not counted",
    "use_mca": "Megatron's own parallelism is not modelled",
}


def looks_so(document: Document) -> bool:
    """A mapping of the Trainer's options with some that only LLaMA-Factory has."""
    return document.mapping is not None and bool(MARKS & set(document.mapping)) and "base_model" not in document.mapping


def read(document: Document) -> Reading:
    """Say what the YAML says. Raises RigplanError for a value that cannot be read."""
    reading = Reading(document.source)
    read_options(Options(document.mapping or {}, document.source), reading, document)
    return reading


def read_options(options: Options, reading: Reading, document: Document) -> None:
    """The options by name, from a YAML or from a command line."""
    read_trainer(options, reading)
    model = options.take("model_name_or_path")
    if model is not None:
        say_model(document, reading, str(model))
    reading.say("model.task", "causal-lm")
    stage = str(options.take("stage") or "sft")
    if stage not in ("pt", "sft"):
        reading.assume(f"stage {stage}: only the loss of plain fine-tuning is modelled, without a reference model")
    _lengths(options, reading)
    attention = options.take("flash_attn")
    if attention is not None:
        say_attention(reading, ATTENTIONS.get(str(attention), str(attention)))
    if options.flag("enable_liger_kernel", "use_liger_kernel"):
        say_liger(reading, options.shown("enable_liger_kernel", True))
    if options.flag("use_muon"):
        reading.say("training.optimizer", "muon")
    reading.default("training.checkpointing", "full", "the default of LLaMA-Factory")
    if options.flag("disable_gradient_checkpointing"):
        reading.say("training.checkpointing", "none")
    else:
        reading.fields.pop("training.checkpointing", None)  # its own switch decides, and not the Trainer's
    kind = _adapter(options, reading)
    _precision(options, reading, kind)
    if kind == "freeze":
        reading.assume("finetuning_type freeze: every parameter is taken to be trained")
    for name, words in NOT_HELD.items():
        value = options.take(name)
        if value not in (None, False, "False", "false"):
            reading.assume(f"{options.shown(name, value)}: {words}")
    options.finish(reading, bearing_nothing("trainer", "llama-factory"))


def _lengths(options: Options, reading: Reading) -> None:
    packing, neat = options.flag("packing"), options.flag("neat_packing")
    reading.say("data.sequence_length", options.whole("cutoff_len"))
    reading.default("data.sequence_length", CUTOFF_LEN, "the default of LLaMA-Factory")
    if not packing and not neat:
        reading.assume("every sample is taken at the full cutoff_len, as with packing")


def _adapter(options: Options, reading: Reading) -> str:
    kind = str(options.take("finetuning_type") or "lora")
    rank, alpha = options.whole("lora_rank"), options.whole("lora_alpha")
    dropout, targets = options.number("lora_dropout"), options.words("lora_target")
    bits = options.whole("quantization_bit")
    if kind not in ("lora", "full", "freeze"):
        reading.assume(f"LoRA for finetuning_type {kind}, which is not modelled")
    if kind in ("full", "freeze"):
        return kind
    if bits not in (None, 4):
        reading.assume(f"weights in nf4 for quantization_bit {bits}, which is not modelled")
    rank = rank or LORA_RANK
    say_lora(
        reading,
        r=rank,
        alpha=alpha or ALPHA_OF_RANK * rank,
        dropout=dropout or 0.0,
        targets=targets or [ALL_LINEAR],
        quantize="nf4" if bits is not None else None,
    )
    return kind


def _precision(options: Options, reading: Reading, kind: str) -> None:
    """LLaMA-Factory loads in half precision and brings what it trains to fp32, unless pure_bf16 is set."""
    bf16, fp16, tf32, pure = (options.flag(name) for name in ("bf16", "fp16", "tf32", "pure_bf16"))
    if options.flag("fp8"):
        reading.say("training.precision", "fp8-mixed")
    elif pure:
        reading.say("training.precision", "bf16")
    elif (bf16 or fp16) and kind == "lora":
        say_half(reading, bool(fp16), "the frozen weights are in half precision, the adapters in fp32 are taken so too")
    elif bf16 or fp16:
        reading.say("training.precision", "bf16-mixed" if bf16 else "fp16-mixed")
    elif tf32:
        reading.say("training.precision", "tf32")


__all__ = ["looks_so", "read", "read_options"]
