"""Public reports of what ran and what ran out of memory, told as specs and judged: `python -m calibrate.reports FILE`.

A row says what its author said: a model, GPUs, a batch, a length, a precision and a way to train; `assumed` names what
the collector took from the repository's defaults. What a row leaves open is never made up: such a row is skipped, with
its reason. The exceptions are an adapter's rank and targets and a framework's checkpointing, where the library in use
has a default of its own; rows that lean on one are counted apart.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog import presets
from catalog.errors import RigplanError
from planner.answer import Estimate
from planner.report.layout import table
from planner.search import fits

Row = Mapping[str, Any]
GRADES = ("A", "B")
VERDICTS = {"oom": "does-not-fit", "fits": "fits"}
# Names that are no preset's, and the preset of the same architecture.
SAME_ARCHITECTURE = {
    "Vicuna-7B": "llama-7b",  # fine-tuned from it
    "LLaMA (size not stated, 7B likely)": "llama-7b",  # as the row assumes
    "GPT-2-XL-1.5B": "gpt2-xl",
}
# Models told as something other than a preset. DiT's training script encodes images with a frozen autoencoder beside.
MODULES = {"DiT-XL/2": "examples/models/dit.py:make_xl"}  # from the project's root
# DeiT-III (Touvron et al. 2022) is a vision transformer whose blocks scale what they add, as BEiT's do without its
# relative positions; its head reads one token and has the 21,841 classes of ImageNet-21k.
_DEIT: dict[str, Any] = {
    "model_type": "beit", "patch_size": 16, "image_size": 224, "num_labels": 21841, "use_mean_pooling": False,
    "use_absolute_position_embeddings": True, "layer_scale_init_value": 1e-4,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    f"DeiT-III {size}": {
        **_DEIT,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "patch_size": patch,
    }
    for size, width, depth, heads, patch in (
        ("Tiny", 192, 12, 3, 16),
        ("Small", 384, 12, 6, 16),
        ("Base", 768, 12, 12, 16),
        ("Large", 1024, 24, 16, 16),
        ("Huge/14", 1280, 32, 16, 14),
    )
}
SAME_MEMORY = {"V100S-32GB": "v100-pcie-32gb"}  # a faster clock on the same memory
# Names of several cards: what ran is asked of the smallest of them, where it has to fit too.
SMALLEST = {"A100": "a100-pcie-40gb", "V100": "v100-pcie-16gb"}
SHARDING = {
    "": "none", "none": "none", "none (DDP)": "none", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3",
    "fsdp": "fsdp", "fsdp_full_shard": "fsdp", "fsdp_full_shard (1 rank: no sharding)": "none",
}  # fmt: skip
OFFLOAD = {"none": "none", "optimizer": "optimizer", "cpu params": "all", "params+optimizer": "all"}
# A report of an offloaded run is about the GPU: its host, which most do not tell, is taken to have enough.
AMPLE_HOST = "4 TiB"
# What a framework means by half precision, when all weights are trained: fp32 masters, except where it says pure.
MIXED = {
    "bf16": "bf16-mixed", "bf16_mixed": "bf16-mixed", "bf16 amp": "bf16-mixed", "bf16_pure": "bf16",
    "fp16": "fp16-mixed", "fp16 amp": "fp16-mixed", "amp": "fp16-mixed", "fp32": "fp32", "tf32": "tf32",
}  # fmt: skip
FROZEN = {"bf16": "bf16", "bf16_pure": "bf16", "bf16_mixed": "bf16-mixed"}  # frozen weights are loaded as they are
PURE_FRAMEWORKS = ("torchtune", "litgpt")
OPTIMIZERS = {"": "adamw", "adamw": "adamw", "adamw8bit": "adamw-8bit", "adafactor": "adafactor"}
TARGETS = {"all": ["all-linear"], "q,v": ["q_proj", "v_proj"]}
PEFT_RANK, PEFT_TARGETS = 8, ["q_proj", "v_proj"]  # peft's defaults (LoraConfig.r, and the targets it knows for LLaMA)
# The last thread of each repository that is older than fused attention in transformers, the default since version 4.36
# of December 2023 (huggingface/transformers/issues/28005): until then models ran eager attention.
BEFORE_FUSED_ATTENTION = {
    "huggingface/transformers": 28004,
    "tatsu-lab/stanford_alpaca": 280,  # 2023-06-30
    "caikit/caikit-nlp": 139,  # 2023-08-22
    "deepspeedai/DeepSpeed": 3168,  # 2023-04
    "facebookresearch/deit": 198,  # 2022-11; its blocks multiply, take a softmax and multiply
}
# The last thread of each repository whose zero_grad did not yet free gradients, so that they stay from step to step as
# in accumulation: torch does since 2.0 of March 2023 (pytorch/pytorch/pull/92731), transformers' Trainer since its own
# pull request 22136 of that month.
BEFORE_FREED_GRADIENTS = {"huggingface/transformers": 22135, "facebookresearch/deit": 198}
CHECKPOINTS = ("LLaMA-Factory",)  # unless disable_gradient_checkpointing is set (hparams/model_args.py)


# What an author has to state for the report to count as told in full; the collector took the rest from defaults.
STATED = {"model", "micro_batch", "global_batch", "seq", "resolution", "precision", "gpu", "gpu_mem_gb", "zero"}


class Skipped(Exception):
    """Why a row is no question that can be asked today."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row with its answer; `defaults`: what came from the library in use rather than from the report."""

    row: Row
    found: Estimate
    defaults: tuple[str, ...]

    @property
    def right(self) -> bool:
        """The verdict reported, or borderline: a margin that the answer itself calls too small to tell."""
        return self.found.verdict in (VERDICTS[self.row["verdict"]], "borderline")

    @property
    def stated(self) -> bool:
        """Whether its author states model, batch, length, precision and GPU."""
        return not STATED.intersection(self.row["assumed"])

    @property
    def firm(self) -> bool:
        return self.found.verdict == VERDICTS[self.row["verdict"]]


