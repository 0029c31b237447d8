"""Every mistake in a spec gets a line of its own: where, what was found, what was wanted."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from catalog.errors import RigplanError
from planner.spec import Spec


def spec_with(field: str, value: Any) -> dict[str, Any]:
    """A good spec in which one field, given by its dotted path, has another value."""
    spec: dict[str, Any] = deepcopy({"model": {"name": "pythia-1b"}, "hardware": {"gpu": "h200-sxm"}})
    place = spec
    *path, last = field.split(".")
    for step in path:
        place = place.setdefault(step, {})
    place[last] = value
    return spec


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("hardware.count", 0, "hardware.count: found 0, wanted a positive number of GPUs"),
        ("hardware.count", [1, 0], "hardware.count[1]: found 0, wanted a positive number of GPUs"),
        ("hardware.count", True, "hardware.count: found True, wanted a positive number of GPUs"),
        ("hardware.count", 1.5, "hardware.count: found 1.5, wanted a positive number of GPUs"),
        ("hardware.count", float("inf"), "hardware.count: found inf, wanted a positive number of GPUs"),
        ("hardware.gpu", [], "hardware.gpu: found [], wanted at least one choice"),
        ("hardware.gpu", "", "hardware.gpu: found '', wanted the name of a GPU"),
        ("hardware.memory_limit", 39, "hardware.memory_limit: found 39, wanted an amount of memory such as 39 GiB"),
        ("hardware", {"gpu": "l4", 1: 2}, "hardware: found the key 1, wanted the name of a field"),
        ("hardware.price", 2, "hardware.price: found 2, wanted a mapping"),
        ("hardware", [], "hardware: found [], wanted at least one choice"),
        ("hardware", {"count": 2}, "hardware.gpu: missing; it must be given"),
        ("training.micro_batch", -3, "training.micro_batch: found -3, wanted a positive integer or auto"),
        ("training.micro_batch", "atuo", "training.micro_batch: found 'atuo', wanted a positive integer or auto"),
        ("training.global_batch", -1024, "training.global_batch: found -1024, wanted a positive integer"),
        ("training.accumulation", 0, "training.accumulation: found 0, wanted a positive integer"),
        ("training.tensor_parallel", 0, "training.tensor_parallel: found 0, wanted a positive integer"),
        ("training.compile", "maybe", "training.compile: found 'maybe', wanted true or false"),
        (
            "training.max_grad_norm",
            -1.0,
            "training.max_grad_norm: found -1.0, wanted a number above 0, or null for no clipping",
        ),
        (
            "training.precision",
            ["fp32", "bf16-mix"],
            "training.precision[1]: found 'bf16-mix', wanted fp32 or tf32 or bf16-mixed or fp16-mixed or bf16 or "
            "fp8-mixed (did you mean bf16-mixed?)",
        ),
        (
            "training.sharding",
            "zero4",
            "training.sharding: found 'zero4', wanted none or zero1 or zero2 or zero3 or fsdp or fsdp-grad-op or hsdp"
            " (did you mean zero3?)",
        ),
        ("training", [1], "training: found [1], wanted a mapping"),
        ("training", None, "training: found nothing, wanted a mapping"),
        ("data.sequence_length", 0, "data.sequence_length: found 0, wanted a positive integer"),
        ("data.total", 300, "data.total: found 300, wanted an amount such as 300B tokens or 143000 steps"),
        ("budget.usd", "lots", "budget.usd: found 'lots', wanted a number above 0"),
        ("campaign", {"runs": 0}, "campaign.runs: found 0, wanted a positive integer"),
        ("objective", "cheap", "objective: found 'cheap', wanted cost or time or pareto or amount or model"),
        ("model", "pythia-1b", "model: found 'pythia-1b', wanted a mapping"),
        ("model", {}, "model: found none, wanted exactly one of name, config and module"),
        ("model.config", {}, "model: found name and config, wanted exactly one of name, config and module"),
        (
            "model",
            {"config": 4},
            "model.config: found 4, wanted a mapping or the path of a config.json",
        ),
        (
            "model",
            {"config": "no-such.json"},
            "model.config: found 'no-such.json', which is not there; wanted a file, relative to the spec or to here",
        ),
        (
            "model",
            {"module": "no-such.py:make"},
            "model.module: found 'no-such.py', which is not there; wanted a file, relative to the spec or to here",
        ),
        (
            "model",
            {"module": "my_model.py"},
            "model: found module 'my_model.py', wanted package.module:function or path/to/file.py:function",
        ),
        (
            "model.lora",
            {"r": 0, "alpha": 32, "target_modules": ["q_proj"]},
            "model.lora.r: found 0, wanted a positive integer",
        ),
        (
            "model.attention",
            "flash",
            "model.attention: found 'flash', wanted eager or sdpa or flash_attention_2",
        ),
    ],
)
def test_a_wrong_value_is_told_in_one_line(field: str, value: Any, line: str) -> None:
    with pytest.raises(RigplanError) as caught:
        Spec.load(spec_with(field, value))
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("mdoel", "mdoel: unknown field (did you mean model?); wanted one of model, data, training,"),
        ("model.atention", "model.atention: unknown field (did you mean attention?); wanted one of name, config,"),
        ("data.sequence_lenght", "data.sequence_lenght: unknown field (did you mean sequence_length?)"),
        ("training.optimiser", "training.optimiser: unknown field (did you mean optimizer?)"),
        ("training.zzz", "training.zzz: unknown field; wanted one of precision, optimizer,"),
        ("hardware.cuont", "hardware.cuont: unknown field (did you mean count?); wanted one of gpu, count,"),
        ("budget.day", "budget.day: unknown field (did you mean days?); wanted one of usd, days"),
    ],
)
def test_an_unknown_field_is_told_with_the_one_that_was_meant(field: str, meant: str) -> None:
    with pytest.raises(RigplanError) as caught:
        Spec.load(spec_with(field, 1))
    assert str(caught.value).startswith(meant)
    assert "\n" not in str(caught.value)


def test_an_unknown_field_in_a_list_of_machines_is_told_with_its_place() -> None:
    with pytest.raises(RigplanError, match=r"^hardware\[1\]\.cuont: unknown field \(did you mean count\?\)"):
        Spec.load(spec_with("hardware", [{"gpu": "l4"}, {"gpu": "l40s", "cuont": 2}]))


@pytest.mark.parametrize(
    ("field", "value"),
    [("data.total", "300 bananas"), ("data.total", "-3 steps"), ("hardware.memory_limit", "39 bananas")],
)
def test_a_quantity_with_no_meaning_is_told_with_its_field_and_text(field: str, value: str) -> None:
    with pytest.raises(RigplanError) as caught:
        Spec.load(spec_with(field, value))
    assert str(caught.value).startswith(f"{field}: ")
    assert repr(value) in str(caught.value) or value.split()[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_mistake_is_told_one_to_a_line() -> None:
    with pytest.raises(RigplanError) as caught:
        Spec.load(
            {"model": {"name": "gpt2"}, "hardware": {"count": 0}, "training": {"micro_batch": -3}, "objektive": 1}
        )
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "training.micro_batch",
        "hardware.gpu",
        "hardware.count",
        "objektive",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("- one\n- two\n", "found a list, wanted a mapping with model and hardware at the top"),
        ("pythia-1b\n", "found a str, wanted a mapping with model and hardware at the top"),
        ("data: 2026-99-99\n", "is not YAML"),
        ("", "found nothing, wanted a mapping with model and hardware at the top"),
        ("model: {name: gpt2\nhardware: 3\n", "line 2 is not YAML"),
        ("model:\n\tname: gpt2\n", "line 2 is not YAML"),
    ],
)
def test_a_file_that_holds_no_spec_is_told_in_one_line(
    spec_file: Callable[[object], Path], text: str, found: str
) -> None:
    path = spec_file(text)
    with pytest.raises(RigplanError) as caught:
        Spec.load(path)
    assert str(caught.value).startswith(f"{path}:")
    assert found in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_spec_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        RigplanError, match=r"no-such\.yaml: no such file; wanted a YAML spec, or - for standard input$"
    ):
        Spec.load(tmp_path / "no-such.yaml")


def test_a_folder_is_not_a_spec(tmp_path: Path) -> None:
    with pytest.raises(RigplanError, match=r"cannot be read .*wanted a YAML spec"):
        Spec.load(tmp_path)


def test_a_binary_file_is_not_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(RigplanError, match=r"is not UTF-8 text; wanted a YAML spec$"):
        Spec.load(path)
