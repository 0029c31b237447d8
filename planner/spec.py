"""The spec: what a user asks, read from YAML and checked before anything is built.

Under `training` and `hardware` (and for `model.attention`) every field takes one value or a list of choices; inside,
each is a tuple, so that one choice and several are treated alike. Sizes are bytes, money is USD.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import ValidationError, model_validator
from pydantic_core import PydanticCustomError

from catalog.errors import RigplanError
from catalog.units import DataTotal, parse_total
from planner.fields import (
    Bytes,
    Choices,
    Config,
    Count,
    GpuName,
    MicroBatch,
    Norm,
    Share,
    Size,
    SpecPart,
    Total,
    wanting,
    whole,
)  # fmt: skip
from planner.mistakes import told
from planner.money_spec import BudgetSpec, CampaignSpec, EnergySpec, PriceSpec

Task = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "image-classification",
    "speech-seq2seq",
    "ctc",
    "video-classification",
    "semantic-segmentation",
    "contrastive",
    "pretraining",
    "module",
]
Attention = Literal["eager", "sdpa", "flash_attention_2"]
Scan = Literal["eager", "fused"]
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16", "fp16", "fp8-mixed"]
Optimizer = Literal["adamw", "adam", "sgd", "adafactor", "lion", "adamw-8bit", "muon"]
OptimizerImplementation = Literal["foreach", "fused", "for-loop"]
Checkpointing = Literal["none", "full", "selective"]
Loss = Literal["eager", "fused-linear"]
Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp"]
Zero1 = Literal["torch", "deepspeed"]
Offload = Literal["none", "optimizer", "all", "most"]  # most: as much as the sharding's own code can
TensorParallelStyle = Literal["colwise", "rowwise", "colwise_gather_output", "rowwise_split_input", "embedding_rowwise"]
Allocator = Literal["default", "expandable"]
Objective = Literal["cost", "time", "pareto", "amount", "model"]


class LoraSpec(SpecPart):
    """Low-rank adapters; `quantize: nf4` keeps the frozen weights in 4 bits (QLoRA)."""

    r: Count  # rank of the adapters
    alpha: Count  # their scale is alpha / r
    target_modules: Choices[str]  # names of layers that get one, or all-linear
    dropout: Share = 0.0  # on the input of each adapter
    quantize: Literal["nf4"] | None = None  # of the frozen weights; None = as they are


class ModelSpec(SpecPart):
    """The model, by exactly one of name (preset or hub id), config (inline or a config.json) and module (a factory)."""

    name: str | None = None  # a preset (see `rigplan models`) or a hub id
    config: Config = None  # of transformers, with its model_type
    module: str | None = None  # path/to/file.py:make or package.module:make; runs that code
    task: Task | None = None  # inferred where the config decides it
    attention: Choices[Attention] = ("sdpa",)  # eager keeps every score, the others are fused kernels
    scan: Scan = "eager"  # of Mamba and its like: eager is torch's loop, fused has mamba_ssm's kernels
    lora: LoraSpec | None = None  # None = everything is trained
    # how tensor_parallel cuts a module that brings no plan: names of linear layers and embeddings, * for a number
    tensor_parallel_plan: dict[str, TensorParallelStyle] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [key for key in ("name", "config", "module") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            wanted = "found {found}, wanted exactly one of name, config and module"
            raise PydanticCustomError("said", wanted, {"found": found})
        if self.module is not None and not all(part.strip() for part in self.module.rpartition(":")):
            raise PydanticCustomError(
                "said",
                "found module '{module}', wanted package.module:function or path/to/file.py:function",
                {"module": self.module},
            )
        return self


class DataSpec(SpecPart):
    """The size of one sample and of the whole run; sizes left out come from the model's config."""

    sequence_length: Size = None  # tokens; samples or frames for ctc and speech
    target_length: Size = None  # labels of seq2seq and speech
    image_size: Size = None  # pixels a side
    total: Total = None  # of the run, in tokens, samples, steps or epochs; None = no days and no cost

    def amount(self) -> DataTotal | None:
        """The run's `total`, parsed; None when it was not given."""
        return None if self.total is None else parse_total(self.total)


