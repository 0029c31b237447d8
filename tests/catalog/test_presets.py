"""The presets as data: found by what people write, and carrying figures that are published."""

from __future__ import annotations

import subprocess
import sys

import pytest

from catalog import presets
from catalog.errors import RigplanError


def test_there_are_at_least_sixty_presets_and_their_names_differ() -> None:
    names = [preset.name for preset in presets.presets()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("pythia-1b", "pythia-1b"),
        ("EleutherAI/pythia-1b", "pythia-1b"),
        ("eleutherai/pythia-1b-deduped", "pythia-1b"),
        ("Llama 2 7B", "llama-2-7b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("gpt2", "gpt2"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("GPT2_XL", "gpt2-xl"),
        ("bert-base-uncased", "bert-base"),
        ("resnet50", "resnet-50"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("google/flan-t5-xl", "flan-t5-xl"),
        ("Helsinki-NLP/opus-mt-en-de", "marian-base"),
        ("ViT-B/16", "vit-base"),
    ],
)
def test_a_preset_is_found_by_what_people_write(written: str, name: str) -> None:
    assert presets.find(written).name == name


def test_a_misspelt_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(RigplanError, match="did you mean pythia-1b"):
        presets.find("pithia-1b")
    assert "mistral-7b" in presets.nearest("someone/mistral-7b-finetuned")


def test_a_name_like_no_other_is_answered_with_where_the_list_is() -> None:
    with pytest.raises(RigplanError, match="rigplan models"):
        presets.find("zzzzqqqq")


def test_no_spelling_means_two_presets() -> None:
    owners: dict[str, set[str]] = {}
    for preset in presets.presets():
        for spelling in {preset.name, preset.hub, *preset.aliases} - {""}:
            owners.setdefault(presets._key(spelling), set()).add(preset.name)
    named = {presets._key(preset.name) for preset in presets.presets()}
    twice = {spelling: names for spelling, names in owners.items() if len(names) > 1}
    # A checkpoint may serve a backbone's two tasks; it is then the hub id of both.
    assert twice.keys() & named == set()
    assert set(twice) <= {"facebook/wav2vec2base"}


@pytest.mark.parametrize("preset", presets.presets(), ids=lambda preset: preset.name)
def test_a_preset_says_what_it_builds_and_who_published_it(preset: presets.Preset) -> None:
    assert preset.config["model_type"]
    assert preset.source
    assert preset.published in ("exact", "approx")
    assert preset.published_of in ("model", "backbone")
    assert preset.parameters >= preset.published_parameters * 0.995
    assert preset.sequence_length or preset.image_size


# Totals as their authors print them: model cards, safetensors headers, papers.
PUBLISHED = {
    "pythia-70m": 70_426_624,
    "pythia-1b": 1_011_781_632,
    "pythia-12b": 11_846_072_320,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-9b": 9_241_705_984,
    "phi-3-mini": 3_821_079_552,
    "opt-13b": 12_853_473_280,
    "bloom-560m": 559_214_592,
    "bert-base": 109_514_298,
    "flan-t5-base": 247_577_856,
    "bart-large": 406_291_456,
    "whisper-large-v3": 1_543_490_560,
    "vit-base": 86_567_656,
    "resnet-50": 25_557_032,
    "convnext-tiny": 28_589_128,
    "clip-vit-b-32": 151_277_313,
    "wav2vec2-base": 94_396_320,
    "mamba-130m": 129_135_360,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_counts_what_its_authors_print(name: str) -> None:
    assert presets.find(name).published_parameters == PUBLISHED[name]


def test_reading_the_presets_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from catalog import presets; presets.find('gpt2'); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
