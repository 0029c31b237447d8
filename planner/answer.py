"""The answer: what Python returns and `--json` prints. Others build on these names: add fields, never rename one.

The unit is the last word of a name: bytes, seconds, FLOP, USD. Ranges (`low_*`, `high_*`) hold the value between them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, Self, get_args

from pydantic import BaseModel, ConfigDict

from planner.money_spec import PriceSpec
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
    by_phase: dict[str, int] = {}  # most bytes allocated in load, forward, backward, optimizer, evaluation and save
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


class CostLine(_Part):
    """One part of a cost, whose price it is and of when. `usd` is None where only the programme's units are known."""

    what: str
    usd: float | None
    source: str
    date: str | None = None


class BreakEven(_Part):
    """Buying the machine against renting it, used all the time; used half of it, twice as many months are needed."""

    months: float | None  # None where the electricity alone costs more than the rent
    buy_usd: float
    rent_usd_per_month: float
    running_usd_per_month: float
    sources: list[str]


class WithinBudget(_Part):
    """How much training the budget buys: the longest run within its days and USD, and which of the two ends it."""

    days: float
    usd: float | None
    samples: float
    tokens: float | None
    bound: Literal["usd", "days"]


class Month(_Part):
    """One calendar month of a run or campaign that begins today, or on the day that the budget says.

    `cost_usd` is what the month's use is charged; `paid_usd` what leaves the account, where a purchase is paid at once.
    """

    month: str  # 2026-12
    days: float
    gpu_hours: float
    cost_usd: float | None = None
    paid_usd: float | None = None
    units: float | None = None


class Spent(_Part):
    """The time, money and energy of a run or a campaign. A cost is None where no price is known; its source says why.

    `billed_gpu_hours` are those that whole nodes charge, `units` the programme's own (`unit` is their name).
    """

    days: float
    low_days: float
    high_days: float
    gpu_hours: float
    cost_usd: float | None = None
    cost_source: str | None = None
    cost_date: str | None = None
    cost_is_old: bool = False  # older than 90 days, or undated where it should have a date
    cost_lines: list[CostLine] = []
    billed_gpu_hours: float | None = None
    units: float | None = None
    unit: str | None = None
    energy_kwh: float | None = None
    co2_kg: float | None = None
    months: list[Month] = []  # in a plan of thousands, of its first and its front alone


class Run(Spent):
    """The whole of `data.total`, once."""

    steps: int
    break_even: BreakEven | None = None


class Activity(_Part):
    """One row of a campaign. `share` is of a full run; a row without runs is an allowance on the others, of `source`
    where the spec does not give it."""

    name: str
    runs: int
    share: float
    days_per_run: float
    gpu_hours_per_run: float
    overhead_gpu_hours: float
    gpu_hours: float
    days: float
    cost_usd: float | None = None
    units: float | None = None
    source: str | None = None


class Campaign(Spent):
    """Many independent runs packed on a fleet: `parallel` side by side in `waves`, each on `gpus_per_run` GPUs."""

    runs: int
    fleet: int
    gpus_per_run: int
    parallel: int
    waves: int
    busy_share: float  # of the fleet's GPU-hours, those in which a run is on the GPU
    activities: list[Activity]


class StrategyUsed(_Part):
    """The knobs an estimate was made with, nothing left open."""

    precision: str
    optimizer: str
    optimizer_implementation: str
    micro_batch: int | None
    accumulation: int | None
    global_batch: int | None
    checkpointing: str
    loss: str = "eager"
    sharding: str
    zero1: str = "torch"
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
    price: PriceSpec | None = None  # any other way of charging
    fleet: int | None = None  # of a campaign: all GPUs, `count` of which make one run

    @classmethod
    def of(cls, hardware: HardwareChoice) -> Self:
        """The answer's form of a machine."""
        return cls(**asdict(hardware))


class Estimate(_Part):
    """One strategy on one machine. Without a total there is no `run`; where nothing was timed, no `step` either."""

    model: str | None = None  # its name, where several were compared
    verdict: Verdict
    memory: Memory
    step: Step | None = None
    throughput: Throughput | None = None
    run: Run | None = None
    campaign: Campaign | None = None
    within_budget: WithinBudget | None = None
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

    model: str | None = None
    strategy: StrategyUsed
    hardware: HardwareUsed
    reason: str


class Stages(_Part):
    """One machine three ways, as far as the work on it goes: `naive` (eager attention, no TF32, nothing that saves
    memory), `free_lunch` (fused kernels, TF32 and, where it is modelled, compilation) and the fastest of the plan.
    Of the plan's `tried` combinations on this machine `fitting` can be run; `reasons` say what a stage lacks."""

    model: str | None = None  # its name, where several were compared
    hardware: HardwareUsed
    naive: Estimate | None = None
    free_lunch: Estimate | None = None
    best: Estimate | None = None
    tried: int
    fitting: int
    reasons: dict[str, str] = {}


class Plan(_Part):
    """Every combination of a spec: the ranked, best first; the excluded; and the front of time against cost."""

    ranked: list[Estimate]
    excluded: list[Excluded] = []
    pareto: list[Estimate] = []
    question: str = ""  # what the first of the ranked is: "the cheapest that finishes in 30 days"
    assumptions: list[str] = []
    unmodelled: list[str] = []
    notes: list[str] = []
    stages: list[Stages] = []
