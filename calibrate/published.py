"""Published tables of training runs, told as specs that `calibrate check` compares.

`python -m calibrate.published CSV...` prints them as JSON lines.

A row says what its source says of framework, precision, batch, sharding and compilation. What a source states once for
all its rows stands in its adapter below. What matters and is stated nowhere is never guessed: such a row is left out,
with its reason.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from catalog import store

Row = Mapping[str, str]
Record = dict[str, Any]
GIB = 1 << 30
MS_S = 1e-3

TABLE_COLUMNS = {"source", "source_where", "micro_batch", "step_time_s"}
PEER_COLUMNS = {"source", "where", "inputs_json", "expected"}
ENDINGS = {"false": False, "true": True}

MIXED = {"fp16": "fp16-mixed", "bf16": "bf16-mixed", "fp32": "fp32", "tf32": "tf32"}
APEX_O2 = {**MIXED, "fp16": "fp16"}
PURE = {"bf16": "bf16", "fp32": "fp32"}
CHECKPOINTING = {"none": "none", "full": "full"}
MODELS = "calibrate.models"  # modules that no library has
LIBRARIES = re.compile(r"torch \d+\.\d+|NGC pytorch \d+\.\d+|20\d\d-\d\d NGC|\w+-20\d\d rerun")  # as notes say them
NEAR_FORMS = ("a100", "rtx-3080")  # whose forms differ by less than a tenth in speed


class Skipped(Exception):
    """Why a row is no question that can be asked."""


def records(rows: Iterable[Row]) -> list[Record]:
    """A record of each row: a spec and what was measured, or the `error` that says why there is none."""
    found: list[Record] = []
    seen: set[str] = set()
    for row in rows:
        try:
            record = _peer_record(row) if "inputs_json" in row else _table_record(row)
            same = json.dumps([record["spec"], record.get("step_seconds"), record.get("gradient_seconds")])
            if same in seen:
                raise Skipped("the same run as a row before")
            seen.add(same)
            found.append(record)
        except Skipped as reason:
            found.append({"name": _name(row), "spec": {}, "error": str(reason)})
    return found


def schema(columns: Iterable[str]) -> str | None:
    """`table` or `peers`: which of the published schemas a file's columns are; None for another file."""
    names = set(columns)
    return "table" if names >= TABLE_COLUMNS else "peers" if names >= PEER_COLUMNS else None


def _table_record(row: Row) -> Record:
    if row["n_gpus"] != "1":
        raise Skipped("several GPUs: their link is not stated, or the framework's parallelism is its own")
    adapter = next((found for start, found in ADAPTERS.items() if row["source"].startswith(start)), None)
    if adapter is None:
        raise Skipped(next((why for start, why in UNUSED.items() if row["source"].startswith(start)), "no adapter"))
    if row["oom"] == "true":
        raise Skipped("ran out of memory: no time")
    seconds = _seconds(row)
    if row["offload"] not in ("none", "", "false"):
        raise Skipped(f"offload of {row['offload']} not modelled")
    parts = adapter(row)
    training: dict[str, Any] = {
        "micro_batch": int(row["micro_batch"] or _missing("micro-batch")),
        "accumulation": int(row["grad_accum"] or 1),
        "checkpointing": _known(CHECKPOINTING, row["act_ckpt"] or "none", "checkpointing"),
        "compile": ENDINGS.get(row["compile"], False),
        **parts.pop("training"),
    }
    extra = parts.pop("record", {})
    gpu = _gpu(parts.pop("gpu", row["gpu"]), row["gpu_mem_gb"])
    spec = {**parts, "training": training, "hardware": {"gpu": gpu}}
    return {
        "name": _name(row),
        "source": row["source"],
        "source_where": row["source_where"],
        "spec": spec,
        "step_seconds": seconds,
        **extra,
        **({"libraries": found.group()} if (found := LIBRARIES.search(row["notes"])) else {}),
    }


def _seconds(row: Row) -> float:
    """Seconds of an optimizer step. A rate is of samples or tokens over all GPUs' micro-batches of a step."""
    if row["step_time_s"]:
        return float(row["step_time_s"])
    batch = float(row["micro_batch"] or 0) * float(row["grad_accum"] or 1)
    if row["tokens_per_s_per_gpu"] and row["seq_len"] and batch:
        return batch * float(row["seq_len"]) / float(row["tokens_per_s_per_gpu"])
    raise Skipped("no time of a step, or samples of variable length")


