"""Trace: run the real model once on fake tensors and keep what happened as a Workload.

One forward and backward of one micro-batch, two optimizer steps (in the first, states are born) and an evaluation. No
memory is used and nothing is computed; torch's own autograd decides what is kept and when it dies.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from catalog.errors import RigplanError
from planner import model_inputs, models
from planner.cache import TraceKnobs
from planner.libraries import collector_at_rest, logs_off, no_device_threads
from planner.model_factory import place
from planner.optimizers import build_optimizer, clip_gradients
from planner.recorder import DTYPES, Recorder
from planner.semantics import cuda_semantics
from planner.spec import DataSpec, ModelSpec
from planner.workload import FREE, Events, Parameter, Workload
from planner.wrappers import checkpointing, fsdp, fused_loss, fused_scan, lora, quantized, tensor_parallel
from planner.wrappers.sharded_recorder import ShardedRecorder

AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def trace(model: ModelSpec, data: DataSpec, knobs: TraceKnobs, micro_batch: int) -> Workload:
    """The workload of one rank at `micro_batch`. Raises RigplanError, naming the operator, if it cannot be traced."""
    dtype = torch.bfloat16 if knobs.precision == "bf16" else torch.float32
    chosen = model.model_copy(update={"attention": knobs.attention})
    built = models.build(chosen, data, device="meta", dtype=dtype)
    module, assumptions = built.module, built.assumptions
    if model.lora is not None:
        if model.lora.quantize is not None:
            if knobs.mesh is not None:
                raise RigplanError("4-bit weights are not modelled split over GPUs; use sharding: none, zero1 or zero2")
            assumptions += quantized.apply(module, knobs.precision)
        if knobs.mesh is not None and knobs.mesh.tensor > 1 and model.tensor_parallel_plan is None:
            raise RigplanError(
                "the model's tensor-parallel plan has no place for LoRA's adapters; use sharding: fsdp with "
                "tensor_parallel: 1, or name the layers as peft does in model.tensor_parallel_plan"
            )
        module = lora.apply(module, model.lora)
    own_blocks = knobs.compile and knobs.graphs == "blocks"  # a checkpoint is compiled with its block
    checkpointing.apply(module, knobs.checkpointing, own=own_blocks)
    fused_loss.apply(module, knobs.loss)
    torch.manual_seed(0)
    given = built.inputs(micro_batch)
    with ExitStack() as stack:
        stack.enter_context(collector_at_rest())  # tensors die when their last reference goes, never by chance
        devices = None if knobs.mesh is None else stack.enter_context(fsdp.process_group(knobs.mesh))
        recorder = Recorder() if devices is None else ShardedRecorder(fsdp.group_names(devices))
        recorder.vocabulary = getattr(getattr(module, "config", None), "vocab_size", None) or -1
        recorder.answer = model_inputs.ANSWERS.get((built.family, built.task))
        stack.enter_context(no_device_threads())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(cuda_semantics(knobs.capability, drop_masks=knobs.drop_masks))
        assumptions += stack.enter_context(fused_scan.applied(module, model.scan))
        if devices is not None and knobs.mesh is not None:  # the whole is never on the device: load holds shards alone
            _fake(module, None)
            assumptions += _split(module, devices, knobs, model.tensor_parallel_plan)
        stack.enter_context(recorder)
        if not knobs.compile:  # a hook of a module would be compiled with it
            stack.enter_context(recorder.modules.watching(module))
        if isinstance(recorder, ShardedRecorder):
            stack.enter_context(recorder.watching())
        segments = {}
        recorder.start("weights")
        with torch.no_grad():
            parameters = _fake(module, recorder) if devices is None else _adopt(module, recorder)
            segments["load"] = recorder.segment()
        if not any(parameter.requires_grad for _, parameter in parameters):
            raise RigplanError("nothing is trained: no parameter of the model has requires_grad set")
        recorder.start("inputs")
        inputs = {name: _on_device(value) for name, value in given.items()}
        for value in _tensors_in(inputs):
            recorder.block_of(value)
        cast_by_fsdp = knobs.mesh is not None and knobs.mesh.sharding != "none"  # by a policy of its own, not autocast
        precision = "fp32" if cast_by_fsdp else knobs.precision
        try:
            run = module
            if knobs.compile:
                run = _compiled(module, inputs, precision, knobs, recorder, model.scan)
            _micro_step(run, inputs, precision, recorder)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise RigplanError(_data_dependent(error)) from error
        except RigplanError:
            raise
        except Exception as error:
            why = next(iter(str(error).splitlines()), "")
            if knobs.mesh is not None and knobs.mesh.tensor > 1:
                why += "; the model may not run under its tensor-parallel plan: use tensor_parallel: 1"
            if "cuda" in why.lower() or "nvidia" in why.lower():
                why = (
                    "the model puts tensors on cuda, where a trace has no GPU; take the device of the inputs, x.device"
                )
            raise RigplanError(f"the trace failed in {type(error).__name__}: {why}{place(error)}") from error
        segments["micro_step"] = recorder.segment()
        whole = quantized.whole_shapes(module)
        ready = [_parameter(name, value, whole.get(name), recorder) for name, value in parameters]
        for parameter in ready:
            for block in (parameter.block, parameter.gradient_block):
                if block is not None:
                    recorder.own(block, parameter.name.rpartition(".")[0])
        segments |= _optimizer_steps(module, knobs, recorder)
        module.zero_grad()
        if not knobs.compile or _compiles_evaluation(run, inputs, precision, recorder):
            segments["evaluation"] = _evaluation(run, inputs, precision, recorder)
        workload = Workload(
            micro_batch=micro_batch,
            calls=tuple(recorder.calls),
            segments=segments,
            block_bytes=_array(recorder.block_bytes),
            block_categories=_array(recorder.categories),
            parameters=tuple(ready),
            samples_to_tokens=built.samples_to_tokens,
            family=built.family,
            task=built.task,
            assumptions=assumptions,
            versions=versions(),
            modules=tuple(recorder.modules.numbers),
            streams=dict(recorder.streams),
        )
        del inputs, given
    return workload


def _split(module: torch.nn.Module, devices: Any, knobs: TraceKnobs, plan: Mapping[str, str] | None) -> tuple[str, ...]:
    """Cut the module over the ranks of its mesh, layers first; returns what is assumed in doing so."""
    mesh = knobs.mesh
    told: tuple[str, ...] = ()
    if mesh is not None and mesh.tensor > 1:
        told = tensor_parallel.apply(module, fsdp.part_of(devices, ("tensor",)), plan)
    if mesh is not None and mesh.sharding != "none":
        fsdp.shard(module, devices, mesh.sharding, knobs.precision)
    return told


def versions() -> dict[str, str]:
    """The versions that decide what a trace holds."""
    import transformers

    return {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__}


def _micro_step(module: torch.nn.Module, inputs: dict[str, Any], precision: str, recorder: Recorder) -> None:
    recorder.kind = "activations"
    recorder.phase("forward")
    result = _forward(module, inputs, precision)
    loss = result if isinstance(result, torch.Tensor) else _loss_of(result)
    if loss.numel() != 1 or not loss.requires_grad:
        found = "a tensor that no parameter leads to" if loss.numel() == 1 else f"a tensor of shape {list(loss.shape)}"
        raise RigplanError(f"the module returned {found} for its loss, wanted a scalar that is trained")
    del result
    recorder.phase("backward")
    torch.autograd.backward(loss)
    del loss


def _forward(module: torch.nn.Module, inputs: dict[str, Any], precision: str) -> Any:
    low = AUTOCAST.get(precision)
    with torch.autocast("cpu", low) if low else nullcontext():
        return module(**inputs)


def _compiled(
    module: torch.nn.Module, inputs: dict[str, Any], precision: str, knobs: TraceKnobs, recorder: Recorder, scan: str
) -> Any:
    """The module under torch.compile after a first step, which compiles and leaves nothing behind."""
    if any(isinstance(layer, quantized.QuantizedLinear) for layer in module.modules()):
        raise RigplanError("compile: true is not modelled with 4-bit weights yet; use compile: false")
    if scan == "fused":
        raise RigplanError("compile: true is not modelled with scan: fused yet; use compile: false")
    recorder.listening = False
    failures: list[Exception] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler would advise does not bear on what it does
            from planner.wrappers import compiled  # Inductor takes seconds to import

            with torch.no_grad():  # what a first forward settles in a config would have all compiled a second time
                _forward(module, inputs, precision)
            with logs_off("torch._dynamo"), logs_off("torch._higher_order_ops"):
                run = compiled.apply(module, knobs.capability, recorder, failures.append, knobs.graphs)
                _micro_step(run, inputs, precision, recorder)
            if failures:
                raise failures[0]
    except (DataDependentOutputException, DynamicOutputShapeException, RigplanError):
        raise
    except Exception as error:
        first = failures[0] if failures else error
        reason = next((line for line in str(first).splitlines() if line.strip()), "no reason given")
        raise RigplanError(
            f"the model cannot be compiled ({type(first).__name__}): {reason}; use compile: false"
        ) from error
    module.zero_grad()
    recorder.listening = True
    return run


def _compiles_evaluation(run: Any, inputs: dict[str, Any], precision: str, recorder: Recorder) -> bool:
    """Compile a forward alone, which is another graph than that of a step; whether that can be done."""
    recorder.listening = False
    try:
        with logs_off("torch._dynamo"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _evaluation(run, inputs, precision, recorder)
    except Exception:  # training goes on without it, and so does the answer
        return False
    finally:
        recorder.listening = True
    return True


def _evaluation(module: torch.nn.Module, inputs: dict[str, Any], precision: str, recorder: Recorder) -> Events:
    """A forward without gradients at the same micro-batch, as a training loop's evaluation does; its results are kept
    until its end."""
    recorder.start("activations")
    recorder.phase("evaluation")
    module.eval()
    with torch.no_grad():
        result = _forward(module, inputs, precision)
    del result
    return recorder.segment()


def _loss_of(result: Any) -> torch.Tensor:
    loss = result.get("loss") if isinstance(result, dict) else getattr(result, "loss", None)
    if not isinstance(loss, torch.Tensor):
        found = f"a dict of {', '.join(map(str, result))}" if isinstance(result, dict) else f"a {type(result).__name__}"
        if isinstance(result, tuple | list):
            found = f"a {type(result).__name__} of {len(result)}"
        raise RigplanError(f"the module returned no loss but {found}: return a scalar tensor or an object with .loss")
    return loss


def _optimizer_steps(module: torch.nn.Module, knobs: TraceKnobs, recorder: Recorder) -> dict[str, Any]:
    segments = {}
    trained = [parameter for parameter in module.parameters() if parameter.grad is not None]
    optimizer = build_optimizer(knobs.optimizer, knobs.optimizer_implementation, module)
    for name in ("optimizer_first", "optimizer"):
        recorder.start("optimizer")
        recorder.phase("optimizer")
        if knobs.max_grad_norm is not None:
            clip_gradients(trained, knobs.max_grad_norm)
            recorder.phase("optimizer")  # from here on each call is of some parameters alone
        optimizer.step()
        segments[name] = events = recorder.segment()
        for block in events.values[events.codes == FREE]:
            recorder.recategorise(int(block), "temporary")  # not a state: it died in the step that made it
    return segments


def _adopt(module: torch.nn.Module, recorder: Recorder) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters of a sharded module; their shards are born now."""
    named = list(module.named_parameters())
    for _, parameter in named:
        recorder.block_of(parameter)
    _watch(named, recorder)
    for buffer in module.buffers():
        recorder.recategorise(recorder.block_of(buffer), "buffers")
    return named


