"""DDP and ZeRO after the trace: what is held, what is sent, and that one rank is left as it was."""

from __future__ import annotations

import re
import textwrap
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.collectives import WAIT, Mesh, is_collective, traffic
from planner.memory import Scratch, Timeline, replay
from planner.passes import ddp, zero, zero_redundancy
from planner.passes.partition import share_elements, state_bytes
from planner.workload import ALLOCATE, CALL, FREE, Workload
from tests.planner.sharded_model import traced

MIB = 1 << 20


def played(workload: Workload, accumulation: int = 1) -> Timeline:
    return replay(workload, Scratch((), lambda call: ()), accumulation=accumulation)


@pytest.fixture(scope="module")
def whole() -> Workload:
    """About 70 MiB of gradients: several buckets."""
    return traced(width=1024, inner=2048, words=2000, depth=3)


@pytest.fixture(scope="module")
def low() -> Workload:
    return traced(precision="bf16", width=1024, inner=2048, words=2000, depth=3)


def test_the_first_bucket_closes_at_1_mib_and_the_others_at_25(whole: Workload) -> None:
    sizes = [bucket.size_bytes for bucket in ddp.gradient_buckets(whole)]
    assert sum(sizes) == whole.trainable_count * 4
    assert sizes[0] == 2000 * 1024 * 4  # the head alone is beyond the first limit
    assert all(25 * MIB <= size < 34 * MIB for size in sizes[1:-1])
    assert len(sizes) >= 3


def test_buckets_fill_in_backward_order_and_hold_each_gradient_once(whole: Workload) -> None:
    members = [index for bucket in ddp.gradient_buckets(whole) for index in bucket.parameters]
    assert members == list(ddp.ready_order(whole))
    assert sorted(members) == list(range(len(whole.parameters)))
    assert whole.parameters[members[0]].name == "head.weight"
    assert whole.parameters[members[-1]].name == "embedding.weight"


def test_ddp_holds_one_gradient_sized_buffer_more_from_the_start(whole: Workload) -> None:
    replica = ddp.apply(whole, 8)
    grown = {phase: played(replica).peaks[phase] - peak for phase, peak in played(whole).peaks.items()}
    weights = whole.trainable_count * 4
    assert all(more == pytest.approx(weights, rel=0.005) for more in grown.values())  # small rests are not split off


def test_ddp_begins_with_one_bucket_and_makes_them_anew_after_the_first_step(whole: Workload) -> None:
    replica = ddp.apply(whole, 2)

    def sizes(segment: str, code: int) -> list[int]:
        events = replica.segments[segment]
        return replica.block_bytes[events.values[events.codes == code]].tolist()  # type: ignore[no-any-return]

    buckets = [bucket.size_bytes for bucket in ddp.gradient_buckets(whole)]
    assert sizes("load", ALLOCATE)[-1] == sum(buckets)
    assert sizes(ddp.SETTLE, FREE) == [sum(buckets)]
    assert sizes(ddp.SETTLE, ALLOCATE) == buckets


def test_ddp_sends_weights_flat_in_250_mib_two_at_a_time(whole: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp, "SENT_BYTES", 10 * MIB)
    events = ddp.apply(whole, 2).segments["load"]
    held, most, sent = 0, 0, 0
    for code in events.codes[len(whole.segments["load"]) : -1].tolist():  # the last is the bucket
        held += 1 if code == ALLOCATE else -1
        most, sent = max(most, held), sent + (code == ALLOCATE)
    assert (held, most) == (0, ddp.IN_FLIGHT)
    assert sent >= 4


def test_ddp_reduces_in_the_last_micro_step_alone(whole: Workload) -> None:
    replica = ddp.apply(whole, 8)
    assert traffic(replica, "micro_step") == []
    sent = traffic(replica, ddp.LAST)
    assert [size for _, _, size in sent] == [bucket.size_bytes for bucket in ddp.gradient_buckets(whole)]
    events = replica.segments[ddp.LAST]
    assert events.values[events.codes == WAIT].tolist() == list(range(len(sent)))


def test_ddp_copies_every_gradient_into_its_bucket_and_back(whole: Workload) -> None:
    def launches(workload: Workload, segment: str) -> list[str]:
        return [workload.calls[index].name for index in workload.calls_in(segment)]

    replica = ddp.apply(whole, 8)
    plain, last = launches(whole, "micro_step"), launches(replica, ddp.LAST)
    assert last.count("mul.out") == last.count("copy_.default") - plain.count("copy_.default") == len(whole.parameters)
    assert [
        name for name in last if name not in ("mul.out", "copy_.default") and not name.startswith("collective")
    ] == [name for name in plain if name != "copy_.default"]


@pytest.mark.parametrize(
    "technique",
    [
        ddp.apply,
        lambda w, n: zero.apply(w, n, 1),
        lambda w, n: zero.apply(w, n, 2),
        zero.partitioned,
        zero_redundancy.apply,
    ],
)
def test_on_one_rank_every_technique_changes_nothing(whole: Workload, technique) -> None:  # type: ignore[no-untyped-def]
    assert technique(whole, 1) is whole


