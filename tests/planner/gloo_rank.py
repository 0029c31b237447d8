"""One of two real gloo ranks: trains a small model once each way and prints what lies on it. Run by
test_sharding_truth."""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from planner.wrappers import fsdp, tensor_parallel
from tests.planner.sharded_model import PLAN, Small


def size(tensors: object) -> int:
    """Bytes of the distinct storages of tensors, of what lies here."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]
    return sum(
        {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in local if item.numel()}.values()
    )


def report(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, states: torch.optim.Optimizer | None = None
) -> dict[str, int]:
    torch.manual_seed(0)
    for _ in range(2):
        model(torch.randint(0, 1003, (1, 32))).backward()
        optimizer.step()
    held = [
        value
        for state in (states or optimizer).state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {
        "weights": size(model.parameters()),
        "gradients": size([parameter.grad for parameter in model.parameters() if parameter.grad is not None]),
        "optimizer": size(held),
    }


def main(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    found = {}
    replica = DistributedDataParallel(Small())
    found["none"] = report(replica, torch.optim.AdamW(replica.parameters()))
    replica = DistributedDataParallel(Small())
    sharded = ZeroRedundancyOptimizer(replica.parameters(), optimizer_class=torch.optim.AdamW)
    found["zero1"] = report(replica, sharded, sharded.optim)
    for sharding in ("fsdp", "fsdp-grad-op"):
        model = Small()
        fsdp.shard(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)), sharding, "fp32")
        found[sharding] = report(model, torch.optim.AdamW(model.parameters()))
    model = Small()
    tensor_parallel.apply(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",)), PLAN)
    found["tensor"] = report(model, torch.optim.AdamW(model.parameters(), foreach=False))
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
