"""The knobs of one plan, the choices a spec leaves open, and why a combination is impossible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from math import gcd
from typing import TYPE_CHECKING

from planner.money_spec import CampaignSpec, PriceSpec
from planner.spec import HardwareSpec, Spec

if TYPE_CHECKING:
    from catalog.accelerator import Accelerator

LARGEST_RUN_GPUS = 8  # what is tried for one of many independent runs: no more than the usual node
LARGEST_MICRO_BATCH = 1 << 14  # where the search for a micro-batch stops when no global batch bounds it


@dataclass(frozen=True, slots=True)
class Strategy:
    """One value for every knob of training. `None` where the spec leaves it to be derived or searched."""

    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    optimizer_implementation: str = "foreach"
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    checkpointing: str = "none"
    loss: str = "eager"
    sharding: str = "none"
    zero1: str = "torch"
    tensor_parallel: int = 1
    offload: str = "none"
    compile: bool = False
    max_grad_norm: float | None = 1.0
    attention: str = "sdpa"
    allocator: str = "default"


@dataclass(frozen=True, slots=True)
class HardwareChoice:
    """One machine to run on. `gpu` and `node` are names for the catalog to find; `None` is for the catalog to say."""

    gpu: str
    count: int = 1
    gpus_per_node: int | None = None
    node: str | None = None
    memory_limit_bytes: int | None = None
    host_memory_bytes: int | None = None
    usd_per_gpu_hour: float | None = None
    price: PriceSpec | None = None  # any other way of charging
    fleet: int | None = None  # of a campaign: all GPUs there are, `count` of which make one run

    @property
    def nodes(self) -> int:
        """How many nodes the GPUs fill; one when the node's size is not known."""
        return 1 if self.gpus_per_node is None else -(-self.count // self.gpus_per_node)

    @property
    def gpus_in_node(self) -> int:
        """GPUs that share a node: all of them, or the node's size when there are more."""
        return self.count if self.gpus_per_node is None else min(self.count, self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a step's samples are spread: global_batch = micro_batch x accumulation x data_parallel."""

    micro_batch: int
    accumulation: int
    global_batch: int
    data_parallel: int


def choices(spec: Spec) -> Iterator[tuple[Strategy, HardwareChoice]]:
    """Every combination the spec leaves open, in the order its lists were written: hardware outermost, each once."""
    knobs = {
        field.name: spec.model.attention if field.name == "attention" else getattr(spec.training, field.name)
        for field in fields(Strategy)
    }
    strategies = [_told(Strategy(**dict(zip(knobs, values, strict=True)))) for values in product(*knobs.values())]
    machines = [machine for entry in spec.hardware for machine in _machines(entry, spec.campaign)]
    return ((strategy, machine) for machine in dict.fromkeys(machines) for strategy in dict.fromkeys(strategies))


def _told(strategy: Strategy) -> Strategy:
    """The strategy with the most that its sharding can offload said by name, and with whose ZeRO-1 it is."""
    if strategy.offload == "most":
        able = _OFFLOADS.get(strategy.sharding, {"all"})
        strategy = replace(strategy, offload="all" if "all" in able else "optimizer")
    # torch's has no offload and no 16-bit weights beside fp32 ones
    deepspeeds = strategy.zero1 == "deepspeed" or strategy.offload != "none" or strategy.precision == "fp16"
    return replace(strategy, zero1="deepspeed" if strategy.sharding == "zero1" and deepspeeds else "torch")


def _machines(entry: HardwareSpec, campaign: CampaignSpec | None) -> Iterator[HardwareChoice]:
    for gpu, count, gpus_per_node, node, limit_bytes, host_bytes, price in product(
        entry.gpu, entry.count, entry.gpus_per_node, entry.node, entry.memory_limit, entry.host_memory, entry.price
    ):
        hourly = price.usd_per_gpu_hour if price is not None and price.is_plain else None
        other = None if hourly is not None else price
        machine = HardwareChoice(gpu, count, gpus_per_node, node, limit_bytes, host_bytes, hourly, other)
        if campaign is None:
            yield machine
        else:
            yield from (
                replace(machine, count=each, fleet=count) for each in gpus_a_run(campaign, count, gpus_per_node)
            )


def gpus_a_run(campaign: CampaignSpec, fleet: int, gpus_per_node: int | None) -> tuple[int, ...]:
    """How many GPUs each run of a campaign may take: as given, else by halves of a node, within the fleet."""
    if campaign.gpus_per_run is not None:
        return (min(campaign.gpus_per_run, fleet),)
    if campaign.parallel is not None:
        return (max(1, fleet // campaign.parallel),)
    most = min(fleet, gpus_per_node or LARGEST_RUN_GPUS)
    return tuple(sorted({1 << power for power in range(most.bit_length())} | {most}))


def data_parallel(strategy: Strategy, hardware: HardwareChoice) -> int:
    """Ranks that see different samples: every GPU, or every tensor-parallel group of them."""
    return max(1, hardware.count // strategy.tensor_parallel)


def by_deepspeed(strategy: Strategy) -> bool:
    """Whether DeepSpeed shards, which computes with weights in the low dtype beside partitions of fp32 ones."""
    return strategy.sharding in ZERO and (strategy.sharding != "zero1" or strategy.zero1 == "deepspeed")


def batch_plan(strategy: Strategy, hardware: HardwareChoice) -> BatchPlan | str:
    """Make micro-batch, accumulation and global batch agree on this many GPUs, or say in a line why they cannot.

    A micro-batch left to the search is the largest that the given global batch and accumulation allow, else 1.
    """
    ranks = data_parallel(strategy, hardware)
    micro, rounds, total = strategy.micro_batch, strategy.accumulation, strategy.global_batch
    if total is None:
        micro, rounds = micro or 1, rounds or 1
        return BatchPlan(micro, rounds, micro * rounds * ranks, ranks)
    unit = ranks * (micro or 1) * (rounds or 1)
    if total % unit:
        spread = f"{ranks} data-parallel ranks" + (f" x micro-batch {micro}" if micro else "")
        spread += f" x accumulation {rounds}" if rounds else ""
        return f"a global batch of {total} does not divide over {spread}; {_nearest(total, unit)} would"
    if micro and rounds and total != unit:
        return (
            f"a global batch of {total} is not {ranks} data-parallel ranks x micro-batch {micro} "
            f"x accumulation {rounds} = {unit}; leave one of the three out"
        )
    share = total // ranks
    micro = micro or share // (rounds or 1)
    return BatchPlan(micro, share // micro, total, ranks)


def same_without_sharding(strategy: Strategy, hardware: HardwareChoice) -> Strategy | None:
    """On one GPU, the strategy without its sharding, which then changes nothing; None where it does."""
    if strategy.sharding == "none" or strategy.offload != "none" or data_parallel(strategy, hardware) > 1:
        return None
    return replace(strategy, sharding="none")


def micro_batches(strategy: Strategy, hardware: HardwareChoice) -> tuple[int, ...]:
    """The micro-batches a search may try, smallest first; empty when no micro-batch makes the batches agree.

    They divide each rank's share of the global batch; without one, powers of two.
    """
    if strategy.micro_batch is not None:
        return (strategy.micro_batch,)
    if strategy.global_batch is None:
        return tuple(1 << power for power in range(LARGEST_MICRO_BATCH.bit_length()))
    share, uneven = divmod(strategy.global_batch, data_parallel(strategy, hardware))
    if uneven or share % (strategy.accumulation or 1):
        return ()
    if strategy.accumulation is not None:
        return (share // strategy.accumulation,)
    return tuple(size for size in range(1, share + 1) if share % size == 0)


def _nearest(total: int, unit: int) -> str:
    below = total // unit * unit
    return f"{below} or {below + unit}" if below else str(unit)


OLDEST_COMPILED = (7, 0)  # compute capability that Triton needs
# Optimizers with a fused kernel in torch, and those that DeepSpeed steps on the host when their states are offloaded
FUSED = ("adamw", "adam", "sgd")
_ON_HOST = ("adamw", "adam", "lion")
# Those that do the same to each parameter, so that the part of a rank can be told
_ALIKE = ("adamw", "adam", "sgd", "lion")
# Shardings by whose code runs: DeepSpeed's ZeRO, torch's fully_shard
ZERO = ("zero1", "zero2", "zero3")
FSDP = ("fsdp", "fsdp-grad-op", "hsdp")
# the offloads that each sharding's own code implements
_OFFLOADS = {
    "zero1": {"optimizer"},
    "zero2": {"optimizer"},
    "zero3": {"optimizer", "all"},
    "fsdp": {"all"},
    "fsdp-grad-op": {"all"},
    "hsdp": {"all"},
}
# the dtype whose dense peak a precision needs; where the catalog rates none, the GPU has no units for it
_NEEDS = {
    "tf32": "tf32",
    "bf16-mixed": "bf16",
    "bf16": "bf16",
    "fp16-mixed": "fp16",
    "fp16": "fp16",
    "fp8-mixed": "fp8",
}
_INSTEAD = {
    "tf32": "fp32",
    "bf16-mixed": "fp16-mixed",
    "bf16": "fp16-mixed",
    "fp16-mixed": "fp32",
    "fp16": "fp32",
    "fp8-mixed": "bf16-mixed",
}


def impossible(strategy: Strategy, hardware: HardwareChoice, accelerator: Accelerator) -> str | None:
    """Why this combination cannot run, with what to change; None when nothing speaks against it.

    It sees what follows from the knobs alone; what depends on the model or its size is for the estimate to say.
    """
    reasons = (
        _precision(strategy, accelerator),
        _tensor_parallel(strategy, hardware),
        _sharding(strategy, hardware),
        _offload(strategy),
        _optimizer(strategy),
        _compile(strategy, accelerator),
        _loss(strategy),
    )
    return next((reason for reason in reasons if reason), None) or _batches(strategy, hardware)


def _precision(strategy: Strategy, accelerator: Accelerator) -> str | None:
    dtype = _NEEDS.get(strategy.precision)
    if dtype is not None and not accelerator.peak_flop_per_s.get(dtype):
        instead = _INSTEAD[strategy.precision]
        return f"{accelerator.name} has no {dtype} matrix units, so {strategy.precision} gains nothing; use {instead}"
    if strategy.attention == "flash_attention_2" and strategy.precision in ("fp32", "tf32"):
        return f"flash_attention_2 takes bf16 or fp16 only, not {strategy.precision}; use sdpa"
    if strategy.attention == "flash_attention_2" and not accelerator.peak_flop_per_s.get("bf16"):
        return f"flash_attention_2 needs an Ampere GPU or newer, and {accelerator.name} is older; use sdpa"
    return None


def _tensor_parallel(strategy: Strategy, hardware: HardwareChoice) -> str | None:
    ranks, within = strategy.tensor_parallel, hardware.gpus_in_node
    if ranks == 1:
        return None
    able = gcd(hardware.count, within)
    instead = f"use {' or '.join(str(size) for size in range(1, able + 1) if able % size == 0)}"
    if hardware.count % ranks:
        return f"tensor_parallel {ranks} does not divide {hardware.count} GPUs; {instead}"
    if within % ranks:
        return (
            f"tensor_parallel {ranks} does not divide the {within} GPUs of a node, and must stay inside one; {instead}"
        )
    if strategy.sharding in ZERO:
        return f"tensor_parallel with {strategy.sharding} is not offered; use fsdp, or tensor_parallel 1"
    return None


def _sharding(strategy: Strategy, hardware: HardwareChoice) -> str | None:
    if strategy.precision == "fp16" and strategy.sharding in FSDP:
        return f"{strategy.sharding} keeps fp32 weights and casts them, precision fp16 keeps fp16 ones; use fp16-mixed"
    if strategy.sharding == "zero1" and not by_deepspeed(strategy) and strategy.optimizer not in _ALIKE:
        return (
            f"zero1 by torch's ZeroRedundancyOptimizer is not modelled with {strategy.optimizer}; "
            f"use {' or '.join(_ALIKE)}, or zero1: deepspeed"
        )
    if strategy.sharding != "hsdp":
        return None
    if hardware.nodes == 1:
        return "hsdp shards inside a node and replicates between nodes, and here is one node; use fsdp"
    if hardware.count % hardware.nodes:
        return (
            f"hsdp needs equal nodes, and {hardware.count} GPUs do not divide over {hardware.nodes}; use a multiple of "
            f"{hardware.nodes}, or fsdp"
        )
    return None


def _offload(strategy: Strategy) -> str | None:
    if strategy.offload == "none":
        return None
    if strategy.offload not in _OFFLOADS.get(strategy.sharding, set()):
        able = " or ".join(name for name, offloads in _OFFLOADS.items() if strategy.offload in offloads)
        return f"sharding {strategy.sharding} has no offload {strategy.offload}; {able} has"
    if strategy.sharding in ZERO and strategy.optimizer not in _ON_HOST:
        able = " or ".join(_ON_HOST)
        return f"offload steps the optimizer on the host, which has no {strategy.optimizer}; use {able}"
    if strategy.optimizer == "adamw-8bit":
        return "offload steps the optimizer on the host, and adamw-8bit has no kernel there; use adamw"
    return None


def _optimizer(strategy: Strategy) -> str | None:
    if strategy.optimizer_implementation == "fused" and strategy.optimizer not in FUSED:
        return f"torch has no fused {strategy.optimizer}; use foreach"
    return None


def _compile(strategy: Strategy, accelerator: Accelerator) -> str | None:
    capability = accelerator.compute_capability
    if strategy.compile and capability is not None and capability < OLDEST_COMPILED:
        return f"torch.compile writes no kernels for {accelerator.name}, which is older than Volta; use compile: false"
    return None


def _loss(strategy: Strategy) -> str | None:
    if strategy.loss == "eager":
        return None
    if strategy.tensor_parallel > 1:
        return f"loss: {strategy.loss} needs the whole head on each GPU; use loss: eager, or tensor_parallel: 1"
    return None


def _batches(strategy: Strategy, hardware: HardwareChoice) -> str | None:
    batches = batch_plan(strategy, hardware)
    return batches if isinstance(batches, str) else None