def _watch(named: list[tuple[str, torch.nn.Parameter]], recorder: Recorder) -> None:
    """Let the recorder hear when each parameter's gradient is there."""
    for index, (_, parameter) in enumerate(named):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_ready(recorder, index))


def _fake(module: torch.nn.Module, recorder: Recorder | None) -> list[tuple[str, torch.nn.Parameter]]:
    """Put fake tensors in place of the module's meta ones, keeping ties; returns the parameters, each once.

    Without a recorder they are not the rank's own yet: they are split first, and taken by `_adopt`.
    """
    made: dict[int, torch.Tensor] = {}
    named: list[tuple[str, torch.nn.Parameter]] = []
    for prefix, part in module.named_modules():
        for name, value in list(part._parameters.items()):
            if value is None:
                continue
            fresh = made.get(id(value))
            if fresh is None:
                empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
                fresh = made[id(value)] = torch.nn.Parameter(empty, requires_grad=value.requires_grad)
                named.append((f"{prefix}.{name}".lstrip("."), fresh))
            part._parameters[name] = fresh
        for name, buffer in list(part._buffers.items()):
            if buffer is None:
                continue
            fresh = made.get(id(buffer))
            if fresh is None:
                fresh = made[id(buffer)] = torch.empty_strided(
                    buffer.shape, buffer.stride(), dtype=buffer.dtype, device="cpu"
                )
                if recorder is not None:
                    recorder.recategorise(recorder.block_of(fresh), "buffers")
            part._buffers[name] = fresh
        if isinstance(part, torch.nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
            part._flat_weight_refs = [None if weight is None else weakref.ref(weight) for weight in part._flat_weights]
    if recorder is not None:
        _watch(named, recorder)
    return named


def _ready(recorder: Recorder, index: int) -> Callable[[torch.Tensor], None]:
    return lambda _: recorder.gradient_ready(index)


def _parameter(name: str, value: torch.nn.Parameter, whole: tuple[int, ...] | None, recorder: Recorder) -> Parameter:
    """`whole`: the shape that a packed weight stands for."""
    gradient = None
    if value.grad is not None:
        gradient = recorder.block_of(value.grad)
        recorder.recategorise(gradient, "gradients")
    return Parameter(
        name, DTYPES[value.dtype], whole or tuple(value.shape), value.requires_grad, recorder.block_of(value), gradient
    )


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
        return torch.empty(value.shape, dtype=value.dtype, device="cpu")
    return value


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


def _data_dependent(error: Exception) -> str:
    operator = str(getattr(error, "func", error))
    return (
        f"the model asks a tensor for its values ({operator}){place(error)}, which a trace cannot answer; "
        "try attention: eager, a module factory with an example input, or a variant without that branch"
    )


def _array(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.int64)
