"""torch.compile, for a GPU that need not be there: dynamo and AOTAutograd as they are, Inductor up to its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import trace_rules
from torch._inductor import compile_fx

from planner.compiled.gpu import inductor_for
from planner.compiled.lower import lower
from planner.compiled.program import runner
from planner.recorder import Recorder

# Files whose functions torch calls while compiled code runs; dynamo is not to look into them.
NOT_COMPILED = (
    "planner.recorder", "planner.fake_results", "planner.module_path", "planner.semantics", "planner.attention",
    "planner.fused_ops", "planner.trace", "planner.compiled.program",
)  # fmt: skip


def apply(
    module: torch.nn.Module, capability: tuple[int, int], recorder: Recorder, failed: Callable[[Exception], None]
) -> Any:
    """The module compiled; graph breaks fall where dynamo puts them, and what lies between runs as it is written.

    `failed` hears of a graph that could not be lowered: dynamo itself would go on with smaller ones.
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

    # A training run has one shape; dynamo would take that of a second trace for one that changes.
    return torch.compile(module, backend=backend, dynamic=False)
