"""Tensor parallel: the model's own plan (transformers' `tp_plan`) or the spec's, applied by torch's DTensor.

A plan maps module names, with `*` for a number, to how the weight is cut (see STYLES): `colwise` by output, `rowwise`
by input (its outputs are added up by an all-reduce); `..._gather_output` gathers the whole output, `..._split_input`
takes the whole input; an embedding is cut by its words. `replicated_with_grad_allreduce` keeps a weight whole and adds
its gradient up. transformers (distributed/tensor_parallel.py) does the same, by DTensor too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from catalog.errors import RigplanError
from planner.wrappers.fsdp import RealStaysReal

# A plan's word to torch's style; words of other versions of transformers stand beside today's.
STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "local_colwise": ColwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "local_rowwise": RowwiseParallel,
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}
SUMMED = "replicated_with_grad_allreduce"
WHOLE = ("replicate",)
HEADS = ("num_attention_heads", "num_key_value_heads")
TIED = (
    "tensor parallel: the output layer shares its weight with an embedding that the plan leaves whole, so it is whole"
)


def plan_of(module: torch.nn.Module) -> dict[str, str]:
    """The plan that the model brings. Raises RigplanError when it brings none."""
    plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None)
    if not plan:
        raise RigplanError(
            f"{type(module).__name__} has no tensor-parallel plan; give model.tensor_parallel_plan, or use "
            "tensor_parallel: 1"
        )
    return dict(plan)


def apply(module: torch.nn.Module, devices: DeviceMesh, plan: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Cut the module's layers over `devices` (one dimension, "tensor"), in place; returns what is assumed.

    Raises RigplanError for a plan with a style that is not one of those above, or heads that do not divide.
    """
    plan = plan_of(module) if plan is None else plan
    ranks = devices.size()
    _heads_divide(module, ranks)
    chosen = dict(_chosen(module, plan))
    styles = {path: STYLES[name]() for path, name in chosen.items() if name in STYLES}
    whole = _shared_with_whole(module, styles)
    for path in whole:
        del styles[path]
    if not styles:
        raise RigplanError("tensor_parallel: the plan matches no layer of the model; use tensor_parallel: 1")
    shared = _shared(module, styles)
    with RealStaysReal():
        parallelize_module(module, devices, styles)
    for first, second in shared:
        _tie(module.get_submodule(first), module.get_submodule(second), second)
    for path, name in chosen.items():
        if name == SUMMED:
            _sum_gradients(module.get_submodule(path), devices.get_group())
    return (TIED,) if whole else ()


def _heads_divide(module: torch.nn.Module, ranks: int) -> None:
    config = getattr(module, "config", None)
    for name in HEADS:
        heads = getattr(config, name, None)
        if heads and heads % ranks:
            raise RigplanError(f"{name} {heads} does not divide by tensor_parallel {ranks}; use a divisor of it")


def _chosen(module: torch.nn.Module, plan: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(path, style) of the modules that the plan names."""
    patterns = [(re.compile(re.escape(pattern).replace(r"\*", r"\d+")), name) for pattern, name in plan.items()]

    def style(path: str) -> str | None:
        return next((name for pattern, name in patterns if pattern.fullmatch(path) and name not in WHOLE), None)

    for path, _ in module.named_parameters():
        if (name := style(path)) is not None:
            raise RigplanError(f"tensor_parallel: {path} is cut as {name}, not modelled; use tensor_parallel: 1")
    for path, part in module.named_modules():
        if (name := style(path)) is None:
            continue
        if name not in STYLES and name != SUMMED:
            raise RigplanError(f"tensor_parallel: the style {name} of {path} is not modelled; use tensor_parallel: 1")
        if name in STYLES and not isinstance(part, torch.nn.Linear | torch.nn.Embedding):
            raise RigplanError(
                f"tensor_parallel: {path} is a {type(part).__name__}, and only linear layers and embeddings can be "
                "cut; use tensor_parallel: 1"
            )
        yield path, name


def _shared_with_whole(module: torch.nn.Module, styles: Mapping[str, ParallelStyle]) -> list[str]:
    """Layers to be cut whose weight is also a weight of one that is not."""
    kept = {
        id(value)
        for path, part in module.named_modules()
        if path not in styles
        for value in part.parameters(recurse=False)
    }
    return [path for path in styles if id(module.get_submodule(path).weight) in kept]


def _shared(module: torch.nn.Module, styles: Mapping[str, ParallelStyle]) -> list[tuple[str, str]]:
    """Pairs of layers to be cut that have one weight: the first that has it, and another."""
    first: dict[int, str] = {}
    pairs = [(first.setdefault(id(module.get_submodule(path).weight), path), path) for path in styles]
    return [(one, other) for one, other in pairs if one != other]


def _tie(one: torch.nn.Module, other: torch.nn.Module, path: str) -> None:
    """Cutting has made two weights of one: make them one again, which they can be when they are cut alike."""
    if one.weight.placements != other.weight.placements:  # type: ignore[union-attr]
        raise RigplanError(
            f"tensor_parallel: {path} shares its weight with a layer that is cut another way; use tensor_parallel: 1"
        )
    other.weight = one.weight


def _sum_gradients(part: torch.nn.Module, group: dist.ProcessGroup) -> None:
    """The weight is whole, but each rank sees its own heads only."""

    def add_up(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)

    for parameter in part.parameters(recurse=False):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(add_up)
