"""FSDP2 on fake ranks: what is gathered, reduced and freed, and any number of ranks from two traces."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from catalog.errors import RigplanError
from planner.collectives import WAIT, Mesh, is_collective, traffic
from planner.memory import Scratch, Timeline, replay
from planner.shard_family import ShardFamily
from planner.workload import NotAffine, Workload
from planner.wrappers import fsdp
from tests.planner.sharded_model import traced

BLOCK_BYTES = (2 * 96 + 250 * 96 + 250 + 96 * 250 + 96) * 4
# embedding and head, 1003 rows padded to 1004 for four ranks
ROOT_BYTES = 2 * 1004 * 96 * 4


def played(workload: Workload) -> Timeline:
    return replay(workload, Scratch((), lambda call: ()))


@pytest.fixture(scope="module")
def whole() -> Workload:
    return traced()


@pytest.fixture(scope="module")
def families() -> dict[str, ShardFamily]:
    return {way: ShardFamily(traced(Mesh(way, 2)), traced(Mesh(way, 4))) for way in ("fsdp", "fsdp-grad-op")}


def test_a_full_shard_gathers_each_block_twice_and_the_root_once(families: dict[str, ShardFamily]) -> None:
    gathers = [size for kind, _, size in traffic(families["fsdp"].second, "micro_step") if kind == "all_gather"]
    assert gathers[0] == ROOT_BYTES
    assert len(gathers) == 1 + 3 + 3
    assert all(BLOCK_BYTES <= size < 1.02 * BLOCK_BYTES for size in gathers[1:])


def test_grad_op_gathers_each_block_once(families: dict[str, ShardFamily]) -> None:
    kinds = [kind for kind, _, _ in traffic(families["fsdp-grad-op"].second, "micro_step")]
    assert kinds.count("all_gather") == kinds.count("reduce_scatter") == 4


def test_gradients_are_reduced_in_fp32_where_weights_are_gathered_in_bf16() -> None:
    mixed = traffic(traced(Mesh("fsdp", 2), precision="bf16-mixed"), "micro_step")
    gathered = {size for kind, _, size in mixed if kind == "all_gather"}
    reduced = {size for kind, _, size in mixed if kind == "reduce_scatter"}
    assert reduced == {2 * size for size in gathered}


def test_hsdp_shards_inside_and_adds_up_between() -> None:
    found = traffic(traced(Mesh("hsdp", shard=2, replicate=3)), "micro_step")
    assert [(kind, group) for kind, group, _ in found][-2:] == [
        ("reduce_scatter", "shard"),
        ("all_reduce", "replicate"),
    ]
    assert found[-1][2] * 2 == found[-2][2]


def test_keeping_gathered_weights_costs_about_a_block_of_memory_where_three_are_kept_and_two_live(
    families: dict[str, ShardFamily],
) -> None:
    full, kept = (played(families[way].second).peaks["forward"] for way in ("fsdp", "fsdp-grad-op"))
    assert 0.5 * BLOCK_BYTES < kept - full < 2 * BLOCK_BYTES


def test_every_gather_is_waited_for_and_the_micro_step_ends_with_nothing_under_way(
    families: dict[str, ShardFamily],
) -> None:
    workload = families["fsdp"].first
    events = workload.segments["micro_step"]
    waits = events.values[events.codes == WAIT].tolist()
    count = sum(is_collective(workload.calls[index]) for index in workload.calls_in("micro_step"))
    assert waits == sorted(waits)
    assert waits[-1] == count - 1


@pytest.mark.parametrize("way", ["fsdp", "fsdp-grad-op"])
@pytest.mark.parametrize(("ranks", "off"), [(2, 0.0), (4, 0.0), (8, 0.005), (64, 0.045)])
def test_sizes_over_any_number_of_ranks_are_read_off_two_traces(
    families: dict[str, ShardFamily], way: str, ranks: int, off: float
) -> None:
    # over 64 ranks the 96 rows of one weight are padded to 128 while it is gathered: what two traces cannot show
    read, direct = families[way].at(ranks), traced(Mesh(way, ranks))
    assert read.bytes_of("weights") == direct.bytes_of("weights")  # padding included
    for category in ("gradients", "optimizer"):
        assert read.bytes_of(category) == pytest.approx(direct.bytes_of(category), rel=0.005)
    assert played(read).peak_allocated_bytes == pytest.approx(played(direct).peak_allocated_bytes, rel=off)
    assert [row[:2] for row in traffic(read, "micro_step")] == [row[:2] for row in traffic(direct, "micro_step")]
    moved = [sum(size for _, _, size in traffic(one, "micro_step")) for one in (read, direct)]
    assert moved[0] == pytest.approx(moved[1], rel=0.05)  # 250 rows over 64 ranks are padded to 256


def test_more_ranks_never_hold_more_of_what_is_sharded(families: dict[str, ShardFamily]) -> None:
    for category in ("weights", "gradients", "optimizer"):
        held = [families["fsdp"].at(ranks).bytes_of(category) for ranks in range(2, 65)]
        assert held == sorted(held, reverse=True)


def test_one_rank_of_one_holds_what_an_unsharded_run_holds(whole: Workload) -> None:
    alone = traced(Mesh("fsdp", 1))
    assert alone.bytes_of("weights") == whole.bytes_of("weights")
    assert played(alone).peaks["optimizer"] == pytest.approx(played(whole).peaks["optimizer"], rel=0.01)


def test_traces_of_different_models_do_not_line_up(families: dict[str, ShardFamily], whole: Workload) -> None:
    with pytest.raises(NotAffine):
        ShardFamily(families["fsdp"].first, whole).at(8)


def test_a_sharded_trace_leaves_no_process_group_behind_and_wants_none_before() -> None:
    first, second = (fsdp.process_group(Mesh("fsdp", 2)) for _ in range(2))
    with first, pytest.raises(RigplanError, match="process group of its own"), second:
        pass
    assert not dist.is_initialized()


def test_a_layer_cut_by_tensor_parallel_ranks_adds_its_parts_up_forward_and_backward() -> None:
    found = traffic(traced(Mesh("none", tensor=2)), "micro_step")
    activations = 32 * 96 * 4
    kinds = [(kind, group, size) for kind, group, size in found if kind == "all_reduce"]
    # each block: its output in forward, its input's gradient in backward; the head: its input's gradient
    assert kinds == [("all_reduce", "tensor", activations)] * 7
    assert [size for kind, _, size in found if kind == "all_gather"] == [32 * 1004 * 4]


def test_tensor_parallel_and_fsdp_cut_a_weight_twice() -> None:
    once, twice = traced(Mesh("fsdp", 2)), traced(Mesh("fsdp", 2, tensor=2))
    assert twice.bytes_of("weights") < 0.8 * once.bytes_of("weights")  # the embedding is cut once alone
    assert {group for _, group, _ in traffic(twice, "micro_step")} == {"shard", "tensor"}
