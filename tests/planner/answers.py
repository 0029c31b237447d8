"""Answers with fixed numbers, for tests that are about order and print and not about the numbers."""

from __future__ import annotations

from typing import Any

from planner.answer import Estimate, Excluded, HardwareUsed, Memory, Run, Step, StrategyUsed, Throughput

GIB = 2**30


def strategy(**changes: Any) -> StrategyUsed:
    known = {
        "precision": "bf16-mixed", "optimizer": "adamw", "optimizer_implementation": "foreach", "micro_batch": 8,
        "accumulation": 128, "global_batch": 1024, "checkpointing": "none", "sharding": "none", "tensor_parallel": 1,
        "offload": "none", "compile": False, "max_grad_norm": 1.0, "attention": "sdpa", "allocator": "default",
    }  # fmt: skip
    return StrategyUsed(**(known | changes))


def memory(used_gib: float = 16.8, usable_gib: float = 139.8) -> Memory:
    used, usable = int(used_gib * GIB), int(usable_gib * GIB)
    return Memory(
        peak_allocated_bytes=int(used * 0.9),
        peak_reserved_bytes=int(used * 0.95),
        device_bytes=used,
        usable_bytes=usable,
        low_bytes=int(used * 0.98),
        high_bytes=int(used * 1.04),
        peak_phase="backward",
        by_category={"weights": int(used * 0.3), "optimizer": int(used * 0.4), "activations": int(used * 0.2)},
        known="measured",
    )


def estimate(
    gpu: str = "h200-sxm",
    count: int = 1,
    days: float | None = 40.0,
    usd: float | None = 2000.0,
    verdict: Any = "fits",
    used_gib: float = 16.8,
    **changes: Any,
) -> Estimate:
    seconds = (days or 1.0) * 86_400 / 143_000
    step = Step(
        seconds=seconds,
        low_seconds=seconds * 0.75,
        high_seconds=seconds * 1.35,
        forward_seconds=seconds * 0.3,
        backward_seconds=seconds * 0.6,
        optimizer_seconds=seconds * 0.1,
        host_bound_share=0.02,
        floor_seconds=seconds * 0.3,
        known="prior",
    )
    run = None
    if days is not None:
        run = Run(
            steps=143_000,
            days=days,
            low_days=days * 0.75,
            high_days=days * 1.35,
            gpu_hours=days * 24 * count,
            cost_usd=usd,
            cost_source="on-demand, median of 5 offers by 5 providers" if usd is not None else f"no price for {gpu}",
            cost_date="2026-05-24" if usd is not None else None,
            energy_kwh=days * 24 * count * 0.8,
        )
    return Estimate(
        verdict=verdict,
        memory=memory(used_gib),
        step=step,
        throughput=Throughput(samples_per_second=1024 / seconds, tokens_per_second_per_gpu=2.1e6 / seconds, mfu=0.41),
        run=run,
        strategy=strategy(**changes),
        hardware=HardwareUsed(gpu=gpu, count=count),
        parameters=1_011_781_632,
        trainable_parameters=1_011_781_632,
        flop_per_step=1.4e16,
        assumptions=["2 GPUs joined as in dgx-h200 (nvlink4-nvswitch)"],
        unmodelled=["data loading", "evaluation and checkpoint writing"],
    )


def excluded(gpu: str, count: int, reason: str) -> Excluded:
    return Excluded(strategy=strategy(micro_batch=None), hardware=HardwareUsed(gpu=gpu, count=count), reason=reason)
