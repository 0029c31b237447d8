"""Cache: workloads kept on disk, so that the second answer needs neither torch nor a trace.

A workload is kept under everything that decides it: model, lengths, knobs, micro-batch, the versions of torch and
transformers, and the tracing code itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from catalog import presets
from planner import libraries
from planner.call import from_json, to_json
from planner.collectives import Mesh
from planner.passes import zero
from planner.passes.table import by_ddp, mesh_of, trace_precision
from planner.shard_family import ANCHORS as SHARD_ANCHORS
from planner.shard_family import ShardFamily
from planner.spec import DataSpec, ModelSpec
from planner.workload import Events, NotAffine, Parameter, Workload, WorkloadFamily

if TYPE_CHECKING:
    from planner.strategy import HardwareChoice, Strategy

# The files that decide what a trace holds.
TRACING = (
    "trace.py", "recorder.py", "fake_results.py", "module_path.py", "semantics.py", "fused_ops.py", "attention.py",
    "optimizers.py", "models.py", "model_inputs.py", "model_lengths.py", "model_factory.py",
    "wrappers/checkpointing.py", "wrappers/fused_loss.py", "wrappers/fused_scan.py", "wrappers/scan_kernels.py",
    "wrappers/selective_scan.py", "wrappers/chunk_scan.py", "wrappers/lora.py", "wrappers/quantized.py",
    "wrappers/fsdp.py",
    "wrappers/tensor_parallel.py", "wrappers/sharded_recorder.py", "wrappers/compiled.py", "compiled/gpu.py",
    "compiled/fused.py", "compiled/lower.py", "compiled/program.py", "collectives.py",
)  # fmt: skip
# Models whose scan transformers runs as a loop over all tokens where mamba_ssm is not there.
LOOPS = ("mamba", "falcon_mamba", "jamba", "zamba")
# Two micro-batches that any larger one is read off from; 1 is traced by itself: sizes of 1 change what is contiguous.
ANCHORS = (2, 4)


@dataclass(frozen=True, slots=True)
class TraceKnobs:
    """What of a strategy and a machine changes the trace itself."""

    precision: str
    attention: str
    checkpointing: str
    optimizer: str
    optimizer_implementation: str
    max_grad_norm: float | None
    capability: tuple[int, int]
    mesh: Mesh | None = None
    compile: bool = False
    loss: str = "eager"
    drop_masks: bool = False  # as if attention masks that hide nothing were not given
    at_buckets: bool = False  # compiled graphs are cut where DDP's buckets end

    @property
    def graphs(self) -> str:
        """What compiled graphs are made of: `whole`, `buckets` or `blocks` (see wrappers.compiled)."""
        if self.mesh is not None and self.mesh.sharding != "none":
            return "blocks"
        return "buckets" if self.at_buckets else "whole"

    @classmethod
    def of(cls, strategy: Strategy, capability: tuple[int, int], hardware: HardwareChoice) -> TraceKnobs:
        """Knobs brought to what makes a difference: tf32 traces as fp32, and only fused attention in half precision
        and compiling ask the GPU's generation."""
        precision = trace_precision(strategy, hardware)
        mesh = mesh_of(strategy, hardware)
        if mesh is not None and mesh.replicate > 1:
            mesh = replace(mesh, replicate=2)  # how many replicas there are changes no size
        asks = (strategy.attention != "eager" and precision != "fp32") or strategy.compile
        generation = _generation(capability) if asks else (8, 0)
        if strategy.compile and generation < (7, 0):
            generation = (7, 0)  # the oldest that is compiled for
        return cls(
            precision, strategy.attention, strategy.checkpointing, strategy.optimizer,
            strategy.optimizer_implementation, strategy.max_grad_norm, generation, mesh, strategy.compile,
            strategy.loss, at_buckets=strategy.compile and by_ddp(strategy, hardware),
        )  # fmt: skip


def _generation(capability: tuple[int, int]) -> tuple[int, int]:
    """The oldest capability whose attention kernels are chosen alike for head sizes that are a multiple of 8 up to 192,
    and beyond without dropout: what else tells 8.6 from 8.0 or 7.0 from 5.0 would cost every model a trace."""
    return max((known for known in ((5, 0), (8, 0), (9, 0), (10, 0), (12, 0)) if known <= capability), default=(5, 0))


