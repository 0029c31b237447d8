"""From `spec.model` to a torch module with legal inputs: a preset, a hub id, a transformers config or a user's factory.

The same builder serves the trace (device 'meta': no memory, no weights) and real training runs (device 'cuda' or 'cpu':
random weights). transformers is imported inside functions: a user's own module does not need it.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from catalog import presets
from catalog.errors import RigplanError
from planner import model_factory, model_inputs, model_lengths
from planner.model_factory import first_line

if TYPE_CHECKING:
    from planner.spec import DataSpec, ModelSpec

MASKLESS_SDPA = "sdpa_maskless"
# The auto class that builds each task, and the table of transformers that says which model types it takes.
AUTO: dict[str, tuple[str, str]] = {
    "causal-lm": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "masked-lm": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
    "sequence-classification": (
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    ),
    "image-classification": ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    "video-classification": ("AutoModelForVideoClassification", "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES"),
    "semantic-segmentation": ("AutoModelForSemanticSegmentation", "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES"),
    "speech-seq2seq": ("AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES"),
    "ctc": ("AutoModelForCTC", "MODEL_FOR_CTC_MAPPING_NAMES"),
    "contrastive": ("AutoModel", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES"),
    "pretraining": ("AutoModelForPreTraining", "MODEL_FOR_PRETRAINING_MAPPING_NAMES"),
}

# How the class named in a config's `architectures` ends, and the task that it trains.
ARCHITECTURES: dict[str, str] = {
    "ForCausalLM": "causal-lm",
    "LMHeadModel": "causal-lm",
    "ForMaskedLM": "masked-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForImageClassification": "image-classification",
    "ForVideoClassification": "video-classification",
    "ForSemanticSegmentation": "semantic-segmentation",
    "ForCTC": "ctc",
    "ForPreTraining": "pretraining",
}
# The tasks that decide for a model type of several, where its config names no architecture.
DECIDING = ("speech-seq2seq", "contrastive", "seq2seq-lm", "masked-lm", "causal-lm")
HUB_TIMEOUT_S = "5"  # read by the hub client from the environment


@dataclass(frozen=True, slots=True)
class Model:
    """A module in train mode and what it trains on; `inputs(micro_batch)` gives its keyword inputs, labels included."""

    module: torch.nn.Module
    task: str
    inputs: Callable[[int], dict[str, torch.Tensor]]
    samples_to_tokens: int
    assumptions: tuple[str, ...]
    family: str


def build(model: ModelSpec, data: DataSpec, *, device: str = "meta", dtype: torch.dtype = torch.float32) -> Model:
    """The module of the spec on `device` with parameters in `dtype`.

    On 'meta' the parameters have no memory; integer inputs are real cpu tensors all the same, because forwards branch
    on them, and floating-point inputs are meta tensors in `dtype`. LoRA is not applied here. RigplanError tells what to
    mend.
    """
    if model.module is not None:
        return _from_factory(model.module, data, device, dtype)
    config, preset, assumptions = _config(model)
    task = _task(model, config, preset)
    lengths = model_lengths.lengths(config, task, data, preset)
    assumptions += lengths.assumptions
    model_lengths.adapt(config, task, lengths)
    attention = model.attention if isinstance(model.attention, str) else model.attention[0]
    module, notes = _instantiate(config, task, attention, device, dtype)
    model_lengths.check(module, config, task, lengths)
    module.train()
    if task == "contrastive":  # the loss of CLIP-like models is asked for by a flag, not by labels
        module.forward = functools.partial(module.forward, return_loss=True)
    return Model(
        module=module,
        task=task,
        inputs=_in(
            dtype, functools.partial(model_inputs.make, config, task, lengths, str(module.main_input_name), device)
        ),
        samples_to_tokens=model_lengths.tokens_per_sample(config, task, lengths),
        assumptions=assumptions + notes,
        family=str(config.model_type),
    )


def _config(model: ModelSpec) -> tuple[Any, presets.Preset | None, tuple[str, ...]]:
    """The transformers config of the spec, the preset it came from and what was assumed."""
    if model.config is not None:
        return _from_dict(model.config), None, ()
    if model.name is None:
        raise RigplanError("model names nothing to build: give model.name, model.config or model.module")
    preset = presets.lookup(model.name)
    if preset is not None:
        return _from_dict(dict(preset.config)), preset, ()
    if "/" not in model.name:
        presets.find(model.name)  # raises, with the nearest names
    return _from_hub(model.name), None, (f"config of {model.name} read from the hub",)


def _from_dict(config: dict[str, Any] | str) -> Any:
    """The transformers config of a mapping or of a config.json."""
    where = "model.config"
    if isinstance(config, str):
        where, config = config, _read_json(Path(config))
    _quiet()
    from transformers import CONFIG_MAPPING, AutoConfig

    values = copy.deepcopy(dict(config))
    model_type = values.pop("model_type", None)
    if model_type is None:
        raise RigplanError(f"{where} has no model_type: add one, for example model_type: llama")
    if model_type not in CONFIG_MAPPING:
        near = get_close_matches(str(model_type), list(CONFIG_MAPPING), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "use one that transformers knows"
        raise RigplanError(f"{where} has unknown model_type '{model_type}': {hint}")
    try:
        built = AutoConfig.for_model(model_type, **values)
    except Exception as error:  # configs check themselves with exceptions of many kinds
        raise RigplanError(f"{where} is no {model_type} config: {first_line(error)}") from error
    built.rigplan_untied_head = values.get("tie_word_embeddings") is False
    return built


def _read_json(path: Path) -> dict[str, Any]:
    if path.is_dir():
        path = path / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RigplanError(f"model config file {path} cannot be read ({error.strerror}): check the path") from error
    except ValueError as error:
        raise RigplanError(f"model config file {path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise RigplanError(f"model config file {path} holds a {type(values).__name__}, wanted a JSON object")
    return values


def _from_hub(name: str) -> Any:
    """The config of a hub id: data only, never remote code."""
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", HUB_TIMEOUT_S)
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", HUB_TIMEOUT_S)
    _quiet()
    from transformers import PretrainedConfig

    try:
        values, _ = PretrainedConfig.get_config_dict(name)
    except Exception as error:  # no network, no such model, or a gated one: one line for all
        near = ", ".join(presets.nearest(name))
        hint = f"nearest presets: {near}" if near else "see `rigplan models` for presets"
        raise RigplanError(
            f"model '{name}' is no preset and its config cannot be read from the hub ({type(error).__name__}): {hint}; "
            "or give model.config with the values of its config.json"
        ) from error
    return _from_dict(values)


def _task(model: ModelSpec, config: Any, preset: presets.Preset | None) -> str:
    """The task asked for, of the preset, of the config's architecture or the only one its model type has."""
    from transformers.models.auto import modeling_auto

    kind = config.model_type
    possible = [task for task, (_, table) in AUTO.items() if kind in getattr(modeling_auto, table)]
    if model.task is not None:
        if model.task not in possible:
            raise RigplanError(f"{kind} cannot train task '{model.task}': it can {', '.join(possible) or 'none'}")
        return model.task
    if preset is not None:
        return preset.task
    for architecture in config.architectures or ():
        for ending, task in ARCHITECTURES.items():
            if architecture.endswith(ending) and task in possible:
                return task
    main = [task for task in DECIDING if task in possible]
    if getattr(config, "is_encoder_decoder", False):
        main = [task for task in main if task in ("seq2seq-lm", "speech-seq2seq")]
    elif getattr(config, "is_decoder", False):
        main = [task for task in main if task == "causal-lm"]
    rest = [task for task in possible if task not in ("pretraining", "sequence-classification")]
    if main or len(rest) == 1:
        return (main or rest)[0]
    if not possible:
        raise RigplanError(f"model type {kind} has no task that rigplan trains: give model.module with a factory")
    raise RigplanError(f"the task of a {kind} model is not clear: set model.task to {' or '.join(possible)}")


