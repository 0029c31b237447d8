"""FSDP2: torch's own `fully_shard` on fake tensors, as one rank of a fake process group sees it.

Use `process_group`, put fake tensors into the module, then `shard` it; trace it under `ShardedRecorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from catalog.errors import RigplanError
from planner.collectives import Mesh
from planner.wrappers import checkpointing

# The dtype of gathered weights and of computation. Gradients are reduced in fp32, weights and states stay in fp32.
LOW = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


@contextmanager
def process_group(mesh: Mesh, device: str = "cpu") -> Iterator[DeviceMesh]:
    """The device mesh of rank 0 among `mesh.ranks`; nothing is sent. Raises RigplanError where a group exists
    already."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RigplanError(
            "a sharded trace needs a process group of its own, and this process has one; trace before making it"
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.ranks)
    try:
        sizes = {"replicate": mesh.replicate, "shard": mesh.shard, "tensor": mesh.tensor}
        kept = {name: size for name, size in sizes.items() if size > 1} or {"shard": 1}
        yield init_device_mesh(device, tuple(kept.values()), mesh_dim_names=tuple(kept))
    finally:
        dist.destroy_process_group()


def group_names(devices: DeviceMesh) -> dict[str, str]:
    """torch's name of each group to ours."""
    return {devices.get_group(name).group_name: name for name in devices.mesh_dim_names or ()}


def shard(
    module: torch.nn.Module, devices: DeviceMesh, sharding: str, precision: str, offload: OffloadPolicy | None = None
) -> None:
    """`fully_shard` each repeated block and the root, in place; the same call for a trace and for a real run.

    `fsdp` and `hsdp` free a block's weights after its forward, `fsdp-grad-op` keeps them until its backward.
    Mixed precision is FSDP's own policy, so no autocast is wanted around the forward.
    """
    names = tuple(name for name in devices.mesh_dim_names or () if name in ("replicate", "shard"))
    over = part_of(devices, names) if names else devices
    policy = MixedPrecisionPolicy(
        param_dtype=LOW.get(precision), reduce_dtype=torch.float32 if precision in LOW else None
    )
    offload = offload or OffloadPolicy()
    keep = sharding == "fsdp-grad-op"
    with RealStaysReal():
        for block in units(module):
            fully_shard(block, mesh=over, reshard_after_forward=not keep, mp_policy=policy, offload_policy=offload)
        # the root's weights are wanted first in backward, so it keeps them in any case
        fully_shard(module, mesh=over, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)


def compile_units(module: torch.nn.Module, compiled: Callable[[Any], Any]) -> None:
    """Make graphs of a sharded module, in place, by `compiled`, torch.compile or alike: each block that is sharded on
    its own and, where the model of transformers has one, its loss. Embeddings, the last norm and the head run as they
    are written, and so do the gathers between blocks; as torchtitan and torchtune do it. Blocks alike share their code.

    Call it after `shard`, with checkpoints inside of the blocks. Raises RigplanError where there are no such blocks.
    """
    blocks = units(module)
    if not blocks:
        raise RigplanError(
            "compile: true with sharded weights makes a graph of each repeated block, and the module has none; use "
            "compile: false, or sharding: none"
        )
    for block in blocks:
        block.forward = compiled(block.forward)
    whole: Any = module
    if hasattr(whole, "get_base_model"):  # of an adapter
        whole = whole.get_base_model()
    if hasattr(type(whole), "loss_function"):
        whole.loss_function = compiled(whole.loss_function)


def part_of(devices: DeviceMesh, names: tuple[str, ...]) -> DeviceMesh:
    """The sub-mesh of some dimensions."""
    with RealStaysReal():
        return devices if names == devices.mesh_dim_names else devices[names]


class RealStaysReal(TorchDispatchMode):
    """Meshes look ranks up in real tensors: inside, those are read for real, also within a fake mode."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if tensors and not any(isinstance(item, FakeTensor) for item in tensors):
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def units(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks that are sharded on their own: the repeated ones. What is in none of them is the root's."""
    return checkpointing.blocks(module)
