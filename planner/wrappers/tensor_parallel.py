"""Tensor parallel: the model's own plan (transformers' `tp_plan`) or a given one, applied by torch's DTensor.

A plan maps module names, with `*` for a number, to how the weight is cut: `colwise` by output, `rowwise` by input (its
outputs are added up by an all-reduce), `colwise_gather_output` by output with the whole output gathered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from catalog.errors import RigplanError
from planner.wrappers.fsdp import RealStaysReal


def _style(name: str) -> ParallelStyle | None:
    if name in ("colwise", "local_colwise"):
        return ColwiseParallel()
    if name in ("rowwise", "local_rowwise"):
        return RowwiseParallel()
    if name in ("colwise_rep", "colwise_gather_output"):
        return ColwiseParallel(output_layouts=Replicate())
    return None


def plan_of(module: torch.nn.Module) -> dict[str, str]:
    """The plan that the model brings. Raises RigplanError when it brings none."""
    plan = getattr(module, "tp_plan", None) or getattr(module, "_tp_plan", None)
    if not plan:
        raise RigplanError(f"{type(module).__name__} has no tensor-parallel plan; use tensor_parallel: 1")
    return dict(plan)


def apply(module: torch.nn.Module, devices: DeviceMesh, plan: Mapping[str, str] | None = None) -> None:
    """Cut the module's linear layers over `devices` (one dimension, "tensor"), in place.

    Raises RigplanError for a plan with a style that is not one of those above, or heads that do not divide.
    """
    plan = plan_of(module) if plan is None else plan
    ranks = devices.size()
    config = getattr(module, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if heads and heads % ranks:
            raise RigplanError(f"{name} {heads} does not divide by tensor_parallel {ranks}; use a divisor of it")
    styles: dict[str, ParallelStyle] = {}
    for path, part in module.named_modules():
        for pattern, name in plan.items():
            if not re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), path) or not isinstance(
                part, torch.nn.Linear
            ):
                continue
            style = _style(name)
            if style is None:
                raise RigplanError(
                    f"tensor_parallel: the style {name} of {path} is not modelled; use tensor_parallel: 1"
                )
            styles[path] = style
    if not styles:
        raise RigplanError("tensor_parallel: the plan matches no linear layer of the model; use tensor_parallel: 1")
    with RealStaysReal():
        parallelize_module(module, devices, styles)
