"""Published tables of language models on several GPUs: which row becomes a spec, and why the others do not.

A row becomes a spec when it is data or tensor parallel alone and says model, GPU, count, precision, batch, sharding,
checkpointing and compilation. What a source states once for all its rows stands in its adapter; what is stated nowhere
is never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from calibrate.published import Row, Skipped
from catalog import store

COLUMNS = (
    "source", "source_where", "model", "arch_family", "n_layers", "d_model", "n_heads", "vocab", "seq_len", "gpu",
    "n_gpus", "precision", "zero_or_fsdp", "act_ckpt", "tp", "pp", "cp", "micro_batch", "global_batch_seqs",
    "grad_accum", "compile", "tokens_per_s_per_gpu", "tflops_per_gpu", "notes",
)  # fmt: skip
SHARDINGS = {"fsdp": "fsdp", "fsdp2": "fsdp", "hsdp": "hsdp", "zero1": "zero1", "zero3": "zero3", "none": "none"}
CHECKPOINTING = {"none": "none", "full": "full"}
COMPILED = {"true": True, "false": False}
ONE = ("1", "")
Parts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One published run: what it is called, its spec, and tokens a second of each GPU."""

    source: str
    where: str
    spec: dict[str, Any]
    tokens_per_second_per_gpu: float

    @property
    def gpu(self) -> str:
        return str(self.spec["hardware"]["gpu"])

    @property
    def count(self) -> int:
        return int(self.spec["hardware"]["count"])

    @property
    def model(self) -> str:
        """The model in a word: its module or its preset."""
        model = self.spec["model"]
        return str(model.get("name") or model["module"].rpartition(":")[2])

    @property
    def scaled(self) -> str:
        """What is the same in runs that differ in GPU count alone."""
        training = {key: value for key, value in self.spec["training"].items() if key != "accumulation"}
        return json.dumps([self.source, self.gpu, self.spec["model"], self.spec["data"], training], sort_keys=True)


def runs(rows: Iterable[Row]) -> Iterator[Run | str]:
    """A run of each row, or why there is none."""
    for row in rows:
        try:
            yield _run(row)
        except Skipped as reason:
            yield f"{row['source'].split(' (')[0]}: {reason}"


