"""Layers shared by ranks: which are cut, what that leaves of a step, and why some cannot be."""

from __future__ import annotations

import pytest
import torch

from catalog.errors import RigplanError
from planner.cache import TraceKnobs
from planner.collectives import WAIT, Mesh, traffic
from planner.operators import describe
from planner.optimizers import alike
from planner.passes import ddp, zero
from planner.shard_family import ShardFamily
from planner.spec import Spec
from planner.trace import trace
from planner.workload import Workload
from planner.wrappers import fsdp, tensor_parallel
from tests.planner.sharded_model import PLAN, TINY, Small, traced


class Named(Small):
    """A small model that says how many heads it has, and how it wants to be cut."""

    def __init__(self, heads: int = 4, plan: dict[str, str] | None = None) -> None:
        super().__init__()
        self.config = type("Config", (), {"num_attention_heads": heads, "num_key_value_heads": heads})()
        self._tp_plan = plan


def cut(module: torch.nn.Module, ranks: int, plan: dict[str, str] | None = None) -> tuple[str, ...]:
    with fsdp.process_group(Mesh("none", tensor=ranks)) as devices:
        return tensor_parallel.apply(module, devices, plan)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: Named(6, PLAN), "num_attention_heads 6 does not divide by tensor_parallel 4; use a divisor of it"),
        (lambda: Named(), "Named has no tensor-parallel plan; give model.tensor_parallel_plan"),
        (lambda: Named(plan={"head": "moe_tp_experts"}), "the style moe_tp_experts of head is not modelled"),
        (lambda: Named(plan={"blocks.*.up.weight": "colwise"}), "blocks.0.up.weight is cut as colwise, not modelled"),
        (lambda: Named(plan={"blocks.*.norm": "colwise"}), "blocks.0.norm is a LayerNorm, and only linear layers"),
        (lambda: Named(plan={"layers.*": "colwise"}), "the plan matches no layer"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_reason(module: object, reason: str) -> None:
    with pytest.raises(RigplanError, match=reason.replace("(", r"\(")):
        cut(module(), 4)  # type: ignore[operator]


def test_a_weight_shared_by_two_layers_cut_alike_stays_one() -> None:
    module = Named()
    module.head.weight = module.embedding.weight
    assert cut(module, 2, {**PLAN, "embedding": "embedding_rowwise"}) == ()
    assert module.head.weight is module.embedding.weight


def test_a_head_that_shares_the_weight_of_a_whole_embedding_stays_whole_and_the_answer_says_so() -> None:
    module = Named()
    module.head.weight = module.embedding.weight
    assert cut(module, 2, PLAN) == (tensor_parallel.TIED,)
    assert module.head.weight.shape == (1003, 96)
    assert not hasattr(module.head.weight, "device_mesh")


def test_cut_weights_and_whole_ones_are_stepped_apart() -> None:
    module = Named()
    cut(module, 2, PLAN)
    groups = alike(list(module.parameters()))
    assert [len(group) for group in groups] == [7, 13]  # embedding and norms; up, its bias, down, its bias; the head


def test_all_ranks_together_do_the_work_of_one() -> None:
    one, each = (matmul_flop(workload) for workload in (traced(), traced(Mesh("none", tensor=2))))
    assert 2 * each == pytest.approx(one, rel=0.002)  # 1003 words are 502 and 501


def matmul_flop(workload: Workload) -> float:
    described = [describe(call) for call in workload.calls]
    return sum(described[index].flop for index in workload.calls_in("micro_step"))


def test_more_ranks_never_hold_more() -> None:
    cut_in = [traced(Mesh("none", tensor=ranks), inner=256) for ranks in (2, 4)]
    for category in ("weights", "gradients", "optimizer"):
        held = [one.bytes_of(category) for one in (traced(inner=256), *cut_in)]
        assert held == sorted(held, reverse=True)


def test_replicas_of_a_tensor_parallel_group_reduce_what_each_rank_holds() -> None:
    cut_in_two = traced(Mesh("none", tensor=2))
    reduced = [row for row in traffic(ddp.apply(cut_in_two, 4), "last_micro_step") if row[1] == "replicate"]
    assert sum(size for _, _, size in reduced) == cut_in_two.bytes_of("weights")


def test_sizes_of_a_layer_cut_twice_are_read_off_two_traces() -> None:
    family = ShardFamily(*(traced(Mesh("fsdp", ranks, tensor=2)) for ranks in (2, 4)))
    read, direct = family.at(8), traced(Mesh("fsdp", 8, tensor=2))
    for category in ("weights", "gradients", "optimizer"):  # rows of a 96 wide model are padded twice
        assert read.bytes_of(category) == pytest.approx(direct.bytes_of(category), rel=0.01)


def test_a_model_is_traced_by_its_own_plan_under_autocast() -> None:
    spec = Spec.load({"model": {"config": TINY}, "data": {"sequence_length": 32}, "hardware": {"gpu": "h200-sxm"}})
    knobs = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0), Mesh("none", tensor=2))
    found = traffic(trace(spec.model, spec.data, knobs, 2), "micro_step")
    tokens, width, words = 2 * 32, 96, 1003
    # two layers: attention's and the block's output in bf16; heads' norms, queries and keys, add their gradients up
    assert found.count(("all_reduce", "tensor", tokens * width * 2)) == 4
    assert found.count(("all_reduce", "tensor", 24 * 4)) == 4
    assert ("all_gather", "tensor", tokens * 2 * -(-words // 2) * 2) in found  # logits


def test_a_layer_waits_for_what_the_ranks_add_up() -> None:
    events = traced(Mesh("none", tensor=2)).segments["micro_step"]
    sent = len(traffic(traced(Mesh("none", tensor=2)), "micro_step"))
    assert sent > 0
    assert (events.codes == WAIT).sum() == sent  # each before the next, as a layer's output is the next one's input


def test_fp32_copies_of_fp16_weights_are_of_the_part_that_lies_here() -> None:
    cut_in_two = traced(Mesh("none", tensor=2), "bf16")
    kept = zero.whole(cut_in_two)
    stepped = [spec.elements for index in kept.calls_in("optimizer") for spec in kept.calls[index].tensors]
    assert max(stepped) == cut_in_two.bytes_of("weights") // 2  # elements of two bytes
