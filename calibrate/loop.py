"""One spec as a real training step: forward under autocast, backward, clipping, optimizer, gradients dropped.

The order is that of the common trainers. Only the loss outlives the forward, so that logits die as they do in training.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from catalog.errors import RigplanError
from planner import models
from planner.model_inputs import IGNORED
from planner.optimizers import AnyOptimizer, build_optimizer
from planner.spec import Spec
from planner.strategy import FSDP, HardwareChoice, Strategy, batch_plan, choices
from planner.wrappers import checkpointing, fsdp, fused_loss, lora

# Autocast's dtype by precision; the others run in the dtype of their parameters.
AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
FIRST_SCALE = 1024.0  # of fp16's loss scaling: low enough that the first steps do not overflow and are skipped

Mark = Callable[[str], None]
Wrap = Callable[[torch.nn.Module], torch.nn.Module]


def _ignore(_: str) -> None:
    """A mark nobody listens to."""


@dataclass
class Training:
    """A model, its optimizer and its inputs, ready to step on `device`."""

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    optimizer: AnyOptimizer
    strategy: Strategy
    device: str
    micro_batch: int
    accumulation: int
    tokens_per_sample: int
    notes: tuple[str, ...]
    loss: torch.Tensor | None = None
    scaler: Any = None
    trainable: list[torch.nn.Parameter] = field(default_factory=list)

    def step(self, mark: Mark = _ignore) -> None:
        """One optimizer step. `mark` is called with the name of the phase that has just been issued."""
        dtype = AUTOCAST.get(self.strategy.precision)
        for _ in range(self.accumulation):
            with torch.autocast(self.device, dtype=dtype) if dtype else contextlib.nullcontext():
                loss = loss_of(self.module(**self.inputs))
            mark("forward")
            self._backward(loss / self.accumulation)
            mark("backward")
            self.loss = loss.detach()
            del loss
        self._update()
        mark("optimizer")

    def _backward(self, loss: torch.Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def _update(self) -> None:
        if self.scaler is not None and self.strategy.max_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
        if self.strategy.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trainable, self.strategy.max_grad_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)


def loss_of(output: Any) -> torch.Tensor:
    """The scalar loss of what a module gave: a tensor, an object or a dict with `loss`, a tuple that starts with it."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    loss = output if isinstance(output, torch.Tensor) else found
    if loss is None and isinstance(output, tuple) and output:
        loss = output[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise RigplanError(f"the module returned {type(output).__name__} without a scalar loss; wanted one, or .loss")
    return loss


def only_choice(spec: Spec) -> tuple[Strategy, HardwareChoice]:
    """The one strategy of a spec without open choices, and its hardware; RigplanError for several."""
    found = list(choices(spec))
    if len(found) != 1:
        raise RigplanError(f"found {len(found)} combinations in the spec; a real run takes one value for every field")
    return found[0]


def only_strategy(spec: Spec) -> Strategy:
    """The one strategy of a spec without open choices; RigplanError for several, or for what one GPU cannot run."""
    strategy, hardware = only_choice(spec)
    spread = (hardware.count, strategy.tensor_parallel, strategy.sharding, strategy.offload)
    if spread != (1, 1, "none", "none"):
        raise RigplanError("a real run here is of one GPU: set hardware.count 1, sharding none and offload none")
    return strategy


def prepare(spec: Spec, device: str) -> Training:
    """Build what the spec describes with random weights on `device`. Raises RigplanError for what cannot run here."""
    return prepared(spec, only_strategy(spec), device)


def prepared(spec: Spec, strategy: Strategy, device: str, wrap: Wrap | None = None) -> Training:
    """As `prepare`, of one strategy of the spec; `wrap` is given the module before its optimizer is made."""
    batches = batch_plan(strategy, next(choices(spec))[1])
    if isinstance(batches, str):
        raise RigplanError(batches)
    set_precision(strategy.precision)
    torch.manual_seed(0)
    low = torch.bfloat16 if strategy.precision == "bf16" else torch.float32
    # A user's factory builds on the default device: on the GPU that takes a second where the host takes half a minute.
    with torch.device(device) if spec.model.module else contextlib.nullcontext():
        model = models.build(spec.model, spec.data, device=device, dtype=low)
        inputs = model.inputs(batches.micro_batch)
    module = model.module
    if spec.model.lora is not None:
        if spec.model.lora.quantize is not None:
            raise RigplanError("unsupported: a real run with quantized weights; leave model.lora.quantize out")
        module = lora.apply(module, spec.model.lora)
    in_blocks = strategy.compile and strategy.sharding in FSDP
    checkpointing.apply(module, strategy.checkpointing, own=in_blocks)
    if strategy.loss != "eager":
        kernel = _fused_kernel(device)
        if strategy.compile:
            kernel = torch.compiler.disable(kernel)  # Liger's asks for a count (`.item()`), so dynamo leaves it anyway
        fused_loss.apply(module, strategy.loss, kernel)
    if wrap is not None:
        module = wrap(module)
    if in_blocks:
        fsdp.compile_units(module, torch.compile)
    optimizer = build_optimizer(strategy.optimizer, strategy.optimizer_implementation, module, real=True)
    return Training(
        module=torch.compile(module) if strategy.compile and not in_blocks else module,  # type: ignore[arg-type]
        inputs=inputs,
        optimizer=optimizer,
        strategy=strategy,
        device=device,
        micro_batch=batches.micro_batch,
        accumulation=batches.accumulation,
        tokens_per_sample=model.samples_to_tokens,
        notes=tuple(model.assumptions),
        scaler=torch.amp.GradScaler(device, init_scale=FIRST_SCALE) if strategy.precision == "fp16-mixed" else None,
        trainable=[parameter for parameter in module.parameters() if parameter.requires_grad],
    )


def _fused_kernel(device: str) -> Callable[..., Any]:
    """Liger's own kernel on a GPU where it is installed; else the same chunks in torch's operators."""
    if device != "cuda" or importlib.util.find_spec("liger_kernel") is None:
        return fused_loss.head_and_loss
    liger = importlib.import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy

    def kernel(hidden: Any, weight: Any, bias: Any, target: Any, count: Any, softcap: float | None, _: bool) -> Any:
        return liger(hidden, weight, target, bias, ignore_index=IGNORED, reduction="sum", softcap=softcap) / count

    return kernel


def set_precision(precision: str) -> None:
    """fp32 keeps every product in fp32, tf32 lets matmul and cuDNN round; mixed precision leaves torch's defaults."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
