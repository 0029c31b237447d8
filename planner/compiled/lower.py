"""From one of AOTAutograd's graphs to the host program that Inductor writes for it, with the calls of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import compile_fx
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import shape_env_from_inputs
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from planner.call import Call
from planner.compiled.fused import fused_call
from planner.compiled.gpu import DEVICE, inductor_for


@dataclass(frozen=True, slots=True)
class Program:
    """`source` is Python with a function `call(args)`; `kernels` are the names it launches, `constants` its tensors."""

    source: str
    kernels: dict[str, Call]
    constants: dict[str, torch.Tensor]


def lower(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], capability: tuple[int, int], options: dict[str, Any]
) -> Program:
    """Inductor's passes, lowering, scheduling and memory planning, as compile_fx's own inner compile runs them."""
    kernels: dict[str, Call] = {}

    def describe(schedule: Any, kernel: Any) -> str:
        name = f"fused_{len(kernels)}"
        kernels[name] = fused_call(schedule, kernel)
        return name

    mode = next(item.fake_mode for item in inputs if isinstance(item, FakeTensor))
    inference = bool(options.get("is_inference", False))
    below_autograd = torch._C._AutoDispatchBelowAutograd()  # whose kernels want a real device under a tensor
    with inductor_for(capability, describe), torch.no_grad(), _disable_current_modes(), below_autograd:
        view_to_reshape(graph)
        compile_fx.fake_tensor_prop(graph, inputs)
        compile_fx._recursive_record_original_output_strides(graph)
        with V.set_fake_mode(mode):
            compile_fx._recursive_post_grad_passes(graph, is_inference=inference)
        inputs = [_moved(value, mode) for value in inputs]  # not before: some of torch's own functions ask the device
        _move(graph, mode)
        with V.set_fake_mode(mode), compile_fx.maybe_disable_comprehensive_padding(inputs):
            lowering = GraphLowering(
                graph,
                example_inputs=inputs,
                shape_env=shape_env_from_inputs(inputs),
                graph_id=options.get("graph_id"),
                is_backward=bool(options.get("is_backward", False)),
                is_inference=inference,
                **{key: options[key] for key in ("get_decomp_fn",) if key in options},
            )
            with V.set_debug_handler(DebugContext()), V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
                lowering.run(*inputs)
                source = lowering.codegen()[0].value
    return Program(source, kernels, dict(lowering.constants))


def _move(graph: torch.fx.GraphModule, mode: Any) -> None:
    """The graph as if it had been traced on a GPU: fake tensors that say so, and factories that make such."""
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": DEVICE}
        node.args = torch.fx.node.map_aggregate(
            node.args, lambda item: DEVICE if isinstance(item, torch.device) else item
        )
        if "val" in node.meta:
            node.meta["val"] = torch.utils._pytree.tree_map(lambda item: _moved(item, mode), node.meta["val"])
    graph.recompile()


def _moved(value: Any, mode: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    with unset_fake_temporarily():
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, empty, DEVICE)
