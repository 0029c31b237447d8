"""TrainingArguments: the command line of a script that uses Hugging Face's Trainer, or the same options as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalog import presets
from planner.dialects.adapters import say_lora
from planner.dialects.command_line import LAUNCHERS, Command, find_command
from planner.dialects.document import Document
from planner.dialects.launcher import read_launch
from planner.dialects.model_names import say_model
from planner.dialects.reading import Options, Reading, as_flag, as_yaml, bearing_nothing
from planner.dialects.slurm import Allocation, flags
from planner.dialects.trainer import DEFAULTS, read_attention, read_precision, read_trainer, say_liger

LENGTHS = (
    "max_seq_length", "model_max_length", "block_size", "max_length", "max_seq_len", "seq_length", "max_source_length",
    "cutoff_len", "sequence_length", "seq_len",
)  # fmt: skip
TARGET_LENGTHS = ("max_target_length", "target_length")
MODELS = (
    "model_name_or_path",
    "model_name",
    "pretrained_model_name_or_path",
    "model_id",
    "model",
    "base_model",
    "config_name",
)


@dataclass(frozen=True, slots=True)
class Script:
    """What a well-known script trains, and the lengths it takes where nothing is said (tokens)."""

    task: str
    length: int | None = None
    target_length: int | None = None


# By the name of the file. Lengths from the scripts themselves: transformers/examples/pytorch, trl/scripts
SCRIPTS: Mapping[str, Script] = {
    "run_clm": Script("causal-lm", 1024),
    "run_clm_no_trainer": Script("causal-lm", 1024),
    "run_mlm": Script("masked-lm"),
    "run_glue": Script("sequence-classification", 128),
    "run_classification": Script("sequence-classification", 128),
    "run_summarization": Script("seq2seq-lm", 1024, 128),
    "run_translation": Script("seq2seq-lm", 1024, 128),
    "run_image_classification": Script("image-classification"),
    "run_semantic_segmentation": Script("semantic-segmentation"),
    "run_speech_recognition_ctc": Script("ctc"),
    "run_speech_recognition_seq2seq": Script("speech-seq2seq"),
    "run_clip": Script("contrastive"),
    "run_mae": Script("pretraining"),
    "sft": Script("causal-lm", 1024),
}
# What TRL's SFTConfig and ModelConfig set otherwise than TrainingArguments: trl/trainer/{base_config,model_config}.py
TRL_DEFAULTS: Mapping[str, Any] = {**DEFAULTS, "training.checkpointing": "full", "training.precision": "bf16-mixed"}
LORA_R, LORA_ALPHA, LORA_DROPOUT = 16, 32, 0.05  # TRL's ModelConfig


def looks_so(document: Document) -> bool:
    """A command with options, or a mapping with options of TrainingArguments."""
    if document.mapping is not None:
        return any(name in document.mapping for name in ("per_device_train_batch_size", "gradient_accumulation_steps"))
    return " --" in f" {document.text}" or any(word in LAUNCHERS for word in document.text.split())


def read(document: Document) -> Reading:
    """A file of options, or a command line with its launcher; other tools' commands are read as theirs."""
    if document.mapping is not None:
        reading = Reading(document.source)
        read_script(Options(document.mapping, document.source, as_yaml), reading, document, Command("python"))
        return reading
    return read_command(find_command(document.text, document.source), document)


def read_command(command: Command, document: Document) -> Reading:
    """A command line, by who starts it."""
    reading = Reading(document.source)
    read_launch(command, reading, document.source)
    _before(command, reading, document.source)
    options = Options(command.options, document.source, as_flag)
    files = [word for word in command.words if word.endswith((".yaml", ".yml", ".json"))]
    reading.not_understood += [word for word in command.words if word not in files]
    of_llama_factory = command.launcher == "llamafactory-cli" or {"stage", "finetuning_type"} <= set(command.options)
    if of_llama_factory and not files:
        from planner.dialects import llama_factory

        llama_factory.read_options(options, reading, document)
    elif command.launcher in ("llamafactory-cli", "axolotl"):
        dialect = "axolotl" if command.launcher == "axolotl" else "llama-factory"
        reading.companions.extend((file, dialect) for file in files)
        options.finish(reading, frozenset())
    else:
        config = options.take("config") if command.launcher == "trl" else None
        if config is not None:
            reading.companions.append((str(config), "training-arguments"))
        reading.companions.extend((file, "training-arguments") for file in files)
        if command.options:
            read_script(options, reading, document, command)
    return reading


