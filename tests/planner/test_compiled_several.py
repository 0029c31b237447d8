"""Compiled over several GPUs: DDP's graphs end at its buckets, FSDP2's are its blocks, and what is left eager is so."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from catalog.errors import RigplanError
from planner import estimate
from planner.cache import TraceKnobs, Workloads
from planner.collectives import Mesh, is_collective, traffic
from planner.evaluate import not_possible
from planner.host_units import part_share
from planner.machine import resolve
from planner.memory import Scratch, Timeline, replay
from planner.passes import ddp
from planner.passes.table import after_trace
from planner.shard_family import ShardFamily
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy
from planner.trace import trace
from planner.workload import BY_PART, CALL, COMPILED, GRADIENT, Workload
from tests.planner.sharded_model import TINY, Small

MIB = 1 << 20
LAYERS = 2
SHALLOW = {**TINY, "num_hidden_layers": 1}
# Wide enough for a layer to fill a bucket: 4 x 640 x 640 + 3 x 640 x 2560 weights of 4 bytes are 25 MiB.
WIDE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 640, "intermediate_size": 2560, "num_attention_heads": 8,
    "num_key_value_heads": 8, "num_hidden_layers": LAYERS, "vocab_size": 1024, "max_position_embeddings": 64,
}  # fmt: skip


def spec(config: dict[str, Any], count: int = 2, **training: Any) -> Spec:
    return Spec.load(
        {
            "model": {"config": config, "task": "causal-lm"},
            "data": {"sequence_length": 64},
            "training": {"micro_batch": 2, "compile": True, **training},
            "hardware": {"gpu": "h200-sxm", "count": count},
        }
    )


def workload(config: dict[str, Any], count: int = 2, **knobs: Any) -> Workload:
    asked, strategy = spec(config, count), Strategy(**{"compile": True, "micro_batch": 2, **knobs})
    deciding = TraceKnobs.of(strategy, (9, 0), HardwareChoice("h200-sxm", count))
    return Workloads(asked.model, asked.data).at(deciding, 2)  # kept: answers below are made of the same traces


def played(one: Workload) -> Timeline:
    return replay(one, Scratch((), lambda call: ()))


def programs(one: Workload) -> int:
    events = one.segments["micro_step"]
    return int(((events.codes == COMPILED) & (events.values == BY_PART)).sum())


@pytest.fixture(scope="module")
def wrapper() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, when Inductor is first imported
        return importlib.import_module("planner.wrappers.compiled")


@pytest.fixture(scope="module")
def replica() -> Workload:
    return workload(WIDE)


@pytest.fixture(scope="module")
def shards() -> dict[int, Workload]:
    return {ranks: workload(TINY, ranks, sharding="fsdp") for ranks in (2, 4, 8)}


# -- DDP


def test_a_replicas_graph_is_cut_where_buckets_are_full(replica: Workload) -> None:
    """A bucket of 1 MiB, then of 25: the head alone, the weights of each layer, and the embedding that is left."""
    assert replica.compiled_graphs == 1 + LAYERS + 1
    assert programs(replica) == 2 * replica.compiled_graphs


def test_a_bucket_is_reduced_while_the_backward_of_earlier_layers_is_still_to_come(replica: Workload) -> None:
    both = ddp.apply(replica, 2)
    events = both.segments["last_micro_step"]
    calls = events.codes == CALL
    sent = [at for at in calls.nonzero()[0] if is_collective(both.calls[events.values[at]])]
    last = ((events.codes == COMPILED) & (events.values == BY_PART)).nonzero()[0][-1]
    assert sum(at < last for at in sent) == len(sent) - 1 >= LAYERS - 1


def test_gradients_arrive_when_their_part_of_the_backward_is_over(replica: Workload) -> None:
    events = replica.segments["micro_step"]
    ends = ((events.codes == COMPILED) & (events.values == 0)).nonzero()[0]
    for at in (events.codes == GRADIENT).nonzero()[0]:
        between = events.codes[ends[ends < at][-1] : at]
        assert not (between == COMPILED)[1:].any()


@contextmanager
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


ORDERS: dict[str, Callable[[nn.Module, Any], nn.Module]] = {
    "DDP of a compiled module, as nanoGPT": lambda module, compile: DistributedDataParallel(compile(module)),
    "a compiled DDP, as accelerate": lambda module, compile: compile(DistributedDataParallel(module)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ORDERS)
def test_real_torch_cuts_at_the_same_places_whichever_is_wrapped_first(order: str, wrapper: ModuleType) -> None:
    def parts(wrapped: bool) -> list[int]:
        found: list[int] = []

        def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
            found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
            return graph.forward

        torch._dynamo.reset()
        module = Small(width=512, inner=8192, words=256)
        words = torch.zeros(1, 4, dtype=torch.int64)
        if wrapped:
            with group_of_one():
                ORDERS[order](module, lambda one: torch.compile(one, backend=backend))(words)
        else:
            torch.compile(module, backend=wrapper.at_buckets(backend))(words)
        return found

    assert len(parts(True)) > 2
    assert parts(True) == parts(False)


# -- FSDP2


def test_blocks_are_graphs_with_the_loss_and_share_their_code(
    monkeypatch: pytest.MonkeyPatch, wrapper: ModuleType
) -> None:
    lowered: list[int] = []
    lower = wrapper.lower
    monkeypatch.setattr(wrapper, "lower", lambda *given: (lowered.append(1), lower(*given))[1])
    asked = spec({**TINY, "num_hidden_layers": 10})  # more than dynamo compiles one function for
    sharded = Strategy(compile=True, micro_batch=2, sharding="fsdp")
    deep = trace(asked.model, asked.data, TraceKnobs.of(sharded, (9, 0), HardwareChoice("h200-sxm", 2)), 2)
    assert deep.compiled_graphs == 10 + 1
    assert len(lowered) == 6  # a block and the loss: forward, backward, and the forward of an evaluation


def test_what_is_gathered_and_reduced_is_what_it_is_uncompiled(shards: dict[int, Workload]) -> None:
    plain = workload(TINY, 2, sharding="fsdp", compile=False)
    assert traffic(shards[2], "micro_step") == traffic(plain, "micro_step")
    for category in ("weights", "optimizer"):
        assert shards[2].bytes_of(category) == plain.bytes_of(category)


def test_a_compiled_block_keeps_less_for_its_backward(shards: dict[int, Workload]) -> None:
    plain = workload(TINY, 2, sharding="fsdp", compile=False)
    assert played(shards[2]).peaks["backward"] < played(plain).peaks["backward"]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_sizes_over_any_number_of_ranks_are_read_off_two_traces(shards: dict[int, Workload], ranks: int) -> None:
    read = ShardFamily(shards[2], shards[4]).at(ranks)
    direct = shards[ranks]
    assert read.bytes_of("weights") == direct.bytes_of("weights")
    for category in ("gradients", "optimizer"):
        assert read.bytes_of(category) == pytest.approx(direct.bytes_of(category), rel=0.005)
    assert played(read).peak_allocated_bytes == pytest.approx(played(direct).peak_allocated_bytes, rel=0.005)
    assert [row[:2] for row in traffic(read, "micro_step")] == [row[:2] for row in traffic(direct, "micro_step")]
    fused = [[call for call in one.calls if call.name == "rigplan.fused.default"] for one in (read, direct)]
    assert fused[0] == fused[1]


@pytest.mark.slow
def test_a_hybrid_mesh_and_kept_weights_compile_too(shards: dict[int, Workload]) -> None:
    kept = workload(TINY, 2, sharding="fsdp-grad-op")
    assert len(traffic(kept, "micro_step")) < len(traffic(shards[2], "micro_step"))
    asked = spec(TINY)
    knobs = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0), Mesh("hsdp", 2, 2), True)
    hybrid = trace(asked.model, asked.data, knobs, 2)
    assert programs(hybrid) == programs(shards[2])
    assert {group for _, group, _ in traffic(hybrid, "micro_step")} == {"shard", "replicate"}


def test_a_checkpoint_is_compiled_with_its_block(shards: dict[int, Workload]) -> None:
    full = workload(TINY, 2, sharding="fsdp", checkpointing="full")
    assert full.compiled_graphs == shards[2].compiled_graphs
    assert programs(full) == programs(shards[2])  # nothing runs forward twice: a block's backward has both
    products = [sum(call.name == "mm.default" for call in calls_of(one)) for one in (full, shards[2])]
    assert products[0] > products[1]


def calls_of(one: Workload) -> list[Any]:
    return [one.calls[index] for index in one.calls_in("micro_step")]


def test_a_module_without_blocks_is_refused_with_what_to_do(tmp_path: Any) -> None:
    (tmp_path / "plain.py").write_text(
        "import torch\n"
        "class Plain(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(8, 8)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x).sum()\n"
        "def make(batch_size):\n"
        "    return Plain(), {'x': torch.randn(batch_size, 8)}\n"
    )
    asked = {"model": {"module": f"{tmp_path}/plain.py:make"}, "hardware": {"gpu": "h200-sxm", "count": 2}}
    with pytest.raises(RigplanError, match="the module has none; use compile: false, or sharding: none"):
        estimate({**asked, "training": {"micro_batch": 1, "sharding": "fsdp", "compile": True}})


# -- ZeRO, the fused loss, and answers


@pytest.mark.slow
def test_stages_1_and_2_of_zero_step_one_graph() -> None:
    strategy = Strategy(compile=True, micro_batch=2, sharding="zero2")
    hardware = HardwareChoice("h200-sxm", 4)
    one = workload(SHALLOW, 4, sharding="zero2")
    assert one.compiled_graphs == 1
    kinds = [kind for kind, _, _ in traffic(after_trace(one, strategy, hardware), "micro_step")]
    assert kinds == ["reduce_scatter"]


@pytest.mark.parametrize(
    ("sharding", "config", "graphs"),
    [pytest.param("none", SHALLOW, 1, marks=pytest.mark.slow), ("fsdp", TINY, TINY["num_hidden_layers"])],
)
def test_a_fused_loss_stays_eager_and_the_rest_is_compiled(sharding: str, config: dict[str, Any], graphs: int) -> None:
    fused = workload(config, 2, sharding=sharding, loss="fused-linear")
    names = {call.name for call in calls_of(fused)}
    assert {"rigplan.cross_entropy_.default", "rigplan.fused.default"} <= names
    assert fused.compiled_graphs == graphs


def test_an_answer_says_where_graphs_end() -> None:
    told = estimate(spec(TINY, sharding="fsdp"))
    assert any("of each repeated block and of a loss function" in line for line in told.assumptions)
    told = estimate(spec(WIDE))
    assert any("cut at DDP's buckets" in line for line in told.assumptions)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [({"sharding": "zero3"}, "hooks break the graphs"), ({"tensor_parallel": 2}, "tensor_parallel")],
)
def test_what_is_not_modelled_is_refused_with_the_reason(knobs: dict[str, Any], reason: str) -> None:
    asked = Strategy(compile=True, micro_batch=1, **knobs)
    assert reason in (not_possible(asked, resolve(HardwareChoice("h200-sxm", 2))) or "")


def test_entering_parts_takes_little_more_than_entering_the_whole() -> None:
    assert [round(count * part_share(count), 2) for count in (1, 12, 48)] == [1.05, 1.6, 3.4]
