"""torch.compile, for a GPU that need not be there: dynamo and AOTAutograd as they are, Inductor up to its kernels.

What of a module becomes graphs (cache.TraceKnobs.graphs): all of it; all of it, cut at DDP's buckets; or each repeated
block on its own, as FSDP2's hooks between blocks want it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._inductor import compile_fx

from planner.compiled.gpu import inductor_for
from planner.compiled.lower import lower
from planner.compiled.program import runner
from planner.passes.ddp import BUCKET_BYTES
from planner.recorder import Recorder
from planner.wrappers import fsdp

# Files whose functions torch calls while compiled code runs; dynamo is not to look into them. Nor into the fused loss:
# Liger's asks how many targets there are (`.item()`), at which dynamo leaves the whole of it to eager code.
NOT_COMPILED = (
    "planner.recorder", "planner.fake_results", "planner.module_path", "planner.semantics", "planner.attention",
    "planner.fused_ops", "planner.trace", "planner.compiled.program", "planner.wrappers.fused_loss",
)  # fmt: skip
Backend = Callable[..., Any]


def apply(
    module: torch.nn.Module,
    capability: tuple[int, int],
    recorder: Recorder,
    failed: Callable[[Exception], None],
    graphs: str = "whole",
) -> Any:
    """The module compiled; graph breaks fall where dynamo puts them, and what lies between runs as it is written.

    `failed` hears of a graph that could not be lowered: dynamo itself would go on with smaller ones. `graphs` is
    `whole`, `buckets` or `blocks`; with blocks it is the module itself whose blocks are compiled, in place. Raises
    RigplanError where there are none.
    """

    for name in NOT_COMPILED:
        trace_rules.add(name)
    torch._dynamo.reset()  # what was compiled for another trace counts towards dynamo's limit of recompiling

    def inner_compile(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        return runner(lower(graph, inputs, capability, options), recorder)

    def backend(graph: torch.fx.GraphModule, inputs: Any, **_: Any) -> Any:
        try:
            with inductor_for(capability):
                return compile_fx.compile_fx(graph, inputs, inner_compile=inner_compile)
        except Exception as error:
            failed(error)
            raise

    recorder.in_parts = graphs != "whole"
    chosen = at_buckets(backend) if graphs == "buckets" else backend

    def compiled(what: Any) -> Any:
        # A training run has one shape; dynamo would take that of a second trace for one that changes.
        return torch.compile(what, backend=chosen, dynamic=False)

    if graphs == "blocks":
        fsdp.compile_units(module, compiled)
        return module
    return compiled(module)


def at_buckets(backend: Backend) -> Backend:
    """The backend for graphs cut where DDP's buckets end, by torch's own DDPOptimizer: dynamo does so whenever a
    compiled module runs inside a DDP module, whichever of the two was wrapped first, so that gradients of a bucket
    are ready before the backward of all is over."""

    def split(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        try:
            return DDPOptimizer(BUCKET_BYTES, backend).compile_fn(graph, inputs, **options)
        except NotImplementedError:  # an older torch cuts no graph with checkpoints, and asks for optimize_ddp=False
            return backend(graph, inputs, **options)

    return split