def test_zero1_holds_fp32_weights_and_states_in_partitions(low: Workload) -> None:
    elements, part = low.trainable_count, share_elements(low.trainable_count, 4)
    held = zero.apply(low, 4, 1).bytes_of("optimizer") - low.bytes_of("optimizer")
    assert held == pytest.approx(part * (4 + 8), rel=0.001)  # master weights and Adam's two states
    assert state_bytes(low) == pytest.approx(elements * 4, rel=0.001)  # two states in bf16, as traced


def test_zero2_keeps_a_partition_of_the_gradients_and_zero1_all_of_them(low: Workload) -> None:
    one, two = (played(zero.apply(low, 4, stage)) for stage in (1, 2))
    assert one.peaks["optimizer"] - two.peaks["optimizer"] == pytest.approx(low.trainable_count * 2 * 3 / 4, rel=0.01)


def test_zero_reduces_every_gradient_and_gathers_every_weight_once(low: Workload) -> None:
    sharded = zero.apply(low, 4, 2)
    sent = traffic(sharded, "micro_step")
    assert sum(size for _, _, size in sent) == low.trainable_count * 2
    assert traffic(sharded, "optimizer") == [("all_gather", "world", low.trainable_count * 2)]


def test_the_buckets_of_zero_are_two_of_2e8_elements_and_gone_after_backward(low: Workload) -> None:
    found = played(zero.apply(low, 4, 2))
    assert found.by_category["workspace"] == 2 * 200_000_000 * 2
    assert found.peaks["optimizer"] < 2 * 200_000_000 * 2


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 512))
def test_more_ranks_never_hold_more_optimizer(low: Workload, ranks: int) -> None:
    fewer, more = (zero.apply(low, count, 1).bytes_of("optimizer") for count in (ranks, ranks + 1))
    assert more <= fewer


def test_the_step_of_a_partition_launches_few_kernels_on_its_share_alone(low: Workload) -> None:
    sharded = zero.apply(low, 4, 2)
    events = sharded.segments["optimizer"]
    calls = [
        sharded.calls[value] for value in events.values[events.codes == CALL] if not is_collective(sharded.calls[value])
    ]
    part = share_elements(low.trainable_count, 4)
    assert {spec.elements for call in calls for spec in call.tensors} <= {part, 1}
    assert any(call.name.startswith("_fused_adamw_") for call in calls)


def test_zero_redundancy_gives_the_largest_parameter_to_the_rank_with_the_least() -> None:
    assert zero_redundancy.owners([3, 5, 3, 4], 2) == [1, 0, 0, 1]
    assert zero_redundancy.owners([10], 3) == [0]


def test_zero_redundancy_steps_its_own_parameters_and_sends_every_one(whole: Workload) -> None:
    share = zero_redundancy.apply(whole, 2)
    held = state_bytes(share) / state_bytes(whole)
    assert 0.5 <= held < 0.52
    assert played(whole).peaks["optimizer"] > played(share).peaks["optimizer"] - ddp_bucket_bytes(whole)
    sent = traffic(share, "optimizer")
    assert [kind for kind, _, _ in sent] == ["broadcast"] * len(whole.parameters)
    assert sum(size for _, _, size in sent) == whole.trainable_count * 4


def ddp_bucket_bytes(workload: Workload) -> int:
    return sum(bucket.size_bytes for bucket in ddp.gradient_buckets(workload))


def test_stage_3_of_a_model_within_the_live_limit_keeps_what_it_gathered() -> None:
    assert zero.sharding_of(400_000_000) == "fsdp-grad-op"
    assert zero.sharding_of(7_000_000_000) == "fsdp"


def test_zero3_holds_its_gradients_from_the_start_and_its_last_weights_over_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zero, "BUCKET_ELEMENTS", 1000)
    sharded = traced(Mesh("fsdp", 4), precision="bf16", width=1024, inner=2048, words=2000, depth=3)
    small = played(zero.partitioned(sharded, 4))
    part = sharded.trainable_count / 4
    assert small.peaks["load"] == pytest.approx(part * (2 + 2 + 4 + 8), rel=0.01)  # weights, gradients, fp32, states
    monkeypatch.setattr(zero, "LIVE_ELEMENTS", sharded.parameter_count // 2)
    large = played(zero.partitioned(sharded, 4))
    kept = sharded.parameter_count // 4 * 2
    assert 0 < large.peak_allocated_bytes - small.peak_allocated_bytes <= kept


def test_the_technique_that_the_docs_add_is_one(whole: Workload, root: Path) -> None:
    blocks = re.findall(r"( +)```python\n(.*?)\1```", (root / "docs" / "extending.md").read_text(), re.DOTALL)
    source, test = (textwrap.dedent(block) for _, block in blocks)
    gossip = types.ModuleType("gossip")
    exec(source, gossip.__dict__)
    names = globals() | {"gossip": gossip}
    exec(test, names)
    (name,) = re.findall(r"def (test_\w+)", test)
    names[name](whole)
    assert gossip.apply(whole, 1) is whole