def _name(row: Row) -> str:
    if "inputs_json" in row:
        given = _inputs(row)
        size = f"b{given['micro_batch']}" if "micro_batch" in given else str(given.get("option", ""))
        return f"{row['source']}: {given.get('model', row['quantity'])} {given.get('gpu', '')} {size}".strip()
    words = [row["model"], row["gpu"], row["precision"], f"b{row['micro_batch']}"]
    words += [f"x{row['grad_accum']}"] if row["grad_accum"] not in ("", "1") else []
    words += [f"{row['n_gpus']} GPUs"] if row["n_gpus"] != "1" else []
    words += ["checkpointed"] if row["act_ckpt"] == "full" else []
    words += ["compiled"] if row["compile"] == "true" else []
    words += [found.group(1)] if (found := re.search(r"memory_format=(\w+)", row["notes"])) else []
    return f"{row['source'].split(' (')[0]}: {' '.join(filter(None, words))}"


def _gpu(name: str, memory_gb: str) -> str:
    found = store.lookup(name) or store.lookup(f"{name}-{memory_gb}GB")
    if found is None:
        raise Skipped(f"GPU not in the catalog: {name}")
    if found.assumption and not found.name.startswith(NEAR_FORMS):
        raise Skipped(f"the form of {name} is not stated")
    return found.name


def _known(words: Mapping[str, Any], said: str, what: str) -> Any:
    if said not in words:
        raise Skipped(f"{what} not stated" if not said else f"{what} not modelled: {said}")
    return words[said]


def _missing(what: str) -> Any:
    raise Skipped(f"{what} not stated")


# ---------------------------------------------------------------------------------------------------------------------
# What the sources state for all of their rows


def _rental_gpt2(row: Row) -> Record:
    """build-nanogpt's script: no dropout, tied embeddings, fused AdamW, gradients clipped to 1."""
    return {
        "model": {"module": f"{MODELS}.nanogpt:gpt2_124m"},
        "training": {
            "precision": _known(MIXED, row["precision"], "precision"),
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
        },
        "record": {"family": "gpt2", "device_bytes": round(float(row["peak_mem_gib"]) * GIB)},
    }


LANGUINI = {"mini": "mini", "tiny": "tiny", "small": "small", "medium": "medium", "large": "large", "XL": "xl"}


def _languini(row: Row) -> Record:
    """Languini's GPT: attention written out, untied embeddings, biases, no dropout; Adam, nothing clipped."""
    family, _, size = row["model"].removeprefix("Languini ").partition(" ")
    if family != "GPT":
        raise Skipped(f"model not at hand: {row['model']}")
    return {
        "model": {"module": f"{MODELS}.languini:{LANGUINI[size]}"},
        "training": {
            "precision": _known(MIXED, row["precision"], "precision"),
            "optimizer": "adam",
            "max_grad_norm": None,
        },
        "record": {"family": "languini"},
    }


LAMBDA_MODELS: dict[str, Record] = {
    "bert-base-uncased (SQuAD fine-tune)": {"module": f"{MODELS}.squad:bert_base"},
    "bert-large-uncased (SQuAD fine-tune)": {"module": f"{MODELS}.squad:bert_large"},
    "ResNet50 v1.5": {"name": "resnet-50"},
}
LAMBDA_LENGTH = 384  # of calibrate.models.squad
LAMBDA_UNUSED = {
    "GNMT": "lengths vary and are not stated",
    "Transformer-XL": "how its batches are cut into chunks is not stated",
    "SSD300": "model not at hand",
}
LAMBDA_OPTIMIZERS: dict[str, Record] = {"adam": {"optimizer": "adam"}, "": {"optimizer": "sgd", "max_grad_norm": None}}
"""As DeepLearningExamples train: Adam, and for ResNet-50 momentum SGD, of which nothing is clipped."""
LAMBDA_LOOPED: Record = {"optimizer": "adamw", "optimizer_implementation": "for-loop"}
"""BERT in fp32 and TF32 is stepped by BertAdam, Adam with weight decay in plain loops over the parameters; only in fp16
by apex's fused Adam, which `fp16` has (DeepLearningExamples, PyTorch/LanguageModeling/BERT: run_squad.py)."""