class Workloads:
    """The workloads of one model and its data. `progress` is told before each trace."""

    def __init__(self, model: ModelSpec, data: DataSpec, progress: Callable[[str], None] | None = None) -> None:
        self.model, self.data = model, data.model_copy(update={"total": None})
        self.progress = progress or (lambda _: None)
        self._known: dict[tuple[TraceKnobs, int], Workload] = {}
        self._families: dict[TraceKnobs, WorkloadFamily | None] = {}

    def at(self, knobs: TraceKnobs, micro_batch: int) -> Workload:
        """The workload at exactly this micro-batch, traced if it is not known."""
        knobs = self._settled(knobs)
        key = (knobs, micro_batch)
        if key not in self._known:
            path = self._path(knobs, micro_batch)
            found = load(path)
            if found is None:
                found = self._trace(knobs, micro_batch)
                save(found, path)
            self._known[key] = found
        return self._known[key]

    def searched(self, knobs: TraceKnobs, micro_batch: int) -> Workload:
        """The workload at any micro-batch and over any number of ranks, read off two traces each where that is so; a
        compiled one is traced at its micro-batch, for the compiler may decide otherwise at another."""
        knobs = self._settled(knobs)
        key = (knobs, micro_batch)
        if key not in self._known and knobs.mesh is not None and knobs.mesh.shard not in (1, *SHARD_ANCHORS):
            few, many = (replace(knobs, mesh=replace(knobs.mesh, shard=ranks)) for ranks in SHARD_ANCHORS)
            try:
                read_off = ShardFamily(self.searched(few, micro_batch), self.searched(many, micro_batch))
                self._known[key] = read_off.at(knobs.mesh.shard)
            except NotAffine:
                return self.at(knobs, micro_batch)
        in_chunks = knobs.loss == "fused-linear" and micro_batch.bit_count() > 1  # chunks are powers of two
        if micro_batch < ANCHORS[0] or in_chunks or knobs.compile:
            return self.at(knobs, micro_batch)
        if key not in self._known and knobs not in self._families:
            self._families[knobs] = WorkloadFamily(*(self.at(knobs, anchor) for anchor in ANCHORS))
        family = self._families.get(knobs)
        if key not in self._known and family is not None:
            try:
                self._known[key] = family.at(micro_batch)
            except NotAffine:
                self._families[knobs] = None
        return self._known[key] if key in self._known else self.at(knobs, micro_batch)

    @property
    def _model_type(self) -> str:
        model = self.model
        preset = presets.lookup(model.name) if model.name else None
        config = preset.config if preset else model.config if isinstance(model.config, dict) else {}
        return str(config.get("model_type", ""))

    @property
    def title(self) -> str:
        model = self.model
        if isinstance(model.config, dict):
            return f"{model.config.get('model_type', 'a model')} by config"
        return model.name or model.module or model.config or ""

    def _settled(self, knobs: TraceKnobs) -> TraceKnobs:
        """Knobs with what stage 3 of ZeRO keeps gathered, which the model's size decides."""
        if knobs.mesh is None or knobs.mesh.sharding != "zero3":
            return knobs
        preset = presets.lookup(self.model.name) if self.model.name else None
        alone = replace(knobs, mesh=None)
        count = preset.parameters if preset else self.at(alone, ANCHORS[0]).parameter_count
        return replace(knobs, mesh=replace(knobs.mesh, sharding=zero.sharding_of(count)))

    def _trace(self, knobs: TraceKnobs, micro_batch: int) -> Workload:
        libraries.load(self.progress, models=self.model.module is None, adapters=self.model.lora is not None)
        length = self.data.sequence_length
        of_length = f" and length {length}" if length else ""
        how = f"{knobs.precision}, {knobs.attention}{', compiled: a minute or more' if knobs.compile else ''}"
        wait = ""
        if self.model.scan == "eager" and self._model_type in LOOPS:
            wait = ", token by token, which takes many minutes; with `model.scan: fused` seconds"
        self.progress(f"tracing {self.title} at micro-batch {micro_batch}{of_length} ({how}){wait}")
        from planner.trace import trace  # torch is needed only now

        return trace(self.model, self.data, knobs, micro_batch)

    def _path(self, knobs: TraceKnobs, micro_batch: int) -> Path:
        asked = {
            "model": self.model.model_dump(mode="json", exclude={"attention"}),
            "contents": contents(self.model),
            "data": self.data.model_dump(mode="json"),
            "knobs": asdict(knobs),
            "micro_batch": micro_batch,
            "made_by": made_by(self.model),
        }
        name = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]
        return folder() / f"{name}.npz"


