"""Weights, gradients and optimizer states of a rank are torch's own, to 0.2 %: against two real ranks over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from planner.collectives import Mesh
from planner.passes import ddp, zero
from planner.passes.partition import state_bytes
from planner.workload import Workload
from tests.planner.sharded_model import traced

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def torch_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes by sharding and category, of the rank that holds the most."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "gloo_rank.py"), str(rank), "2", str(store)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs[0][1][-2000:]
    found = [json.loads(out.splitlines()[-1]) for out, _ in outputs]
    return {way: {name: max(one[way][name] for one in found) for name in found[0][way]} for way in found[0]}


def rank_bytes(workload: Workload) -> dict[str, int]:
    gradients = {parameter.gradient_block for parameter in workload.parameters}
    return {
        "weights": workload.bytes_of("weights"),
        "gradients": int(workload.block_bytes[np.array(sorted(gradients))].sum()),  # type: ignore[type-var]
        "optimizer": state_bytes(workload),
    }


WAYS = {
    "none": lambda: ddp.apply(traced(), 2),
    "zero1": lambda: zero.zero_redundancy(traced(), 2),
    "fsdp": lambda: traced(Mesh("fsdp", 2)),
    "tensor": lambda: traced(Mesh("none", tensor=2)),
    "fsdp-grad-op": lambda: traced(Mesh("fsdp-grad-op", 2)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_rank_holds_between_steps_is_what_torch_holds(torch_says: dict[str, dict[str, int]], way: str) -> None:
    ours = rank_bytes(WAYS[way]())
    assert torch_says[way]["weights"] > 400_000
    for name, size in torch_says[way].items():
        assert ours[name] == pytest.approx(size, rel=0.002), name
