"""The answer: what Python returns and `--json` prints. Others build on these names: add fields, never rename one.

The unit is the last word of a name: bytes, seconds, FLOP, USD. Ranges (`low_*`, `high_*`) hold the value between them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict

from planner.strategy import HardwareChoice, Strategy

Verdict = Literal["fits", "borderline", "does-not-fit"]
Known = Literal["measured", "transferred", "prior", "ideal"]  # from the best known to the least


def weakest(*words: Known) -> Known:
    """How a sum is known: as its least known term. Raises ValueError without a word."""
    return max(words, key=get_args(Known).index)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Memory(_Part):
    """Memory of the fullest GPU. `device_bytes` is reserved plus context: what nvidia-smi shows."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    usable_bytes: int
    low_bytes: int
    high_bytes: int
    peak_phase: str
    by_category: dict[str, int]  # bytes at the peak: weights, gradients, optimizer, activations, logits, ...
    host_bytes: int = 0
    known: Known


class Step(_Part):
    """One optimizer step, accumulation included. `floor_seconds` is the physical bound; no answer lies below it."""

    seconds: float
    low_seconds: float
    high_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    communication_seconds: float = 0.0
    exposed_communication_seconds: float = 0.0
    host_bound_share: float = 0.0
    floor_seconds: float
    known: Known


class Throughput(_Part):
    """Speed of the whole machine, tokens per GPU; MFU counts model FLOP without recompute."""

    samples_per_second: float
    tokens_per_second_per_gpu: float | None = None  # None where samples are not sequences
    mfu: float


class Run(_Part):
    """The whole of `data.total`. A cost is None where no price is known; its source and date say whose price it is."""

    steps: int
    days: float
    low_days: float
    high_days: float
    gpu_hours: float
    cost_usd: float | None = None
    cost_source: str | None = None
    cost_date: str | None = None
    energy_kwh: float | None = None


class StrategyUsed(_Part):
    """The knobs an estimate was made with, nothing left open."""

    precision: str
    optimizer: str
    optimizer_implementation: str
    micro_batch: int | None
    accumulation: int | None
    global_batch: int | None
    checkpointing: str
    sharding: str
    tensor_parallel: int
    offload: str
    compile: bool
    max_grad_norm: float | None
    attention: str
    allocator: str

    @classmethod
    def of(cls, strategy: Strategy) -> Self:
        """The answer's form of a strategy."""
        return cls(**asdict(strategy))


class HardwareUsed(_Part):
    """The machine an estimate was made for, by its catalog names."""

    gpu: str
    count: int
    gpus_per_node: int | None = None
    node: str | None = None
    memory_limit_bytes: int | None = None
    host_memory_bytes: int | None = None
    usd_per_gpu_hour: float | None = None

    @classmethod
    def of(cls, hardware: HardwareChoice) -> Self:
        """The answer's form of a machine."""
        return cls(**asdict(hardware))


class Estimate(_Part):
    """One strategy on one machine. Without a total there is no `run`; where nothing was timed, no `step` either."""

    verdict: Verdict
    memory: Memory
    step: Step | None = None
    throughput: Throughput | None = None
    run: Run | None = None
    strategy: StrategyUsed
    hardware: HardwareUsed
    parameters: int
    trainable_parameters: int
    flop_per_step: float
    assumptions: list[str] = []
    unmodelled: list[str] = []
    notes: list[str] = []


class Excluded(_Part):
    """A combination that is no answer, and why."""

    strategy: StrategyUsed
    hardware: HardwareUsed
    reason: str


class Plan(_Part):
    """Every combination of a spec: the ranked, best first; the excluded; and the front of time against cost."""

    ranked: list[Estimate]
    excluded: list[Excluded] = []
    pareto: list[Estimate] = []
    assumptions: list[str] = []
    unmodelled: list[str] = []
    notes: list[str] = []
