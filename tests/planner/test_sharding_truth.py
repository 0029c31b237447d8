"""Weights, gradients and optimizer states of a rank are torch's own, to 0.2 %: against real ranks over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from catalog.errors import RigplanError
from planner.cache import TraceKnobs
from planner.collectives import Mesh
from planner.passes import ddp, zero_redundancy
from planner.passes.partition import state_bytes
from planner.spec import Spec
from planner.trace import trace
from planner.workload import Workload
from tests.planner.sharded_model import ADAPTED, TINY, compiled, traced

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def torch_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes by sharding and category, of the rank that holds the most."""
    return of_real_ranks("two", 2, tmp_path_factory)


def of_real_ranks(ways: str, count: int, folder: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    store = folder.mktemp("gloo") / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "gloo_rank.py"), str(rank), str(count), str(store), ways],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(count)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * count, outputs[0][1][-2000:]
    found = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    return {way: {name: max(one[way][name] for one in found) for name in found[0][way]} for way in found[0]}


def rank_bytes(workload: Workload) -> dict[str, int]:
    gradients = {block for parameter in workload.parameters if (block := parameter.gradient_block) is not None}
    return {
        "weights": workload.bytes_of("weights"),
        "gradients": int(workload.block_bytes[np.array(sorted(gradients))].sum()),  # type: ignore[type-var]
        "optimizer": state_bytes(workload),
    }


def of_transformers(tensor: int) -> Workload:
    """The workload that an answer is made of, of a model with a plan of its own."""
    spec = Spec.load({"model": {"config": TINY}, "data": {"sequence_length": 32}, "hardware": {"gpu": "h200-sxm"}})
    mesh = Mesh("none", tensor=tensor)
    knobs = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0), mesh)
    return trace(spec.model, spec.data, knobs, 2)


WAYS = {
    "none": lambda: ddp.apply(traced(), 2),
    "zero1": lambda: zero_redundancy.apply(traced(), 2),
    "fsdp": lambda: traced(Mesh("fsdp", 2)),
    "tensor": lambda: traced(Mesh("none", tensor=2)),
    "fsdp-grad-op": lambda: traced(Mesh("fsdp-grad-op", 2)),
    "none compiled": lambda: ddp.apply(compiled("none"), 2),
    "fsdp compiled": lambda: compiled("fsdp"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_rank_holds_between_steps_is_what_torch_holds(torch_says: dict[str, dict[str, int]], way: str) -> None:
    agree(WAYS[way](), torch_says[way])


def agree(ours: Workload, torchs: dict[str, int]) -> None:
    assert torchs["weights"] > 200_000
    for name, size in torchs.items():
        assert rank_bytes(ours)[name] == pytest.approx(size, rel=0.002), name


@pytest.mark.slow
def test_a_layer_cut_twice_and_a_hybrid_mesh_are_torchs_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = of_real_ranks("four", 4, tmp_path_factory)
    agree(traced(Mesh("fsdp", 2, tensor=2)), found["fsdp and tensor"])
    agree(traced(Mesh("hsdp", shard=2, replicate=2)), found["hsdp"])


@pytest.mark.slow
def test_a_model_cut_by_its_own_plan_holds_what_torch_holds(tmp_path_factory: pytest.TempPathFactory) -> None:
    agree(of_transformers(2), of_real_ranks("transformers", 2, tmp_path_factory)["transformers"])


@pytest.mark.slow
def test_adapters_of_a_sharded_model_are_torchs(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("peft")
    found = of_real_ranks("adapters", 2, tmp_path_factory)
    spec = Spec.load(ADAPTED)
    for precision, held in found.items():
        mesh = Mesh("fsdp", 2)
        knobs = TraceKnobs(precision, "sdpa", "none", "adamw", "foreach", None, (9, 0), mesh)
        ours = trace(spec.model, spec.data, knobs, 2)
        agree(ours, held)


def test_a_plan_without_adapters_is_refused_with_what_to_do() -> None:
    pytest.importorskip("peft")
    spec = Spec.load(ADAPTED)
    knobs = TraceKnobs("bf16", "sdpa", "none", "adamw", "foreach", None, (9, 0), Mesh("none", tensor=2))
    with pytest.raises(RigplanError, match="no place for LoRA's adapters; use sharding: fsdp with tensor_parallel: 1"):
        trace(spec.model, spec.data, knobs, 2)