def _lambda(row: Row) -> Record:
    """NVIDIA's DeepLearningExamples: BERT for SQuAD by apex O2, images channels first."""
    if row["model"] not in LAMBDA_MODELS:
        raise Skipped(
            next((why for start, why in LAMBDA_UNUSED.items() if row["model"].startswith(start)), "no preset")
        )
    if "bert" in row["model"] and row["seq_len"] != str(LAMBDA_LENGTH):
        raise Skipped(f"not the length of its SQuAD runs: {row['seq_len']}")
    bert = "bert" in row["model"]
    precision = _known(APEX_O2 if bert else MIXED, row["precision"], "precision")
    optimizer = _known(LAMBDA_OPTIMIZERS, row["optimizer"], "optimizer")
    return {
        "model": LAMBDA_MODELS[row["model"]],
        "training": {"precision": precision, **(LAMBDA_LOOPED if bert and precision != "fp16" else optimizer)},
        "record": {"family": row["model"].split()[0].split("-uncased")[0].lower()},
    }


GPU_TEST_MODELS = {"Llama-3.1-8B": "llama-3.1-8b", "Phi-3-mini-4k": "phi-3-mini-4k"}
GPU_TEST_NAMES = {"Llama 3.1 8B Full": "llama-3.1-8b", "Phi3-mini 3.8B Full": "phi-3-mini-4k"}


def _gpu_test(row: Row) -> Record:
    """A trainer of bf16 weights and states, sequences fully packed; the rank of its adapters is not stated."""
    full = "Full fine-tune" in row["notes"] or row["model"].endswith(" Full")
    name = GPU_TEST_MODELS.get(row["model"]) or GPU_TEST_NAMES.get(row["model"])
    if not full:
        raise Skipped("rank and targets of the adapters not stated")
    return {
        "model": {"name": name or _missing("preset of the model"), "attention": "sdpa"},
        "data": {"sequence_length": int(row["seq_len"])},
        "training": {"precision": _known(PURE, row["precision"], "precision"), "optimizer": "adamw"},
        "record": {"family": "llama" if name == "llama-3.1-8b" else "phi3"},
    }


TORCHTUNE_RUNGS = ("+packed", "+compile")
"""Rungs of its ladder whose every part is modelled: the later ones chunk the loss, or step inside the backward."""


def _torchtune(row: Row) -> Record:
    """torchtune's single-device recipe: pure bf16 and fused AdamW, nothing clipped.

    Its own transformer attends causally by a fused kernel, compiled or not, and makes no mask of queries by keys, as
    transformers' sdpa does under torch.compile: flash attention is the knob that says so.
    """
    if row["gpu"] == "A6000":
        raise Skipped("faster than an A6000's ceiling: the GPU must be another")
    if not any(rung in row["notes"] for rung in TORCHTUNE_RUNGS):
        raise Skipped("not packed, or a rung whose loss in chunks or step in backward is not modelled")
    return {
        "model": {"name": "llama-3.2-3b", "attention": "flash_attention_2"},
        "data": {"sequence_length": int(row["seq_len"])},
        "training": {
            "precision": _known(PURE, row["precision"], "precision"),
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "max_grad_norm": None,
        },
        "gpu": "A100-80GB",  # its peaks of 60 GiB are no 40 GB card's
        "record": {"family": "llama", "peak_allocated_bytes": round(float(row["peak_mem_gib"]) * GIB)},
    }


TIMM_MODELS: dict[str, Record] = {
    "vit_tiny_patch16_224": {"config": {"model_type": "vit", "hidden_size": 192, "num_attention_heads": 3,
                             "intermediate_size": 768, "num_labels": 1000}},
    "vit_base_patch16_224": {"config": {"model_type": "vit", "num_labels": 1000}},
    "vit_large_patch16_224": {"config": {"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24,
                              "num_attention_heads": 16, "intermediate_size": 4096, "num_labels": 1000}},
    "swin_tiny_patch4_window7_224": {"config": {"model_type": "swin", "num_labels": 1000}},
    "convnext_tiny": {"config": {"model_type": "convnext", "num_labels": 1000}},
    "convnext_small": {"config": {"model_type": "convnext", "depths": [3, 3, 27, 3], "num_labels": 1000}},
    "convnext_base": {"config": {"model_type": "convnext", "depths": [3, 3, 27, 3],
                      "hidden_sizes": [128, 256, 512, 1024], "num_labels": 1000}},
    "convnext_large": {"config": {"model_type": "convnext", "depths": [3, 3, 27, 3],
                       "hidden_sizes": [192, 384, 768, 1536], "num_labels": 1000}},
}  # fmt: skip
"""Models of timm whose architecture transformers has too."""