class TrainingSpec(SpecPart):
    """How it is trained: each field one value or a list of choices."""

    precision: Choices[Precision] = ("bf16-mixed",)  # mixed: autocast, with fp32 weights
    optimizer: Choices[Optimizer] = ("adamw",)  # sgd has momentum
    optimizer_implementation: Choices[OptimizerImplementation] = ("foreach",)  # torch's default on a GPU
    global_batch: Choices[Size] = (None,)  # samples per optimizer step; None = micro_batch x accumulation x ranks
    micro_batch: Choices[MicroBatch] = (None,)  # samples per GPU per forward; None = auto, searched
    accumulation: Choices[Size] = (None,)  # None = derived from the two batches, else 1
    checkpointing: Choices[Checkpointing] = ("none",)  # what of a block is computed again in backward
    loss: Choices[Loss] = ("eager",)  # fused-linear: head and loss in chunks, as Liger does; the logits are never whole
    sharding: Choices[Sharding] = ("none",)  # over several GPUs; none is DDP
    zero1: Choices[Zero1] = ("torch",)  # whose: torch's ZeroRedundancyOptimizer on DDP, or DeepSpeed's stage 1
    tensor_parallel: Choices[Count] = (1,)  # ranks inside a node that share each layer
    offload: Choices[Offload] = ("none",)  # what lives in the host's memory
    compile: Choices[bool] = (False,)  # torch.compile: the whole model; with DDP cut at buckets, with FSDP by block
    max_grad_norm: Choices[Norm] = (1.0,)  # where gradients are clipped
    allocator: Choices[Allocator] = ("default",)  # expandable: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True


class HardwareSpec(SpecPart):
    """One alternative to run on: each field one value or a list of choices."""

    gpu: Choices[GpuName]  # see `rigplan gpus`; or the file of an accelerator of your own
    count: Choices[Annotated[int, wanting("a positive number of GPUs", whole)]] = (1,)  # over all nodes
    gpus_per_node: Choices[Size] = (None,)  # None = as many as the node has
    node: Choices[str | None] = (None,)  # links and host by the name of a node; None = the usual one of that GPU
    memory_limit: Choices[Bytes] = (None,)  # what the allocator may reserve, on a card that is shared
    host_memory: Choices[Bytes] = (None,)  # of a node, for what is offloaded
    price: Choices[PriceSpec | None] = (None,)  # None = the dated snapshot, see `rigplan prices`


class Spec(SpecPart):
    """One question: a model, its data, and the choices of training and hardware."""

    model: ModelSpec  # what is trained
    data: DataSpec = DataSpec()  # on what, and how much of it
    training: TrainingSpec = TrainingSpec()  # how; every knob one value or a list
    hardware: Choices[HardwareSpec]  # on what machine; a list of alternatives
    budget: BudgetSpec | None = None  # what is over it is excluded
    energy: EnergySpec = EnergySpec()  # what electricity costs and emits
    campaign: CampaignSpec | None = None  # many runs instead of one
    objective: Objective = "cost"  # what comes first; amount: the most training, model: the largest
    models: tuple[str, ...] = ()  # presets, or how their names begin, in the place of model.name: which is the largest

    @classmethod
    def load(cls, source: Spec | Mapping[str, Any] | str | Path) -> Spec:
        """Read a spec from a YAML file, "-" (standard input), a mapping or a Spec.

        Raises RigplanError, one line per mistake, when it cannot be read or does not hold together.
        """
        if isinstance(source, Spec):
            return source
        raw = dict(source) if isinstance(source, Mapping) else _read(source)
        try:
            spec = cls.model_validate(raw)
        except ValidationError as error:
            raise RigplanError(told(error, raw, cls)) from None
        folder = Path() if isinstance(source, Mapping) or str(source) == "-" else Path(source).parent
        return spec.model_copy(update={"model": _anchored(spec.model, folder)})


class _Once(yaml.SafeLoader):
    """YAML in which no key stands twice: PyYAML would take the last, and what was written above would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read(source: str | Path) -> dict[str, Any]:
    where = "standard input" if str(source) == "-" else str(source)
    try:
        text = sys.stdin.read() if str(source) == "-" else Path(source).read_text(encoding="utf-8")
        raw = yaml.load(text, _Once)
    except FileNotFoundError:
        raise RigplanError(f"{where}: no such file; wanted a YAML spec, or - for standard input") from None
    except OSError as error:
        raise RigplanError(f"{where}: cannot be read ({error.strerror}); wanted a YAML spec") from None
    except UnicodeDecodeError:
        raise RigplanError(f"{where}: is not UTF-8 text; wanted a YAML spec") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of a date that is none; of brackets without end
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise RigplanError(f"{where}:{line} is not YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else f"a {type(raw).__name__}"
        raise RigplanError(f"{where}: found {found}, wanted a mapping with model and hardware at the top")
    return raw


def _anchored(model: ModelSpec, folder: Path) -> ModelSpec:
    """Take file names relative to the spec's folder, or else to the working directory; refuse those in neither."""
    if isinstance(model.config, str):
        return model.model_copy(update={"config": _found(model.config, folder, "model.config")})
    file, _, function = (model.module or "").rpartition(":")
    if file.endswith(".py"):
        return model.model_copy(update={"module": f"{_found(file, folder, 'model.module')}:{function}"})
    return model


def _found(name: str, folder: Path, field: str) -> str:
    for path in (folder / name, Path(name)):
        if path.is_file():
            return str(path)
    raise RigplanError(f"{field}: found '{name}', which is not there; wanted a file, relative to the spec or to here")
