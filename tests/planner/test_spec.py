"""The spec: what is read, what is defaulted, and where files are looked for."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from catalog.errors import RigplanError
from planner.spec import Spec

SMALL = {"model": {"name": "pythia-1b"}, "hardware": {"gpu": "h200-sxm"}}


def test_a_spec_needs_only_a_model_and_a_gpu() -> None:
    spec = Spec.load(SMALL)
    assert spec.model.name == "pythia-1b"
    assert [entry.gpu for entry in spec.hardware] == [("h200-sxm",)]
    assert spec.training.precision == ("bf16-mixed",)
    assert spec.training.optimizer == ("adamw",)
    assert spec.training.micro_batch == (None,)
    assert spec.training.max_grad_norm == (1.0,)
    assert spec.objective == "cost"
    assert spec.budget is None


def test_one_value_and_a_list_of_one_are_the_same_question() -> None:
    one = Spec.load(SMALL | {"training": {"precision": "fp32", "micro_batch": 4}})
    listed = Spec.load(
        SMALL | {"training": {"precision": ["fp32"], "micro_batch": [4]}, "hardware": [SMALL["hardware"]]}
    )
    assert one == listed


def test_auto_means_a_micro_batch_that_is_searched() -> None:
    spec = Spec.load(SMALL | {"training": {"micro_batch": ["auto", 8]}})
    assert spec.training.micro_batch == (None, 8)


def test_memory_is_read_in_binary_and_decimal_units() -> None:
    hardware = {"gpu": "a100", "memory_limit": "39 GiB", "host_memory": ["512 GB", 1 << 40]}
    (entry,) = Spec.load(SMALL | {"hardware": hardware}).hardware
    assert entry.memory_limit == (39 * 1024**3,)
    assert entry.host_memory == (512 * 10**9, 1 << 40)


def test_the_total_is_parsed_but_kept_as_it_was_written() -> None:
    spec = Spec.load(SMALL | {"data": {"total": "90 epochs of 1.28M samples"}})
    amount = spec.data.amount()
    assert spec.data.total == "90 epochs of 1.28M samples"
    assert amount is not None
    assert (amount.kind, amount.amount, amount.epoch_samples) == ("epochs", 90, 1.28e6)


def test_a_gpu_that_yaml_reads_as_a_number_is_still_a_name(spec_file: Callable[[object], Path]) -> None:
    spec = Spec.load(spec_file("model: {name: gpt2}\nhardware: {gpu: 4090}\n"))
    assert spec.hardware[0].gpu == ("4090",)


def test_a_spec_survives_being_written_and_read_again() -> None:
    spec = Spec.load(
        SMALL
        | {
            "data": {"sequence_length": 2048, "total": "300B tokens"},
            "training": {"micro_batch": ["auto", 4], "max_grad_norm": [None, 1.0], "compile": [False, True]},
            "budget": {"usd": 20000, "days": 90},
            "campaign": {"runs": 12, "parallel": "auto"},
        }
    )
    assert Spec.load(spec.model_dump()) == spec
    assert Spec.load(spec.model_dump(mode="json")) == spec


def test_a_spec_is_taken_as_it_is() -> None:
    spec = Spec.load(SMALL)
    assert Spec.load(spec) is spec


def test_a_spec_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Spec.load(SMALL).objective = "time"  # type: ignore[misc]


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("model: {name: gpt2}\nhardware: {gpu: l40s}\n"))
    assert Spec.load("-").model.name == "gpt2"


def test_files_of_a_model_are_looked_for_beside_the_spec(spec_file: Callable[[object], Path]) -> None:
    path = spec_file({"model": {"config": "tiny.json"}, "hardware": {"gpu": "l4"}})
    (path.parent / "tiny.json").write_text("{}")
    assert Spec.load(path).model.config == str(path.parent / "tiny.json")


def test_files_of_a_model_are_looked_for_here_next(
    spec_file: Callable[[object], Path], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("here")
    (here / "mine.py").write_text("")
    monkeypatch.chdir(here)
    spec = Spec.load(spec_file({"model": {"module": "mine.py:make"}, "hardware": {"gpu": "l4"}}))
    assert spec.model.module == "mine.py:make"


def test_a_package_of_a_model_is_not_a_file() -> None:
    spec = Spec.load(SMALL | {"model": {"module": "my_pkg.models:make"}})
    assert spec.model.module == "my_pkg.models:make"


def test_every_example_is_a_valid_spec(root: Path) -> None:
    examples = sorted((root / "examples").glob("*.yaml"))
    assert len(examples) >= 4
    for path in examples:
        assert Spec.load(path).hardware, path


def test_reading_a_spec_does_not_import_torch(root: Path) -> None:
    code = (
        "import sys; from planner import Spec; import planner.strategy, planner.answer; "
        "Spec.load('examples/pythia-1b.yaml'); "
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_planner_says_what_it_offers_when_asked_for_something_else() -> None:
    import planner

    with pytest.raises(AttributeError, match=r"planner has no estimat; it offers .*estimate"):
        planner.__getattr__("estimat")


def test_planner_s_mistakes_are_catchable_from_the_package() -> None:
    import planner

    with pytest.raises(planner.RigplanError):
        planner.Spec.load("no-such.yaml")
    assert planner.RigplanError is RigplanError