def folder() -> Path:
    """Where workloads are kept: $XDG_CACHE_HOME/rigplan, else ~/.cache/rigplan."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rigplan"


def save(workload: Workload, path: Path) -> None:
    """Write a workload; a folder that cannot be written to costs time later, never the answer."""
    meta = {
        "micro_batch": workload.micro_batch,
        "calls": [to_json(call) for call in workload.calls],
        "segments": list(workload.segments),
        "parameters": [asdict(parameter) for parameter in workload.parameters],
        **{name: getattr(workload, name) for name in ("samples_to_tokens", "family", "task", "assumptions", "modules")},
        "versions": dict(workload.versions),
        "streams": list(workload.streams.items()),
    }
    columns = {
        f"{name}.{column}": getattr(events, column)
        for name, events in workload.segments.items()
        for column in ("codes", "values", "views")
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            np.savez(
                file,
                meta=np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8),
                block_bytes=workload.block_bytes,
                block_categories=workload.block_categories,
                **columns,
            )
        os.replace(file.name, path)
    except OSError:
        return


def load(path: Path) -> Workload | None:
    """A kept workload; None when there is none that can be read."""
    try:
        with np.load(path) as data:
            meta: Mapping[str, Any] = json.loads(data["meta"].tobytes())
            return Workload(
                micro_batch=meta["micro_batch"],
                calls=tuple(from_json(call) for call in meta["calls"]),
                segments={
                    name: Events(*(data[f"{name}.{column}"] for column in ("codes", "values", "views")))
                    for name in meta["segments"]
                },
                block_bytes=data["block_bytes"],
                block_categories=data["block_categories"],
                parameters=tuple(
                    replace(Parameter(**parameter), shape=tuple(parameter["shape"])) for parameter in meta["parameters"]
                ),
                samples_to_tokens=meta["samples_to_tokens"],
                family=meta["family"],
                task=meta["task"],
                assumptions=tuple(meta["assumptions"]),
                versions=meta["versions"],
                modules=tuple(meta["modules"]),
                streams=dict(meta["streams"]),
            )
    except (OSError, ValueError, KeyError):
        return None


def made_by(model: ModelSpec) -> dict[str, str]:
    """What a trace of a model is made by: the tracing code, as a hash, and the versions of the libraries."""
    used = ("torch", "transformers", *(("peft",) if model.lora is not None else ()))
    return {"code": _code(), **{name: _version(name) for name in used}}


@cache
def _code() -> str:
    here = Path(__file__).parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in TRACING)).hexdigest()


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def contents(model: ModelSpec) -> str:
    """What a name or path stands for today, so that an edited file is traced anew."""
    if isinstance(model.config, str):
        return Path(model.config).read_text(encoding="utf-8")
    if model.module is not None:
        file = _source(model.module.rpartition(":")[0])
        return "" if file is None else file.read_text(encoding="utf-8")
    preset = presets.lookup(model.name) if model.name else None
    return "" if preset is None else json.dumps(dict(preset.config), sort_keys=True, default=str)


def _source(module: str) -> Path | None:
    """The file of `file.py` or `package.module`, found as an import would find it but without running anything."""
    if module.endswith(".py"):
        candidates = [Path(module)]
    else:
        inside = Path(*module.split("."))
        roots = [Path.cwd(), *map(Path, sys.path)]
        candidates = [root / end for root in roots for end in (inside.with_suffix(".py"), inside / "__init__.py")]
    return next((file for file in candidates if file.is_file()), None)