def _run(row: Row) -> Run:
    adapter = next((found for start, found in ADAPTERS.items() if row["source"].startswith(start)), None)
    if adapter is None:
        raise Skipped(next((why for start, why in UNUSED.items() if row["source"].startswith(start)), "no adapter"))
    if row["pp"] not in ONE or row["cp"] not in ONE:
        raise Skipped("pipeline or context parallel")
    parts = adapter(row)
    gpu = parts.pop("gpu", "") or _gpu(row["gpu"])
    hardware: Parts = {"gpu": gpu, "count": int(_stated(row, "n_gpus"))}
    if node := parts.pop("node", ""):
        hardware["node"] = node
    tokens = parts.pop("tokens", 0.0) or float(_stated(row, "tokens_per_s_per_gpu"))
    tensor = int(row["tp"] or 1)
    micro = int(_stated(row, "micro_batch"))
    given = parts.pop("training")
    training = {
        "micro_batch": micro,
        "accumulation": _accumulation(row, micro, hardware["count"] // tensor),
        "sharding": _known(row, "zero_or_fsdp", SHARDINGS),
        "checkpointing": given.get("checkpointing") or _known(row, "act_ckpt", CHECKPOINTING),
        **({"tensor_parallel": tensor} if tensor > 1 else {}),
        **given,
    }
    spec = {**parts, "training": training, "hardware": hardware}
    spec["data"] = {"sequence_length": int(_stated(row, "seq_len"))}
    return Run(row["source"].split(" MPT ")[0].split(" (")[0], row["source_where"], spec, tokens)


def _accumulation(row: Row, micro_batch: int, ranks: int) -> int:
    if row["grad_accum"]:
        return int(row["grad_accum"])
    whole, rest = divmod(int(_stated(row, "global_batch_seqs")), micro_batch * ranks)
    if rest or not whole:
        raise Skipped("global batch is no multiple of micro-batch and data-parallel ranks")
    return whole


def _stated(row: Row, column: str) -> str:
    if not row[column]:
        raise Skipped(f"{column} not stated")
    return row[column]


def _known(row: Row, column: str, words: Mapping[str, Any]) -> Any:
    if _stated(row, column) not in words:
        raise Skipped(f"{column} {row[column]} is no knob")
    return words[row[column]]


def _gpu(name: str) -> str:
    found = store.lookup(name)
    if found is None or found.assumption:
        raise Skipped(f"GPU not in the catalog, or its form not stated: {name}")
    return found.name


# ---------------------------------------------------------------------------------------------------------------------
# What the sources state for all of their rows


def _foundry(row: Row) -> Parts:
    """Composer with FSDP, bf16 autocast, AdamW parameter by parameter, Triton's flash attention, nothing compiled
    (scripts/train/benchmarking: torch 1.13, on H100 2.0.1). 1,600 Gb/s a node between A100."""
    if row["arch_family"] != "mpt":
        raise Skipped(f"no such model in the adapter: {row['arch_family']}")
    gpu = _gpu(row["gpu"])
    return {
        "model": {"module": f"calibrate.models.mpt:mpt_{_shape(row)}"},
        "training": {
            "precision": _known(row, "precision", {"bf16": "bf16-mixed"}),
            "optimizer_implementation": "for-loop",
        },
        "gpu": gpu,
        "node": "dgx-a100-40gb" if gpu == "a100-sxm4-40gb" else "",
    }


def _shape(row: Row) -> str:
    return "_".join(_stated(row, column) for column in ("n_layers", "d_model", "n_heads", "seq_len"))


TITAN_MODELS = {
    "Llama-2-13B": "llama-2-13b", "Llama-2-70B": "llama-2-70b", "Llama-3-8B": "llama-3-8b",
    "Llama-3.1-8B": "llama-3.1-8b", "Llama-3-70B": "llama-3-70b", "Llama-3.1-70B": "llama-3.1-70b",
}  # fmt: skip


def _torchtitan(row: Row) -> Parts:
    """torchtitan: FSDP2, bf16 with fp32 reduction, fused causal attention without a mask. Its A100 page compiles
    nothing (train_configs of that commit); `selective` there recomputes every second product, or whole layers."""
    if row["act_ckpt"] == "selective":
        raise Skipped("selective checkpointing of every second product or layer is no knob")
    if row["tp"] not in ONE:
        raise Skipped("tensor parallel with sequence parallel, which is not modelled")
    compiled = False if "docs/performance.md" in row["source"] else _known(row, "compile", COMPILED)
    return {
        "model": {"name": _known(row, "model", TITAN_MODELS), "attention": "flash_attention_2"},
        "training": {
            "precision": _known(row, "precision", {"bf16": "bf16-mixed", "fp8": "fp8-mixed"}),
            "compile": compiled,
        },
    }


def _megatron(row: Row) -> Parts:
    """Megatron-LM: fp16 with fp32 copies, fused Adam, clipped to 1; attention written out, dropout."""
    if "selective" in row["act_ckpt"] or "sequence parallel" in row["notes"]:
        raise Skipped("sequence parallel with selective checkpointing is not modelled")
    return {
        "model": {"module": f"calibrate.models.megatron:megatron_{_shape(row)}"},
        "training": {
            "precision": _known(row, "precision", {"fp16": "fp16"}),
            "optimizer": "adam",
            "optimizer_implementation": "fused",
        },
    }


def _libai(row: Row) -> Parts:
    """LiBai against Megatron-LM on V100-SXM2 in nodes of eight; what joins its nodes is not stated."""
    if "Megatron" not in row["model"]:
        raise Skipped("OneFlow is no torch")
    if row["arch_family"] != "gpt-2":
        raise Skipped(f"no such model in the adapter: {row['arch_family']}")
    if int(row["n_gpus"]) > GPUS_IN_NODE:
        raise Skipped("the link between nodes is not stated")
    return {**_megatron(row), "gpu": "v100-sxm2-32gb"}


GPUS_IN_NODE = 8


def _dlperf(row: Row) -> Parts:
    """DLPerf's Megatron-LM, whose script checkpoints all activations; one 100 Gb/s card a node of eight V100."""
    if int(row["n_gpus"]) > GPUS_IN_NODE:
        raise Skipped("no node of V100 in the catalog with one 100 Gb/s card")
    parts = _megatron(row)
    parts["training"]["checkpointing"] = "full"
    return parts


def _megatron_2021(row: Row) -> Parts:
    """The comparison with ZeRO-3, in TFLOP/s of its own formula, which counts the recomputed forward."""
    if row["zero_or_fsdp"] != "zero3":
        raise Skipped("micro-batch not stated")
    layers, width, length = (float(_stated(row, column)) for column in ("n_layers", "d_model", "seq_len"))
    words = float(_stated(row, "vocab"))
    each = 96 * layers * width**2 * (1 + length / (6 * width) + words / (16 * layers * width))
    return {**_megatron(row), "tokens": float(_stated(row, "tflops_per_gpu")) * 1e12 / each}


ADAPTERS: dict[str, Callable[[Row], Parts]] = {
    "mosaicml/llm-foundry": _foundry,
    "torchtitan benchmarks": _torchtitan,
    "torchtitan docs/performance.md": _torchtitan,
    "LiBai vs Megatron-LM": _libai,
    "Megatron-LM on V100": _dlperf,
    "Megatron activation-recomputation": _megatron,
    "Megatron-LM 2021": _megatron_2021,
}
UNUSED = {
    "NVIDIA NeMo": "checkpointing and the sharding of the optimizer not stated, kernels of its own",
    "IBM/Meta fms-fsdp": "gradients are reduced in bf16, for which there is no knob",
    "NVIDIA Megatron-Bridge": "precision and checkpointing not stated",
    "NVIDIA DGX Cloud": "JAX, or checkpointing or batch not stated",
    "BigScience BLOOM": "pipeline parallel",
    "BigScience GPT": "ZeRO-3 with tensor parallel or pipelines, on a network that varies by 40 %",
    "BigScience 104B": "pipeline parallel",
    "MLPerf": "micro-batch and parallelism not stated, kernels of its own",
    "HF nanotron": "sequence length and checkpointing not stated",
    "LitGPT": "samples of variable length",
    "universal-llm-trainer": "what a step of accumulated micro-steps is, is not stated",
    "torchtune": "one GPU: a question for `calibrate check`",
    "torchtitan quantization": "GPU and checkpointing not stated",
    "InternEvo": "no time",
    "FlashAttention-2": "micro-batch not stated",
    "DLPerf DeepSpeed": "no time",
    "OneFlow": "OneFlow is no torch",
    "Colossal-AI": "pipeline parallel",
    "DeepSpeed on Azure": "the best of a sweep, batch and offload not stated",
    "DeepSpeed BERT": "one GPU, kernels of its own",
    "TransformerEngine": "GPU and length not stated",
    "TinyLlama": "micro-batch not stated, fused kernels of its own",
    "nanoGPT": "days of a whole run",
    "Meta model cards": "hours of a whole run",
    "LLaMA 1": "batch and sharding not stated",
    "Llama 3": "pipeline parallel",
    "OPT": "batch and sharding not stated",
    "OLMo": "hours of a whole run",
    "GPT-NeoX": "pipeline parallel",
}
"""Sources of which no row can be asked, and why."""