def _instantiate(
    config: Any, task: str, attention: str, device: str, dtype: torch.dtype
) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The module of the task's auto class, and a note where the attention asked for is not the one built."""
    import transformers

    _quiet()
    notes: tuple[str, ...] = ()
    if attention == "flash_attention_2" and device != "cuda":
        attention = _flash_by_sdpa()
        notes = ("flash_attention_2 is traced as sdpa, whose fused kernel keeps the same tensors",)
    auto = getattr(transformers, AUTO[task][0])
    for part in (config, *_sub_configs(config)):
        if hasattr(part, "use_cache"):
            part.use_cache = False  # as in training: no keys and values are kept
    try:
        with torch.device(device), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries' own deprecations
            try:
                module = auto.from_config(config, attn_implementation=attention, dtype=dtype)
            except ValueError as error:
                if "attention" not in str(error) or attention == "eager":
                    raise
                module = auto.from_config(config, attn_implementation="eager", dtype=dtype)
                if any("Attention" in type(layer).__name__ for layer in module.modules()):
                    notes = (f"{config.model_type} has no {attention} attention in transformers: built as eager",)
    except Exception as error:
        message = f"{config.model_type} cannot be built for {task}: {type(error).__name__}: {first_line(error)}"
        raise RigplanError(message) from error
    if config.rigplan_untied_head:
        _untie_head(module)
    _move_strays(module, device)
    return module, notes


