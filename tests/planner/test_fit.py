"""The verdict: three words, and a range that straddles the limit only when it says borderline."""

from __future__ import annotations

import pytest

from planner import machine as machines
from planner.cache import TraceKnobs, Workloads
from planner.fit import Fit, fit
from planner.passes import ddp
from planner.spec import DataSpec, ModelSpec
from planner.strategy import HardwareChoice, Strategy
from planner.workload import Workload

MIB = 1 << 20
MODEL = {
    "model_type": "gpt_neox", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 1024, "vocab_size": 8192, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture(scope="module")
def workload() -> Workload:
    knobs = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))
    return Workloads(ModelSpec(config=MODEL), DataSpec(sequence_length=256)).at(knobs, 8)


def judged(workload: Workload, limit_mib: int) -> Fit:
    machine = machines.resolve(HardwareChoice("h200-sxm", memory_limit_bytes=limit_mib * MIB))
    return fit(workload, Strategy(), machine, 1)


def test_the_verdict_turns_from_no_over_borderline_to_yes_as_the_limit_grows(workload: Workload) -> None:
    peak_mib = judged(workload, 100_000).timeline.peak_reserved_bytes // MIB
    order = ["does-not-fit", "borderline", "fits"]
    seen = [order.index(judged(workload, int(peak_mib * share)).verdict) for share in (0.3, 0.6, 0.9, 1.0, 1.1, 1.5)]
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] == 2


def test_a_firm_verdict_lies_wholly_on_one_side_of_the_limit(workload: Workload) -> None:
    for limit in (64, 128, 256, 400, 600, 1000, 4000):
        found = judged(workload, limit)
        usable = machines.resolve(HardwareChoice("h200-sxm", memory_limit_bytes=limit * MIB)).usable_bytes
        if found.verdict == "fits":
            assert found.high_bytes <= usable
        if found.verdict == "does-not-fit":
            assert found.low_bytes > usable
        if found.verdict == "borderline":
            assert found.low_bytes <= usable < found.high_bytes
        assert found.low_bytes <= found.high_bytes


def test_data_parallel_buckets_cost_a_copy_of_the_gradients(workload: Workload) -> None:
    machine = machines.resolve(HardwareChoice("h200-sxm"))
    alone, replicated = (fit(ddp.apply(workload, ranks), Strategy(), machine, 1) for ranks in (1, 8))
    more = replicated.timeline.peak_allocated_bytes - alone.timeline.peak_allocated_bytes
    assert more == pytest.approx(4 * workload.trainable_count, abs=2 * MIB)  # what the allocator leaves unsplit


def test_a_sharded_model_is_saved_weight_by_weight(workload: Workload) -> None:
    machine = machines.resolve(HardwareChoice("h200-sxm"))
    alone, sharded = (fit(workload, Strategy(sharding=name), machine, 1).timeline.peaks for name in ("none", "fsdp"))
    assert "save" not in alone
    states = 3 * 4 * workload.parameter_count  # weights and AdamW's two states, in fp32
    largest = 4 * MODEL["vocab_size"] * MODEL["hidden_size"]  # type: ignore[operator]
    assert sharded["save"] - states - largest == pytest.approx(66 * MIB, abs=3 * MIB)  # cuBLAS, inputs and buffers
    assert sharded["save"] < sharded["backward"]
