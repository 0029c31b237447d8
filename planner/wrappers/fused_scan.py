"""The scan of state-space models (Mamba, Jamba, Zamba, ...) by mamba_ssm's kernels instead of torch's loop.

transformers looks these functions up by name in each model's file and takes its own torch code where mamba_ssm is not
there; here they are put in that place for as long as a trace lasts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from catalog.errors import RigplanError
from planner.wrappers.chunk_scan import mamba2_chunk_scan, mamba2_split_conv1d_scan_combined
from planner.wrappers.scan_kernels import causal_conv1d_fn
from planner.wrappers.selective_scan import mamba_inner_fn, mamba_selective_scan

FUNCTIONS = (
    causal_conv1d_fn,
    mamba_selective_scan,
    mamba_inner_fn,
    mamba2_chunk_scan,
    mamba2_split_conv1d_scan_combined,
)

EAGER = (
    "the state-space scan runs as a loop, as in transformers without mamba_ssm: slow and large; model.scan: fused has "
    "its kernels"
)
FUSED = (
    "the state-space scan runs in mamba_ssm's and causal_conv1d's kernels (model.scan: fused); nobody has timed them, "
    "their time follows from what they move and compute"
)
# A model with one of them has a scan to fuse.
SCANS = (mamba_selective_scan.__name__, mamba2_chunk_scan.__name__)


def files(module: torch.nn.Module) -> list[str]:
    """The Python modules of the model's layers that hold a scan."""
    names = dict.fromkeys(type(layer).__module__ for layer in module.modules())
    return [name for name in names if any(hasattr(sys.modules.get(name), scan) for scan in SCANS)]


@contextmanager
def applied(module: torch.nn.Module, scan: str) -> Iterator[tuple[str, ...]]:
    """Inside, the scans of `module` are mamba_ssm's; with `eager` nothing changes. Yields what is assumed of them.
    Raises RigplanError where there is none to fuse."""
    found = files(module)
    if scan == "eager":
        yield (EAGER,) if found else ()
        return
    if not found:
        raise RigplanError("scan: fused is for models of transformers with a scan, such as Mamba; use scan: eager")
    replaced = [
        (sys.modules[name], function, getattr(sys.modules[name], function.__name__))
        for name in found
        for function in FUNCTIONS
        if hasattr(sys.modules[name], function.__name__)
    ]
    try:
        for where, function, _ in replaced:
            setattr(where, function.__name__, function)
        yield (FUSED,)
    finally:
        for where, function, before in replaced:
            setattr(where, function.__name__, before)