def _flash_by_sdpa() -> str:
    """transformers' name for sdpa that is told what flash attention is told: causal or not, and never a mask of queries
    by keys, which transformers makes for sdpa whenever it is compiled."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(MASKLESS_SDPA, sdpa_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(MASKLESS_SDPA, _no_mask)
    return MASKLESS_SDPA


def _no_mask(*_: Any, **__: Any) -> None:
    """All samples have one length, so nothing is hidden that `is_causal` does not say."""


def _untie_head(module: torch.nn.Module) -> None:
    """A head of its own where the config asks for one: transformers 5 unties T5's only when a checkpoint holds both."""
    head, embedding = module.get_output_embeddings(), module.get_input_embeddings()  # type: ignore[operator]
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def _move_strays(module: torch.nn.Module, device: str) -> None:
    """To the device what `torch.Tensor(n)` made in spite of it: wav2vec2's mask embedding."""
    for layer in module.modules():
        for name, parameter in layer._parameters.items():
            if parameter is not None and parameter.device.type != torch.device(device).type:
                layer._parameters[name] = torch.nn.Parameter(parameter.data.to(device))


def _sub_configs(config: Any) -> Iterator[Any]:
    for name in getattr(config, "sub_configs", ()):
        part = getattr(config, name, None)
        if part is not None:
            yield part


def _from_factory(where: str, data: DataSpec, device: str, dtype: torch.dtype) -> Model:
    """The model of a user's `make(batch_size)`; runs the user's code."""
    factory = model_factory.load(where)
    module, notes = model_factory.module(factory, where, device, dtype)
    return Model(
        module=module.train(),
        task="module",
        inputs=_in(dtype, functools.partial(model_factory.inputs, factory, where, device)),
        samples_to_tokens=data.sequence_length or 1,
        assumptions=(f"runs the code of {where}", *notes),
        family="module",
    )


def _in(
    dtype: torch.dtype, inputs: Callable[[int], dict[str, torch.Tensor]]
) -> Callable[[int], dict[str, torch.Tensor]]:
    """Inputs whose floating-point tensors have the dtype of the parameters."""

    def cast(micro_batch: int) -> dict[str, torch.Tensor]:
        given = inputs(micro_batch)
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}

    return cast


@functools.cache
def _quiet() -> None:
    """transformers without warnings or progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
