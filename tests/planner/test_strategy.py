"""The choices of a spec, and how a step's samples are spread over any number of GPUs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.answer import HardwareUsed, StrategyUsed
from planner.spec import Spec
from planner.strategy import BatchPlan, HardwareChoice, Strategy, batch_plan, choices, micro_batches

SMALL = {"model": {"name": "pythia-1b"}, "hardware": {"gpu": "h200-sxm"}}


def gpus(count: int, **more: int) -> HardwareChoice:
    return HardwareChoice("h100-sxm5-80gb", count, **more)


def test_a_spec_without_choices_is_one_combination() -> None:
    assert list(choices(Spec.load(SMALL))) == [(Strategy(), HardwareChoice("h200-sxm"))]


def test_choices_come_in_the_order_they_were_written_hardware_outermost() -> None:
    spec = Spec.load(
        {
            "model": {"name": "pythia-1b", "attention": ["eager", "sdpa"]},
            "training": {"precision": ["fp32", "bf16-mixed"]},
            "hardware": [{"gpu": "rtx-3090", "count": [2, 1]}, {"gpu": "l40s"}],
        }
    )
    found = [(machine.gpu, machine.count, way.precision, way.attention) for way, machine in choices(spec)]
    knobs = [(precision, attention) for precision in ("fp32", "bf16-mixed") for attention in ("eager", "sdpa")]
    machines = [("rtx-3090", 2), ("rtx-3090", 1), ("l40s", 1)]
    assert found == [(*machine, *knob) for machine in machines for knob in knobs]


def test_the_same_choice_written_twice_is_considered_once() -> None:
    spec = Spec.load(SMALL | {"hardware": {"gpu": "l4", "count": [1, 1]}, "training": {"precision": ["fp32", "fp32"]}})
    assert len(list(choices(spec))) == 1


def test_every_knob_of_the_training_section_reaches_the_strategy() -> None:
    training = {
        "precision": "fp16-mixed",
        "optimizer": "sgd",
        "optimizer_implementation": "fused",
        "micro_batch": 3,
        "accumulation": 5,
        "global_batch": 15,
        "checkpointing": "full",
        "loss": "fused-linear",
        "sharding": "fsdp",
        "zero1": "torch",
        "tensor_parallel": 2,
        "offload": "all",
        "compile": True,
        "max_grad_norm": 0.5,
        "allocator": "expandable",
    }
    ((strategy, _),) = choices(Spec.load(SMALL | {"training": training}))
    assert asdict(strategy) == training | {"attention": "sdpa"}


def test_the_pythia_example_asks_for_sixteen_machines_and_eight_ways_to_train(root: Path) -> None:
    found = list(choices(Spec.load(root / "examples" / "pythia-1b.yaml")))
    assert len(found) == len(set(found)) == 16 * 8
    assert {strategy.global_batch for strategy, _ in found} == {1024}
    assert {machine.gpu for _, machine in found} == {"rtx-3090", "rtx-a6000", "a100-sxm4-80gb", "h100-sxm5-80gb"}


def test_hardware_keeps_its_limits_and_its_price() -> None:
    hardware = {"gpu": "l4", "memory_limit": "20 GiB", "price": {"usd_per_gpu_hour": 0.5}, "gpus_per_node": 4}
    ((_, machine),) = choices(Spec.load(SMALL | {"hardware": hardware}))
    assert machine == HardwareChoice("l4", 1, 4, memory_limit_bytes=20 * 1024**3, usd_per_gpu_hour=0.5)


def test_the_answer_repeats_every_knob_and_every_limit() -> None:
    strategy, machine = Strategy(micro_batch=4), gpus(16, gpus_per_node=8)
    assert StrategyUsed.of(strategy).model_dump() == asdict(strategy)
    assert HardwareUsed.of(machine).model_dump() == asdict(machine)


@pytest.mark.parametrize(
    ("count", "per_node", "nodes", "in_node"),
    [(3, None, 1, 3), (6, 8, 1, 6), (12, 8, 2, 8), (72, 72, 1, 72), (72, 8, 9, 8)],
)
def test_gpus_fill_nodes(count: int, per_node: int | None, nodes: int, in_node: int) -> None:
    machine = HardwareChoice("gb200", count, per_node)
    assert (machine.nodes, machine.gpus_in_node) == (nodes, in_node)


@pytest.mark.parametrize(
    ("strategy", "count", "plan"),
    [
        (Strategy(), 6, BatchPlan(1, 1, 6, 6)),
        (Strategy(micro_batch=4, accumulation=2), 3, BatchPlan(4, 2, 24, 3)),
        (Strategy(global_batch=1024, micro_batch=8), 4, BatchPlan(8, 32, 1024, 4)),
        (Strategy(global_batch=1152, micro_batch=4), 12, BatchPlan(4, 24, 1152, 12)),
        (Strategy(global_batch=1152, accumulation=4), 72, BatchPlan(4, 4, 1152, 72)),
        (Strategy(global_batch=1152), 72, BatchPlan(16, 1, 1152, 72)),
        (Strategy(global_batch=96, micro_batch=4, accumulation=8), 3, BatchPlan(4, 8, 96, 3)),
        (Strategy(global_batch=64, micro_batch=2, tensor_parallel=4), 16, BatchPlan(2, 8, 64, 4)),
    ],
)
def test_the_batches_agree_on_any_number_of_gpus(strategy: Strategy, count: int, plan: BatchPlan) -> None:
    assert batch_plan(strategy, gpus(count)) == plan


@pytest.mark.parametrize(
    ("strategy", "count", "reason"),
    [
        (
            Strategy(global_batch=1024),
            3,
            "a global batch of 1024 does not divide over 3 data-parallel ranks; 1023 or 1026 would",
        ),
        (
            Strategy(global_batch=1024, micro_batch=3),
            8,
            "a global batch of 1024 does not divide over 8 data-parallel ranks x micro-batch 3; 1008 or 1032 would",
        ),
        (
            Strategy(global_batch=8, accumulation=4),
            72,
            "a global batch of 8 does not divide over 72 data-parallel ranks x accumulation 4; 288 would",
        ),
        (
            Strategy(global_batch=1024, micro_batch=4, accumulation=8),
            8,
            "a global batch of 1024 is not 8 data-parallel ranks x micro-batch 4 x accumulation 8 = 256; "
            "leave one of the three out",
        ),
    ],
)
def test_batches_that_disagree_are_told_with_one_that_would_work(strategy: Strategy, count: int, reason: str) -> None:
    assert batch_plan(strategy, gpus(count)) == reason
    if strategy.micro_batch is None:
        assert micro_batches(strategy, gpus(count)) == ()


def test_a_search_tries_the_divisors_of_each_rank_s_share() -> None:
    assert micro_batches(Strategy(global_batch=96), gpus(8)) == (1, 2, 3, 4, 6, 12)
    assert micro_batches(Strategy(global_batch=96, accumulation=3), gpus(8)) == (4,)
    assert micro_batches(Strategy(global_batch=96, micro_batch=2), gpus(8)) == (2,)


def test_a_search_without_a_global_batch_tries_powers_of_two() -> None:
    tried = micro_batches(Strategy(), gpus(8))
    assert tried[:5] == (1, 2, 4, 8, 16)
    assert tried[-1] == 16384


@given(st.integers(1, 600), st.integers(1, 5000), st.none() | st.integers(1, 64), st.none() | st.integers(1, 64))
def test_a_plan_always_multiplies_out(count: int, total: int, micro: int | None, rounds: int | None) -> None:
    strategy = Strategy(global_batch=total, micro_batch=micro, accumulation=rounds)
    plan = batch_plan(strategy, gpus(count))
    if isinstance(plan, str):
        assert "data-parallel ranks" in plan
    else:
        assert plan.micro_batch * plan.accumulation * plan.data_parallel == plan.global_batch == total
        assert micro in (None, plan.micro_batch)
        assert rounds in (None, plan.accumulation)


@given(st.integers(1, 600), st.integers(1, 5000), st.none() | st.integers(1, 64))
def test_every_micro_batch_of_the_search_makes_a_plan(count: int, total: int, rounds: int | None) -> None:
    strategy = Strategy(global_batch=total, accumulation=rounds)
    tried = micro_batches(strategy, gpus(count))
    plans = [batch_plan(replace(strategy, micro_batch=micro), gpus(count)) for micro in tried]
    assert all(isinstance(plan, BatchPlan) for plan in plans)
    assert bool(tried) == isinstance(batch_plan(strategy, gpus(count)), BatchPlan)