def spec_of(row: Row) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The row as a spec, and what the library's defaults filled in. Raises Skipped."""
    config: Mapping[str, Any] = row["config"]
    if row["grade"] not in GRADES or row["verdict"] not in VERDICTS:
        raise Skipped("no graded verdict on memory")
    if "phase" in config:
        raise Skipped(f"about another moment: {config['phase']}")
    task = _task(str(config.get("task", "")))
    gpus = int(config.get("n_gpus") or _missing("number of GPUs"))
    adapter, defaults = _adapter(config, task)
    checkpointed, filled = _checkpointing(config)
    model, usual_task = _model(str(row["model"]))
    if adapter is not None:
        model["lora"] = adapter
    if str(config.get("task", "")).startswith("SQuAD"):
        model["task"] = "sequence-classification"  # a head of two outputs, as for spans
    if config.get("flash_attn") is False or ("flash_attn" not in config and _of(BEFORE_FUSED_ATTENTION, row["source"])):
        model["attention"] = "eager"
    offload = _known(OFFLOAD, str(config.get("offload", "none")), "offload")
    training: dict[str, Any] = {
        "precision": _precision(config, "quantize" in (adapter or {}), task),
        "micro_batch": _micro_batch(config, gpus),
        "optimizer": _known(OPTIMIZERS, str(config.get("optimizer", "")), "optimizer"),
        "checkpointing": "full" if checkpointed else "none",
        "sharding": _sharding(config, gpus, offload),
        "offload": offload,
        "accumulation": int(config.get("grad_accum", 1)),
    }
    if training["sharding"] == "zero1":
        training["zero1"] = "deepspeed"  # nobody reports torch's own
    if _of(BEFORE_FREED_GRADIENTS, row["source"]):
        training["accumulation"] = max(2, training["accumulation"])
    gpu = str(config["gpu"])
    if row["verdict"] == "fits":
        gpu = SMALLEST.get(gpu, gpu)
    host = {} if offload == "none" else {"host_memory": AMPLE_HOST}
    return {
        "model": model,
        "data": _lengths(config, usual_task),
        "training": training,
        "hardware": {"gpu": SAME_MEMORY.get(gpu, gpu), "count": gpus, **host},
    }, defaults + filled


def judge(row: Row) -> Judged:
    """The answer to a row. Raises Skipped, also with rigplan's own reason when it refuses the question."""
    spec, defaults = spec_of(row)
    try:
        found = fits(spec)
    except RigplanError as error:
        raise Skipped(str(error).splitlines()[0]) from error
    if not isinstance(found, Estimate):
        raise Skipped("leaves several combinations")
    return Judged(row, found, defaults)


def _model(name: str) -> tuple[dict[str, Any], str]:
    """What `model` says in the spec, and the task it is trained for."""
    if name in MODULES:
        return {"module": MODULES[name]}, "module"
    if name in CONFIGS:
        return {"config": CONFIGS[name], "task": "image-classification"}, "image-classification"
    preset = presets.lookup(SAME_ARCHITECTURE.get(name, name))
    if preset is None:
        raise Skipped(f"no preset of {name}")
    return {"name": SAME_ARCHITECTURE.get(name, name)}, preset.task


def _of(last: Mapping[str, int], source: str) -> bool:
    """Whether a thread is of the time of these last ones."""
    repository, number = "/".join(source.split("/")[3:5]), int(source.rsplit("/", 1)[1])
    return number <= last.get(repository, 0)


def _task(task: str) -> str:
    if task in ("lora", "qlora"):
        return task
    if task == "full_ft" or task.startswith(("pretrain", "SQuAD", "ImageNet")):
        return "full"
    raise Skipped(f"task not modelled: {task or 'not stated'}")


