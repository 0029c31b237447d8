"""A small model whose sizes do not divide evenly, and its trace on one rank of many."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.cache import TraceKnobs
from planner.collectives import Mesh
from planner.recorder import DTYPES, Recorder
from planner.spec import Spec
from planner.strategy import HardwareChoice, Strategy
from planner.trace import trace
from planner.workload import Parameter, Workload
from planner.wrappers import fsdp, tensor_parallel
from planner.wrappers.sharded_recorder import ShardedRecorder

PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise_gather_output"}

# A language model of transformers: grouped heads, norms on queries and keys, one weight for embedding and head
TINY = {
    "model_type": "qwen3", "vocab_size": 1003, "hidden_size": 96, "intermediate_size": 250, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True,
}  # fmt: skip


# The same with adapters
ADAPTED = {
    "model": {
        "config": TINY,
        "task": "causal-lm",
        "lora": {"r": 8, "alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    },
    "data": {"sequence_length": 32},
    "hardware": {"gpu": "h200-sxm", "count": 2},
}


class Block(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Small(nn.Module):
    """An embedding, three blocks and a head: 1003 words, width 96, 250 inside a block."""

    def __init__(self, width: int = 96, inner: int = 250, words: int = 1003, depth: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def make(batch_size: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """`Small` as a module factory."""
    return Small(), {"words": torch.randint(0, 1003, (batch_size, 32))}


def compiled(sharding: str, ranks: int = 2) -> Workload:
    """One step of `Small` under torch.compile on one of `ranks`, as an answer is made of it."""
    asked = Spec.load({"model": {"module": f"{__file__}:make"}, "hardware": {"gpu": "h200-sxm", "count": ranks}})
    strategy = Strategy(precision="fp32", sharding=sharding, compile=True, max_grad_norm=None, micro_batch=1)
    return trace(asked.model, asked.data, TraceKnobs.of(strategy, (9, 0), HardwareChoice("h200-sxm", ranks)), 1)


def traced(mesh: Mesh | None = None, precision: str = "fp32", tokens: int = 32, **sizes: int) -> Workload:
    """One step of `Small` on one rank of `mesh`, in the order in which planner.trace does it."""
    with torch.device("meta"):
        module = Small(**sizes)
    if precision == "bf16":
        module = module.to(torch.bfloat16)
    with ExitStack() as stack:
        devices = stack.enter_context(fsdp.process_group(mesh)) if mesh else None
        recorder = ShardedRecorder(fsdp.group_names(devices)) if devices else Recorder()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        module.to_empty(device="cpu")
        if devices is not None and mesh is not None:
            if mesh.tensor > 1:
                tensor_parallel.apply(module, fsdp.part_of(devices, ("tensor",)), PLAN)
            if mesh.sharding != "none":
                fsdp.shard(module, devices, mesh.sharding, precision)
        stack.enter_context(recorder)
        if isinstance(recorder, ShardedRecorder):
            stack.enter_context(recorder.watching())
        named = list(module.named_parameters())
        recorder.start("weights")
        for index, (_, parameter) in enumerate(named):
            recorder.block_of(parameter)
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: recorder.gradient_ready(index))  # type: ignore[misc]
        segments = {"load": recorder.segment()}
        recorder.start("inputs")
        words = torch.empty(1, tokens, dtype=torch.int64)
        recorder.block_of(words)
        recorder.kind = "activations"
        recorder.phase("forward")
        loss = module(words)
        recorder.phase("backward")
        torch.autograd.backward(loss)
        del loss
        segments["micro_step"] = recorder.segment()
        parameters = tuple(_parameter(name, value, recorder) for name, value in named)
        optimizer = torch.optim.AdamW(module.parameters(), foreach=mesh is None or mesh.tensor == 1)
        for name in ("optimizer_first", "optimizer"):
            recorder.start("optimizer")
            recorder.phase("optimizer")
            optimizer.step()
            segments[name] = recorder.segment()
        return Workload(
            1, tuple(recorder.calls), segments, np.array(recorder.block_bytes), np.array(recorder.categories),
            parameters,
            tokens, "small", "module",
        )  # fmt: skip


def _parameter(name: str, value: nn.Parameter, recorder: Recorder) -> Parameter:
    assert value.grad is not None
    gradient = recorder.block_of(value.grad)
    recorder.recategorise(gradient, "gradients")
    return Parameter(name, DTYPES[value.dtype], tuple(value.shape), True, recorder.block_of(value), gradient)