def _before(command: Command, reading: Reading, source: str) -> None:
    """What stands before the launcher: srun and its options, mpirun and its number of processes, or a container."""
    before = list(command.before)
    while before and before[0] in ("nohup", "time", "exec", "eval", "env"):
        before.pop(0)
    if "srun" in before:
        start = before.index("srun")
        options = Options(flags(before[start + 1 :]), source, as_flag)
        Allocation.of(options).say(reading)
        options.finish(reading, bearing_nothing("sbatch"))
        before = before[:start]
    elif before[:1] in (["mpirun"], ["mpiexec"]) and before[1:2] in (["-np"], ["-n"]) and before[2:3]:
        if "hardware.count" not in reading.fields and before[2].isdigit():
            reading.say("hardware.count", int(before[2]))
        before = before[3:]
    if before:
        reading.not_understood.append(f"before the command: {' '.join(before)}")


def read_script(options: Options, reading: Reading, document: Document, command: Command) -> None:
    """The options of a script: those of the Trainer, the model, its lengths and adapters."""
    name = command.script.rsplit("/", 1)[-1].removesuffix(".py").rsplit(".", 1)[-1]
    script = SCRIPTS.get(name)
    of_trl = name == "sft"
    read_trainer(options, reading, TRL_DEFAULTS if of_trl else DEFAULTS)
    read_precision(options, reading)
    read_attention(options, reading)
    _model(options, reading, document)
    _lora(options, reading)
    if options.flag("use_liger_kernel"):
        preset = presets.lookup(str(reading.fields.get("model.name", "")))
        task = script.task if script is not None else preset.task if preset is not None else None
        say_liger(reading, options.shown("use_liger_kernel", True), causal=task == "causal-lm")
    if options.flag("packing") is False:
        reading.assume("every sample is taken at the full length, as if packed")
    reading.say("data.sequence_length", options.whole(*LENGTHS))
    reading.say("data.target_length", options.whole(*TARGET_LENGTHS))
    reading.say("data.image_size", options.whole("image_size"))
    if script is not None:
        reading.say("model.task", script.task)
        if script.length:
            reading.default("data.sequence_length", script.length, f"the default of {name}")
        if script.target_length:
            reading.default("data.target_length", script.target_length, f"the default of {name}")
    options.finish(reading, bearing_nothing("trainer", "script"))


def _model(options: Options, reading: Reading, document: Document) -> None:
    name = options.take(*MODELS)
    kind, changes = options.take("model_type"), options.take("config_overrides")
    if kind is not None and name is None:
        config: dict[str, Any] = {"model_type": str(kind)}
        for change in str(changes or "").split(","):
            key, equals, value = change.partition("=")
            if equals:
                config[key.strip()] = int(value) if value.strip().isdigit() else value.strip()
        reading.say("model.config", config)
    elif name is not None:
        say_model(document, reading, str(name))
        if changes is not None:
            reading.not_understood.append(options.shown("config_overrides", changes))


def _lora(options: Options, reading: Reading) -> None:
    four, eight = options.flag("load_in_4bit", "use_4bit"), options.flag("load_in_8bit", "use_8bit")
    bits = options.whole("bits")
    four, eight = four or bits == 4, eight or bits == 8
    if eight and not four:
        reading.assume("weights in nf4 for load_in_8bit: 8-bit weights are not modelled, and take twice as much")
    options.take("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    on = options.flag("use_peft", "use_lora", "lora_enable", "lora")
    r, alpha = options.whole("lora_r", "lora_rank"), options.whole("lora_alpha")
    dropout, targets = options.number("lora_dropout"), options.words("lora_target_modules", "lora_target")
    adapts = on or (on is None and (r is not None or targets is not None))
    if (four or eight) and not adapts:
        reading.assume("weights in the precision that is said: quantized weights are modelled under LoRA only")
    if adapts:
        say_lora(
            reading,
            r=r or LORA_R,
            alpha=alpha or LORA_ALPHA,
            dropout=LORA_DROPOUT if dropout is None else dropout,
            targets=targets,
            quantize="nf4" if four or eight else None,
        )
        if r is None or alpha is None:
            reading.assume(
                f"LoRA of rank {r or LORA_R} and alpha {alpha or LORA_ALPHA}: TRL's defaults where not given"
            )


__all__ = ["SCRIPTS", "TRL_DEFAULTS", "looks_so", "read", "read_command"]