def _adapter(config: Mapping[str, Any], task: str) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    if task == "full":
        return None, ()
    quant = str(config.get("quant", "nf4" if task == "qlora" else "none"))
    if quant not in ("nf4", "nf4-dq", "none"):
        raise Skipped(f"weights in {quant} not modelled")
    if config.get("framework") == "unsloth":
        raise Skipped("unsloth's kernels not modelled")
    defaults = tuple(key for key in ("lora_rank", "lora_targets") if key not in config)
    rank = int(config.get("lora_rank", PEFT_RANK))
    targets = TARGETS.get(str(config.get("lora_targets")), PEFT_TARGETS)
    adapter: dict[str, Any] = {"r": rank, "alpha": 2 * rank, "target_modules": targets}
    return adapter if quant == "none" else {**adapter, "quantize": "nf4"}, defaults


def _checkpointing(config: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    if "act_ckpt" in config:
        return bool(config["act_ckpt"]), ()
    return (True, ("act_ckpt",)) if config.get("framework") in CHECKPOINTS else (False, ())


def _precision(config: Mapping[str, Any], packed: bool, task: str) -> str:
    said = str(config.get("precision") or _missing("precision")).removesuffix(" channels_last")
    if task != "full" and not packed:
        return _known(FROZEN, said, "precision of frozen weights")
    if said == "bf16" and str(config.get("framework", "")).startswith(PURE_FRAMEWORKS):
        return "bf16"
    return _known(MIXED, said, "precision")


def _micro_batch(config: Mapping[str, Any], gpus: int) -> int:
    size = config.get("micro_batch")
    if size is None and "global_batch" in config and "grad_accum" not in config and config.get("zero") == "none (DDP)":
        size = int(config["global_batch"]) // gpus
    return int(size) if size is not None else int(_missing("micro-batch"))


def _sharding(config: Mapping[str, Any], gpus: int, offload: str) -> str:
    if any(int(config.get(key, 1)) > 1 for key in ("tp", "pp", "ep")):
        raise Skipped("tensor or pipeline parallel in a framework of its own not modelled")
    if config.get("compile"):
        raise Skipped("torch.compile not modelled")
    if gpus > 1 and "zero" not in config:
        _missing("sharding")
    sharding = _known(SHARDING, str(config.get("zero", "")), "sharding")
    return sharding if gpus > 1 or offload != "none" else "none"


def _lengths(config: Mapping[str, Any], task: str) -> dict[str, int]:
    if task == "module":
        return {}  # its factory decides
    if "resolution" in config:
        return {"image_size": int(config["resolution"])}
    if "src_len" in config and task == "seq2seq-lm":
        return {"sequence_length": int(config["src_len"]), "target_length": int(config["tgt_len"])}
    if "src_len" in config:  # a decoder reads both in one sequence
        return {"sequence_length": int(config["src_len"]) + int(config["tgt_len"])}
    if not isinstance(config.get("seq"), int):
        _missing("length")
    return {"sequence_length": int(config["seq"])}


def _known(words: Mapping[str, str], said: str, what: str) -> str:
    if said not in words:
        raise Skipped(f"{what} not modelled: {said}")
    return words[said]


def _missing(what: str) -> Any:
    raise Skipped(f"{what} not stated")


def read(path: Path) -> list[Row]:
    """The rows of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def judged(rows: Iterable[Row]) -> tuple[list[Judged], list[tuple[Row, str]]]:
    """The rows that could be asked, with their answers, and the skipped with their reasons."""
    answers: list[Judged] = []
    skipped: list[tuple[Row, str]] = []
    for row in rows:
        try:
            answers.append(judge(row))
        except Skipped as reason:
            skipped.append((row, str(reason)))
    return answers, skipped


def page(answers: Sequence[Judged], skipped: Sequence[tuple[Row, str]]) -> str:
    """The table, the share that is right, and the skipped rows by reason."""
    gib = 1 << 30
    rows = [
        [
            item.row["id"], item.row["model"], str(item.row["config"]["gpu"]), item.row["verdict"], item.found.verdict,
            f"{item.found.memory.low_bytes / gib:.1f}-{item.found.memory.high_bytes / gib:.1f}",
            f"{item.found.memory.usable_bytes / gib:.1f}",
            f"{item.row['value']} {item.row['unit']}" if item.row["value"] else "",
            "right" if item.firm else "borderline" if item.right else "WRONG", ", ".join(item.defaults),
        ]
        for item in answers
    ]  # fmt: skip
    headers = ["row", "model", "GPU", "reported", "answer", "GiB", "usable", "measured", "", "library's default"]
    lines = [table(rows, headers, "llllllllll"), ""]
    parts = (
        ("all", answers),
        ("nothing filled in", [item for item in answers if not item.defaults]),
        ("model, batch, length, precision and GPU stated", [item for item in answers if item.stated]),
    )
    for title, part in parts:
        right, firm = sum(item.right for item in part), sum(item.firm for item in part)
        share = f"{right / len(part):.0%}" if part else "none"
        lines.append(f"{title}: {right} of {len(part)} right ({share}), {firm} of them without borderline")
    lines += ["", "Skipped:", *(f"  {row['id']} {row['model']}: {reason}" for row, reason in skipped)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page(*judged(read(Path(sys.argv[1])))) + "\n")
