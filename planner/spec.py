"""The spec: what a user asks, read from YAML and checked before anything is built.

Under `training` and `hardware` (and for `model.attention`) every field takes one value or a list of choices; inside,
each is a tuple, so that one choice and several are treated alike. Sizes are bytes, money is USD.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from catalog.errors import RigplanError
from catalog.units import DataTotal, parse_bytes, parse_total
from planner.mistakes import told

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
Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"]
Optimizer = Literal["adamw", "adam", "sgd", "adafactor", "lion", "adamw-8bit", "muon"]
OptimizerImplementation = Literal["foreach", "fused", "for-loop"]
Checkpointing = Literal["none", "full", "selective"]
Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp"]
Offload = Literal["none", "optimizer", "all"]
Allocator = Literal["default", "expandable"]
Objective = Literal["cost", "time", "pareto"]

T = TypeVar("T")


def _wanting(wanted: str, accepts: Callable[[Any], Any]) -> BeforeValidator:
    """A check that turns a field's raw value into the right one, or says what was wanted."""

    def check(value: Any) -> Any:
        try:
            return accepts(value)
        except RigplanError as error:
            raise PydanticCustomError("said", "{message}", {"message": str(error)}) from None
        except (TypeError, ValueError, OverflowError):
            raise PydanticCustomError("wanted", "{wanted}", {"wanted": wanted}) from None

    return BeforeValidator(check)


def _whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < least:
        raise ValueError(value)
    return int(value)


def _whole_or_auto(value: Any) -> int | None:
    return None if value is None or value == "auto" else _whole(value)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < float("inf"):
        raise ValueError(value)
    return float(value)


def _above_zero(value: Any) -> float:
    if _real(value) == 0:
        raise ValueError(value)
    return float(value)


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return _whole(parse_bytes(value))
    return _whole(value, least=1 << 20)  # a bare number is bytes, and "39" is surely not meant as 39 bytes


def _total(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    parse_total(value)
    return value


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise TypeError(value)
    return str(value)  # YAML reads 4090 as a number


def _config(value: Any) -> dict[str, Any] | str:
    if not isinstance(value, Mapping | str):
        raise TypeError(value)
    return value if isinstance(value, str) else dict(value)


def _optional(accepts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else accepts(value)


def _as_choices(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Choices = Annotated[tuple[T, ...], BeforeValidator(_as_choices), Field(min_length=1)]
Count = Annotated[int, _wanting("a positive integer", _whole)]
GpuName = Annotated[str, _wanting("the name of a GPU", _name)]
Size = Annotated[int | None, _wanting("a positive integer", _optional(_whole))]
MicroBatch = Annotated[int | None, _wanting("a positive integer or auto", _whole_or_auto)]
Bytes = Annotated[int | None, _wanting("an amount of memory such as 39 GiB", _optional(_bytes))]
Norm = Annotated[float | None, _wanting("a number above 0, or null for no clipping", _optional(_above_zero))]
Limit = Annotated[float | None, _wanting("a number above 0", _optional(_above_zero))]
Share = Annotated[float, _wanting("a number of at least 0", _real)]
Config = Annotated[dict[str, Any] | str | None, _wanting("a mapping or the path of a config.json", _optional(_config))]
Total = Annotated[str | None, _wanting("an amount such as 300B tokens or 143000 steps", _optional(_total))]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraSpec(_Part):
    """Low-rank adapters; `quantize: nf4` keeps the frozen weights in 4 bits (QLoRA)."""

    r: Count
    alpha: Count
    target_modules: Choices[str]
    dropout: Share = 0.0
    quantize: Literal["nf4"] | None = None


class ModelSpec(_Part):
    """The model, by exactly one of name (preset or hub id), config (inline or a config.json) and module (a factory)."""

    name: str | None = None
    config: Config = None
    module: str | None = None
    task: Task | None = None  # inferred where the config decides it
    attention: Choices[Attention] = ("sdpa",)
    lora: LoraSpec | None = None

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


class DataSpec(_Part):
    """The size of one sample and of the whole run; sizes left out come from the model's config."""

    sequence_length: Size = None  # tokens; samples or frames for ctc and speech
    target_length: Size = None  # labels of seq2seq and speech
    image_size: Size = None  # pixels a side
    total: Total = None

    def amount(self) -> DataTotal | None:
        """The run's `total`, parsed; None when it was not given."""
        return None if self.total is None else parse_total(self.total)


class TrainingSpec(_Part):
    """How it is trained: each field one value or a list of choices."""

    precision: Choices[Precision] = ("bf16-mixed",)
    optimizer: Choices[Optimizer] = ("adamw",)
    optimizer_implementation: Choices[OptimizerImplementation] = ("foreach",)  # torch's default on a GPU
    global_batch: Choices[Size] = (None,)  # samples per optimizer step; None = micro_batch x accumulation x ranks
    micro_batch: Choices[MicroBatch] = (None,)  # samples per GPU per forward; None = auto, searched
    accumulation: Choices[Size] = (None,)  # None = derived from the two batches, else 1
    checkpointing: Choices[Checkpointing] = ("none",)
    sharding: Choices[Sharding] = ("none",)
    tensor_parallel: Choices[Count] = (1,)
    offload: Choices[Offload] = ("none",)
    compile: Choices[bool] = (False,)
    max_grad_norm: Choices[Norm] = (1.0,)
    allocator: Choices[Allocator] = ("default",)


class PriceSpec(_Part):
    """A price of the user's own, instead of the dated snapshot."""

    usd_per_gpu_hour: Share


class HardwareSpec(_Part):
    """One alternative to run on: each field one value or a list of choices."""

    gpu: Choices[GpuName]
    count: Choices[Annotated[int, _wanting("a positive number of GPUs", _whole)]] = (1,)
    gpus_per_node: Choices[Size] = (None,)
    node: Choices[str | None] = (None,)
    memory_limit: Choices[Bytes] = (None,)
    host_memory: Choices[Bytes] = (None,)
    price: Choices[PriceSpec | None] = (None,)


class BudgetSpec(_Part):
    """Limits a plan must keep."""

    usd: Limit = None
    days: Limit = None


class CampaignSpec(_Part):
    """Many independent runs: sweeps, seeds, one model per language pair. `parallel: None` is auto."""

    runs: Count
    parallel: MicroBatch = None


class Spec(_Part):
    """One question: a model, its data, and the choices of training and hardware."""

    model: ModelSpec
    data: DataSpec = DataSpec()
    training: TrainingSpec = TrainingSpec()
    hardware: Choices[HardwareSpec]
    budget: BudgetSpec | None = None
    campaign: CampaignSpec | None = None
    objective: Objective = "cost"

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


def _read(source: str | Path) -> dict[str, Any]:
    where = "standard input" if str(source) == "-" else str(source)
    try:
        text = sys.stdin.read() if str(source) == "-" else Path(source).read_text(encoding="utf-8")
        raw = yaml.safe_load(text)
    except FileNotFoundError:
        raise RigplanError(f"{where}: no such file; wanted a YAML spec, or - for standard input") from None
    except OSError as error:
        raise RigplanError(f"{where}: cannot be read ({error.strerror}); wanted a YAML spec") from None
    except UnicodeDecodeError:
        raise RigplanError(f"{where}: is not UTF-8 text; wanted a YAML spec") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError from a date that is none
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
