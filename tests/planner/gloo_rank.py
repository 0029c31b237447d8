"""One of two or four real gloo ranks: trains small models once each way and prints what lies on it. Run by
test_sharding_truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from planner import models
from planner.optimizers import AnyOptimizer, Several, build_optimizer, clip_gradients
from planner.spec import Spec
from planner.wrappers import fsdp, lora, tensor_parallel
from tests.planner.sharded_model import ADAPTED, PLAN, TINY, Small


def size(tensors: object) -> int:
    """Bytes of the distinct storages of tensors, of what lies here."""
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]  # type: ignore[attr-defined]
    return sum(
        {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in local if item.numel()}.values()
    )


def report(model: torch.nn.Module, optimizer: AnyOptimizer, *states: torch.optim.Optimizer) -> dict[str, int]:
    torch.manual_seed(0)
    for _ in range(2):
        model(torch.randint(0, 1003, (1, 32))).backward()
        optimizer.step()
    return held(model, states or (optimizer,))


def held(model: torch.nn.Module, optimizers: Sequence[AnyOptimizer]) -> dict[str, int]:
    states = [
        value
        for optimizer in optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    return {
        "weights": size(model.parameters()),
        "gradients": size([parameter.grad for parameter in model.parameters() if parameter.grad is not None]),
        "optimizer": size(states),
    }


def of_transformers(ranks: int) -> dict[str, dict[str, int]]:
    """A step of a language model cut by its own plan, mixed precision and clipping as in a training loop."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY))
    tensor_parallel.apply(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",)))
    optimizer = build_optimizer("adamw", "foreach", model)
    words = torch.randint(0, TINY["vocab_size"], (2, 32))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=words, labels=words).loss
    loss.backward()
    clip_gradients(list(model.parameters()), 1.0)
    optimizer.step()
    return {"transformers": held(model, optimizer.parts if isinstance(optimizer, Several) else (optimizer,))}


def of_two(ranks: int) -> dict[str, dict[str, int]]:
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
    compiled = partial(torch.compile, backend="aot_eager")  # AOTAutograd's graphs without Inductor's kernels
    replica = DistributedDataParallel(compiled(Small()))
    found["none compiled"] = report(replica, torch.optim.AdamW(replica.parameters()))
    model = Small()
    fsdp.shard(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)), "fsdp", "fp32")
    fsdp.compile_units(model, compiled)
    found["fsdp compiled"] = report(model, torch.optim.AdamW(model.parameters()))
    model = Small()
    tensor_parallel.apply(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("tensor",)), PLAN)
    found["tensor"] = report(model, torch.optim.AdamW(model.parameters(), foreach=False))
    return found


def of_four(_: int) -> dict[str, dict[str, int]]:
    found = {}
    devices = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    model = Small()
    tensor_parallel.apply(model, devices["tensor"], PLAN)
    fsdp.shard(model, devices, "fsdp", "fp32")
    found["fsdp and tensor"] = report(model, torch.optim.AdamW(model.parameters(), foreach=False))
    model = Small()
    fsdp.shard(model, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")), "hsdp", "fp32")
    found["hsdp"] = report(model, torch.optim.AdamW(model.parameters()))
    return found


def of_adapters(ranks: int) -> dict[str, dict[str, int]]:
    """A step of a language model with LoRA, sharded: frozen weights in bf16 beside adapters in fp32, or all in fp32."""
    found = {}
    for precision in ("bf16", "bf16-mixed"):
        spec = Spec.load(ADAPTED)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        built = models.build(spec.model, spec.data, device="cpu", dtype=dtype)
        assert spec.model.lora is not None
        model = lora.apply(built.module, spec.model.lora)
        fsdp.shard(model, init_device_mesh("cpu", (ranks,), mesh_dim_names=("shard",)), "fsdp", precision)
        words = torch.randint(0, TINY["vocab_size"], (2, 32))
        model(input_ids=words, labels=words).loss.backward()
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
        optimizer.step()
        found[precision] = held(model, (optimizer,))
    return found


WAYS = {"adapters": of_adapters, "two": of_two, "four": of_four, "transformers": of_transformers}


def main(rank: int, ranks: int, store: str, ways: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    print(json.dumps(WAYS[ways](ranks)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
