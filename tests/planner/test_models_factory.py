"""A user's own module: built without weights for the trace, really for training, and every failure told in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from catalog.errors import RigplanError
from planner import models

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("rates", torch.linspace(0, 0.5, 3))
        self.drop = [rate.item() for rate in torch.linspace(0, 0.5, 3)]

    def forward(self, ids, labels):
        logits = self.head(self.embed(ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

def make(batch_size):
    ids = torch.arange(batch_size * 8).reshape(batch_size, 8) % 50
    return Net(), {"ids": ids, "labels": ids}
"""


def built_from(where: str, **given: Any) -> models.Model:
    spec: Any = SimpleNamespace(name=None, config=None, module=where, task=None, attention=("sdpa",), lora=None)
    data: Any = SimpleNamespace(sequence_length=8, target_length=None, image_size=None, total=None)
    return models.build(spec, data, **given)


def written(folder: Path, code: str) -> str:
    file = folder / "net.py"
    file.write_text(code)
    return f"{file}:make"


def test_a_factory_builds_on_meta_with_ties_kept_and_real_inputs(tmp_path: Path) -> None:
    model = built_from(written(tmp_path, NET))
    assert model.task == model.family == "module"
    assert model.samples_to_tokens == 8
    assert {parameter.device.type for parameter in model.module.parameters()} == {"meta"}
    assert {buffer.device.type for buffer in model.module.buffers()} == {"meta"}
    assert sum(parameter.numel() for parameter in model.module.parameters()) == 50 * 16
    assert model.inputs(3)["ids"].shape == (3, 8)
    assert model.inputs(3)["ids"].device.type == "cpu"
    assert any("runs the code of" in note for note in model.assumptions)


def test_a_factory_trains_on_the_cpu(tmp_path: Path) -> None:
    model = built_from(written(tmp_path, NET), device="cpu")
    loss = model.module(**model.inputs(2))
    loss.backward()
    assert loss.item() > 0
    assert model.module.embed.weight.grad.abs().sum() > 0  # type: ignore[union-attr, operator]


def test_a_module_that_needs_the_values_of_its_weights_is_built_in_host_memory(tmp_path: Path) -> None:
    code = NET.replace("self.drop = ", "self.scale = self.embed.weight.sum().item(); self.drop = ")
    model = built_from(written(tmp_path, code))
    assert {parameter.device.type for parameter in model.module.parameters()} == {"cpu"}
    assert any("built in host memory" in note for note in model.assumptions)


def test_building_leaves_torch_as_it_was(tmp_path: Path) -> None:
    before = torch.nn.Module.register_parameter
    with pytest.raises(RigplanError):
        built_from(written(tmp_path, "def make(batch_size):\n    raise ValueError('no')\n"))
    assert torch.nn.Module.register_parameter is before


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0\n", r"net\.py raised ZeroDivisionError: division by zero \(line 1 of .*net\.py\)"),
        ("def make(:\n", r"raised SyntaxError: .*line 1 of .*net\.py"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = 1\n", "has no function 'make': wanted make"),
        ("def make(batch_size):\n    raise ValueError('too\\nlong')\n", r"ValueError: too \(line 2 of .*net\.py\)"),
        ("def make(batch_size):\n    return 3\n", "returned int: wanted"),
        ("def make(batch_size):\n    return 3, 4\n", r"returned \(int, int\): wanted"),
        (
            "import torch\ndef make(batch_size):\n    return torch.nn.Linear(1, 1), {'x': 1}\n",
            "input 'x' is a int, wanted a tensor",
        ),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_is_told_with_its_line(tmp_path: Path, code: str, told: str) -> None:
    with pytest.raises(RigplanError, match=told) as caught:
        built_from(written(tmp_path, code))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("nowhere.py:make", r"file nowhere\.py does not exist"),
        ("no_such_package.models:make", "ModuleNotFoundError"),
        ("just_a_word", "wanted path/to/file.py:make"),
    ],
)
def test_a_factory_that_is_not_there_is_named(where: str, told: str) -> None:
    with pytest.raises(RigplanError, match=told):
        built_from(where)
