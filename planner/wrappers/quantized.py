"""4-bit weights (QLoRA): the storage and the working copies of bitsandbytes, without bitsandbytes.

A quantised layer keeps two weights in a byte, one scale for each block of 64, itself kept in 8 bits with one fp32 scale
for each 256 of them. Forward and backward each write the weight out in the compute dtype, use it and drop it.

Sources: bitsandbytes functional.py (quantize_4bit, dequantize_4bit), autograd/_functions.py (MatMul4Bit), nn/modules.py
(Linear4bit); peft tuners/lora/bnb.py (Linear4bit.forward); Dettmers et al. 2023, QLoRA, section 3.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from catalog.errors import RigplanError

BLOCK = 64  # weights to a scale
SCALE_BLOCK = 256  # scales to a second-level scale
SCALE_LEVELS, LEVELS = 256, 16  # entries of the tables that 8 and 4 bits point into

torch.library.define("rigplan::dequantize_scales", "(Tensor scales, Tensor second, Tensor levels) -> Tensor")
torch.library.define(
    "rigplan::dequantize_nf4",
    "(Tensor packed, Tensor scales, Tensor levels, SymInt rows, SymInt columns, ScalarType dtype) -> Tensor",
)


@torch.library.register_fake("rigplan::dequantize_scales")
def _dequantize_scales(scales: Any, second: Any, levels: Any) -> Any:
    return scales.new_empty(scales.shape, dtype=torch.float32)


@torch.library.register_fake("rigplan::dequantize_nf4")
def _dequantize_nf4(packed: Any, scales: Any, levels: Any, rows: int, columns: int, dtype: torch.dtype) -> Any:
    return packed.new_empty(rows, columns, dtype=dtype)


class QuantizedLinear(torch.nn.Linear):
    """A frozen linear layer whose weight is packed; only what a trace sees, no values."""

    def __init__(self, whole: torch.nn.Linear, dtype: torch.dtype) -> None:
        """`dtype`: of the working copy and of the product."""
        super().__init__(whole.in_features, whole.out_features, bias=False, device="meta", dtype=dtype)
        self.dtype = dtype
        weights = whole.in_features * whole.out_features
        scales = math.ceil(weights / BLOCK)
        packed = torch.empty(math.ceil(weights / 2), 1, dtype=torch.uint8, device="meta")
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.bias = whole.bias
        tables = {
            "scales": (scales, torch.uint8),
            "second": (math.ceil(scales / SCALE_BLOCK), torch.float32),
            "second_levels": (SCALE_LEVELS, torch.float32),
            "levels": (LEVELS, torch.float32),
            "offset": (1, torch.float32),
        }
        for name, (size, kind) in tables.items():
            self.register_buffer(name, torch.empty(size, dtype=kind, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        result: torch.Tensor = _Product.apply(x.to(self.dtype), self, bias)
        return result.to(x.dtype)

    def working_copy(self) -> torch.Tensor:
        """The weight written out."""
        operators: Any = torch.ops.rigplan
        scales = operators.dequantize_scales(self.scales, self.second, self.second_levels)
        scales += self.offset
        copy: torch.Tensor = operators.dequantize_nf4(
            self.weight, scales, self.levels, self.out_features, self.in_features, self.dtype
        )
        return copy


class _Product(torch.autograd.Function):
    """The product with a working copy that does not outlive it; nothing but the packed weight is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: QuantizedLinear, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.layer, ctx.bias_grad = layer, bias is not None and ctx.needs_input_grad[2]
        return torch.nn.functional.linear(x, layer.working_copy(), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        bias = grad.sum(tuple(range(grad.dim() - 1))) if ctx.bias_grad else None
        return torch.matmul(grad, ctx.layer.working_copy()), None, bias


def apply(module: torch.nn.Module, precision: str) -> tuple[str, ...]:
    """Quantise every linear layer of `module` but its output head, and freeze the rest; returns what was assumed.
    Raises RigplanError when there is none.

    With mixed precision what stays whole is in fp32, as peft's prepare_model_for_kbit_training leaves it; with pure
    bf16 it stays in bf16, as torchtune and LitGPT have it.
    """
    dtype = {"bf16": torch.bfloat16, "bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(
        precision, torch.float32
    )
    get_head = getattr(module, "get_output_embeddings", None)
    head = None if get_head is None else get_head()
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    found = [
        (part, name, child)
        for part in module.modules()
        for name, child in part.named_children()
        if type(child) is torch.nn.Linear and child is not head
    ]
    if not found:
        raise RigplanError("model.lora.quantize: the model has no linear layer to quantise; leave it out")
    for part, name, child in found:
        setattr(part, name, QuantizedLinear(child, dtype))
    kept = "bf16 (as torchtune keeps them)" if precision == "bf16" else "fp32 (as peft prepares a 4-bit model)"
    return (
        "4-bit weights: every linear layer but the output head, nf4 in blocks of 64, scales quantised once more",
        f"norms, embeddings and the output head of the 4-bit model are in {kept}",
    )


def whole_shapes(module: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape that each packed weight stands for, by parameter name."""
    return {
        f"{name}.weight": (layer.out_features, layer.in_features)
        for name, layer in module.named_modules()
        if isinstance(layer, QuantizedLinear)
    }


def adapted() -> type[torch.nn.Module]:
    """peft's adapter around a quantised layer: it copies the layer's result and leaves casts to autocast."""
    from peft.tuners.lora.layer import Linear

    class QuantizedAdapter(Linear):  # type: ignore[misc,unused-ignore]
        def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = self.base_layer(x, *args, **kwargs).clone()
            for name in self.active_adapters:
                if name not in self.lora_A:
                    continue
                first: Any = self.lora_A[name]
                second: Any = self.lora_B[name]
                converts = not torch.is_autocast_enabled("cpu")  # where a trace's autocast is
                given = x.to(first.weight.dtype) if converts else x
                output = second(first(self.lora_dropout[name](given))) * self.scaling[name]
                result = result + (output.to(result.dtype) if converts else output)
            return result

    return QuantizedAdapter
