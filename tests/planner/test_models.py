"""The builder on meta: every preset, every source of a model, and one clear line for what cannot be built."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from catalog import presets
from catalog.errors import RigplanError
from planner import models

TINY_GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 64}


def a_model(**given: Any) -> Any:
    fields = {"name": None, "config": None, "module": None, "task": None, "attention": ("sdpa",), "lora": None}
    return SimpleNamespace(**{**fields, **given})


def data(**given: Any) -> Any:
    fields = {"sequence_length": None, "target_length": None, "image_size": None, "total": None}
    return SimpleNamespace(**{**fields, **given})


def parameters_of(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# transformers fills their tables of positions number by number: seconds each.
SLOW = ("videomae-large", "videomae-base-pretraining")
PRESETS = [
    pytest.param(preset, id=preset.name, marks=pytest.mark.slow if preset.name in SLOW else ())
    for preset in presets.presets()
]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_builds_on_meta_with_its_published_parameters(preset: presets.Preset) -> None:
    built = models.build(a_model(name=preset.name), data())
    whole = parameters_of(built.module)
    tolerance = 0 if preset.published == "exact" else 0.005
    assert whole == pytest.approx(preset.parameters, rel=tolerance, abs=0)  # VideoMAE gained a bias between versions
    counted = parameters_of(built.module.base_model) if preset.published_of == "backbone" else whole  # type: ignore[arg-type]
    assert counted == pytest.approx(preset.published_parameters, rel=tolerance, abs=0)
    assert {parameter.device.type for parameter in built.module.parameters()} == {"meta"}
    assert built.module.training
    assert built.samples_to_tokens >= 1
    inputs = built.inputs(2)
    assert {len(value) for value in inputs.values()} == {2}
    assert all(value.is_floating_point() == (value.device.type == "meta") for value in inputs.values())


def test_pythia_1b_builds_on_meta_in_under_a_second_and_a_half() -> None:
    models.build(a_model(name="pythia-1b"), data())  # imports
    start = time.perf_counter()
    models.build(a_model(name="pythia-1b"), data()).inputs(1)
    assert time.perf_counter() - start < 1.5


def test_a_preset_brings_its_task_and_its_usual_length_and_says_so() -> None:
    built = models.build(a_model(name="EleutherAI/pythia-160m"), data())
    assert built.task == "causal-lm"
    assert built.family == "gpt_neox"
    assert built.samples_to_tokens == 2048
    assert "sequence_length 2048 tokens assumed (preset default)" in built.assumptions
    assert built.inputs(3)["input_ids"].shape == (3, 2048)
    assert not built.module.config.use_cache  # type: ignore[union-attr]


def test_lengths_of_the_spec_are_not_assumptions() -> None:
    built = models.build(a_model(name="t5-small"), data(sequence_length=64, target_length=16))
    assert built.assumptions == ()
    assert built.samples_to_tokens == 80
    assert {name: tuple(value.shape) for name, value in built.inputs(2).items()} == {
        "input_ids": (2, 64),
        "labels": (2, 16),
    }


def test_tied_weights_stay_tied_and_an_untied_t5_head_is_its_own() -> None:
    gpt2 = models.build(a_model(name="gpt2"), data()).module
    assert gpt2.lm_head.weight is gpt2.transformer.wte.weight  # type: ignore[union-attr]
    flan = models.build(a_model(name="flan-t5-small"), data()).module
    assert flan.lm_head.weight is not flan.shared.weight  # type: ignore[union-attr]
    assert flan.encoder.embed_tokens.weight is flan.shared.weight  # type: ignore[union-attr]


def test_an_image_size_of_the_spec_makes_a_vit_of_that_size() -> None:
    built = models.build(a_model(name="vit-base"), data(image_size=384))
    assert built.samples_to_tokens == (384 // 16) ** 2
    assert built.inputs(1)["pixel_values"].shape == (1, 3, 384, 384)
    assert built.module.config.image_size == 384  # type: ignore[union-attr]


def test_flash_attention_is_traced_as_sdpa_and_a_model_without_sdpa_as_eager_with_a_note() -> None:
    flash = models.build(a_model(name="pythia-14m", attention="flash_attention_2"), data())
    assert flash.module.config._attn_implementation == models.MASKLESS_SDPA  # type: ignore[union-attr]
    assert any("flash_attention_2 is traced as sdpa" in note for note in flash.assumptions)
    deberta = models.build(a_model(name="deberta-v3-xsmall"), data())
    assert any("no sdpa attention" in note for note in deberta.assumptions)
    resnet = models.build(a_model(name="resnet-18"), data())
    assert not any("attention" in note for note in resnet.assumptions)


def test_flash_attention_never_sees_a_mask_of_queries_by_keys_not_even_while_it_is_compiled() -> None:
    from transformers.masking_utils import create_causal_mask

    flash = models.build(a_model(name="pythia-14m", attention="flash_attention_2"), data())
    config, embeddings = flash.module.config, torch.zeros(1, 64, 128, device="meta")

    def mask(x: torch.Tensor) -> torch.Tensor | None:
        return create_causal_mask(config=config, inputs_embeds=x, attention_mask=None, past_key_values=None)

    assert torch.compile(mask, backend="eager")(embeddings) is None


def test_a_length_beyond_rotary_positions_is_an_assumption_and_beyond_a_table_a_mistake() -> None:
    rotary = models.build(a_model(name="pythia-14m"), data(sequence_length=4096))
    assert any("beyond the 2048 positions" in note for note in rotary.assumptions)
    with pytest.raises(RigplanError, match=r"data\.sequence_length is 2048: gpt2 has 1024 positions"):
        models.build(a_model(name="gpt2"), data(sequence_length=2048))
    with pytest.raises(RigplanError, match=r"data\.sequence_length is 514: roberta has 512 positions"):
        models.build(a_model(name="roberta-base"), data(sequence_length=514))
    with pytest.raises(RigplanError, match=r"data\.target_length is 449: whisper has 448 positions"):
        models.build(a_model(name="whisper-tiny"), data(target_length=449))
    with pytest.raises(RigplanError, match="whisper takes exactly 3000"):
        models.build(a_model(name="whisper-tiny"), data(sequence_length=1000))


def test_ctc_labels_longer_than_the_frames_are_a_mistake() -> None:
    with pytest.raises(RigplanError, match="too long for the 49 frames of 16000 audio samples"):
        models.build(a_model(name="wav2vec2-base"), data(sequence_length=16000, target_length=40))


def test_a_config_builds_inline_and_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY_GPT2))
    inline = models.build(a_model(config=TINY_GPT2), data())
    read = models.build(a_model(config=str(file)), data())
    folder = models.build(a_model(config=str(tmp_path)), data())
    assert parameters_of(inline.module) == parameters_of(read.module) == parameters_of(folder.module) > 0
    assert inline.samples_to_tokens == 64
    assert inline.assumptions == ("sequence_length 64 tokens assumed (model default)",)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"model_type": "gpt2"}, "causal-lm"),
        ({"model_type": "bert"}, "masked-lm"),
        ({"model_type": "t5"}, "seq2seq-lm"),
        ({"model_type": "bart"}, "seq2seq-lm"),
        ({"model_type": "whisper"}, "speech-seq2seq"),
        ({"model_type": "clip"}, "contrastive"),
        ({"model_type": "convnext"}, "image-classification"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]}, "ctc"),
        ({"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"]}, "semantic-segmentation"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, "sequence-classification"),
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "causal-lm"),
        ({"model_type": "videomae", "architectures": ["VideoMAEForPreTraining"]}, "pretraining"),
    ],
)
def test_the_task_follows_from_the_config_where_it_decides(config: dict[str, Any], task: str) -> None:
    tried = models._from_dict(config)
    assert models._task(a_model(config=config), tried, None) == task


def test_an_undecided_task_is_asked_for_and_an_impossible_one_refused() -> None:
    with pytest.raises(RigplanError, match=r"set model\.task to image-classification or semantic-segmentation"):
        models.build(a_model(config={"model_type": "segformer"}), data())
    with pytest.raises(RigplanError, match="gpt2 cannot train task 'ctc': it can causal-lm"):
        models.build(a_model(name="gpt2", task="ctc"), data())


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"hidden_size": 8}, "has no model_type"),
        ({"model_type": "lama"}, "unknown model_type 'lama': did you mean"),
        ({"model_type": "bert", "hidden_size": "many"}, "is no bert config"),
        ({"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}, "bert"),
        ("nowhere/config.json", r"nowhere/config\.json cannot be read"),
    ],
)
def test_a_wrong_config_is_told_in_one_line(config: Any, told: str) -> None:
    with pytest.raises(RigplanError, match=told) as caught:
        models.build(a_model(config=config), data())
    assert "\n" not in str(caught.value)


def test_a_config_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{oops")
    with pytest.raises(RigplanError, match=r"config\.json is not JSON"):
        models.build(a_model(config=str(file)), data())


def test_an_unknown_name_gets_the_nearest_presets_without_a_network() -> None:
    with pytest.raises(RigplanError, match="did you mean pythia-1b"):
        models.build(a_model(name="pythia-1bb"), data())


def test_a_hub_id_out_of_reach_gets_one_line_with_the_nearest_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PretrainedConfig

    def unreachable(name: str) -> Any:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(PretrainedConfig, "get_config_dict", unreachable)
    with pytest.raises(
        RigplanError, match=r"cannot be read from the hub \(OSError\): nearest presets: mistral-7b"
    ) as told:
        models.build(a_model(name="someone/mistral-7b-finetuned"), data())
    assert "\n" not in str(told.value)


def test_a_hub_id_in_reach_is_built_from_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import PretrainedConfig

    monkeypatch.setattr(PretrainedConfig, "get_config_dict", lambda name: (dict(TINY_GPT2), {}))
    built = models.build(a_model(name="someone/tiny"), data())
    assert built.family == "gpt2"
    assert "config of someone/tiny read from the hub" in built.assumptions