def _timm(row: Row) -> Record:
    """timm's benchmark.py: autocast, momentum SGD, attention written out in that release."""
    if row["model"] not in TIMM_MODELS:
        raise Skipped("model only in timm")
    if "memory_format=nhwc" in row["notes"]:
        raise Skipped("channels-last memory is no part of a preset")
    family = row["model"].split("_")[0]
    model: Record = {**TIMM_MODELS[row["model"]], "task": "image-classification"}
    return {
        "model": {**model, "attention": "eager"} if family in ("vit", "swin") else model,
        "data": {"image_size": 224},
        "training": {
            "precision": _known(MIXED, row["precision"], "precision"),
            "optimizer": "sgd",
            "max_grad_norm": None,
        },
        "record": {"family": family},
    }


ADAPTERS: dict[str, Callable[[Row], Record]] = {
    "GPT-2 124M cross-GPU rental benchmark": _rental_gpt2,
    "Languini Kitchen": _languini,
    "Lambda deeplearning-benchmark": _lambda,
    'LLM trainer "GPU Test" table': _gpu_test,
    "universal-llm-trainer GPU test": _gpu_test,
    "torchtune README": _torchtune,
    "timm training benchmark": _timm,
}
UNUSED = {
    "ms-swift": "samples of variable length",
    "LitGPT": "samples of variable length",
    "LLaMA-Factory": "samples of variable length",
    "H2O LLM Studio": "samples of variable length",
    "HF Trainer": "lengths vary and are not stated",
    "AMD MI350X": "precision, optimizer and vocabulary not stated",
    "NVIDIA DeepLearningExamples issue": "size of the model not stated",
    "llm.c": "a framework of its own, without torch",
    "Scicom": "batch not certain",
    "NanoGPT speedrun": "a run's average with its evaluations, micro-batch not stated",
    "crumb": "precision and micro-batch not stated",
    "LiBai": "form and memory of the GPU not stated",
    "DeepSpeed BERT": "kernels of its own",
    "TransformerEngine": "GPU and length not stated",
    "brown": "days from a timer without synchronisation: below the physical floor",
    "pythia-original": "GPT-NeoX, whole runs with whatever their hours include",
}
"""Sources of which no row can be asked, and why."""

# ---------------------------------------------------------------------------------------------------------------------
# Examples of other tools: only what was measured, and only training

NEUSIGHT_MODELS: dict[str, Record] = {
    "bert_large": {"name": "bert-large-uncased", "task": "masked-lm"},
    "gpt2_large": {"name": "gpt2-large"},
    "opt_13": {"name": "opt-1.3b"},
}


def _inputs(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["inputs_json"] or "{}")
    return found


def _peer_record(row: Row) -> Record:
    if "kind=measured" not in row["notes"]:
        raise Skipped("what a tool prints, not a measurement")
    if row["source"] != "sitar-lab/NeuSight" or not row["quantity"].startswith("training"):
        raise Skipped("no time of a training step on one GPU, or a framework of its own")
    given = _inputs(row)
    if given["n_gpus"] != 1:
        raise Skipped("several GPUs: their parallelism is the source's own")
    if given["model"] not in NEUSIGHT_MODELS:
        raise Skipped(f"no {given['model']} at hand")
    spec = {
        "model": {**NEUSIGHT_MODELS[given["model"]], "attention": "eager"},
        "data": {"sequence_length": given["seq_len"]},
        "training": {"precision": "fp32", "micro_batch": given["micro_batch"], "max_grad_norm": None},
        "hardware": {"gpu": _gpu(given["gpu"], "")},
    }
    return {
        "name": _name(row),
        "source": row["source"],
        "source_where": row["where"],
        "family": given["model"].split("_")[0],
        "spec": spec,
        "gradient_seconds": float(row["expected"]) * MS_S,  # forward and backward, no optimizer step
    }


def main(arguments: Sequence[str]) -> Iterator[str]:
    """JSON lines of every row used in the named CSV files; the reasons of the others go to standard error."""
    rows: list[Row] = []
    for path in map(Path, arguments):
        with path.open(encoding="utf-8", newline="") as file:
            rows += list(csv.DictReader(file))
    found = records(rows)
    reasons = Counter(record["error"] for record in found if "error" in record)
    used = [record for record in found if "error" not in record]
    print(f"{len(used)} rows used, {len(found) - len(used)} skipped", file=sys.stderr)
    for reason, count in reasons.most_common():
        print(f"  {count:4d} x {reason}", file=sys.stderr)
    yield from (json.dumps(record, ensure_ascii=False) for record in used)


if __name__ == "__main__":
    for line in main(sys.argv[1:]):
        print(line)
