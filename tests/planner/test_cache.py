"""The cache: a kept workload is the same workload, and anything that would change it makes another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from catalog.errors import RigplanError
from planner.cache import ANCHORS, TraceKnobs, Workloads, contents, load, made_by, save
from planner.spec import DataSpec, ModelSpec

TINY = {
    "model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 64,
}  # fmt: skip
KNOBS = TraceKnobs("bf16-mixed", "sdpa", "none", "adamw", "foreach", 1.0, (9, 0))


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads(ModelSpec(config=TINY), DataSpec(sequence_length=64))


def test_a_workload_comes_back_from_disk_as_it_was(workloads: Workloads, tmp_path: Path) -> None:
    first = workloads.at(KNOBS, 2)
    save(first, tmp_path / "kept.npz")
    again = load(tmp_path / "kept.npz")
    assert again is not None
    assert again.calls == first.calls
    assert again.parameters == first.parameters
    assert np.array_equal(again.block_bytes, first.block_bytes)
    for name, events in first.segments.items():
        assert events.same_as(again.segments[name])


def test_what_is_not_there_or_broken_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a workload")
    assert load(broken) is None
    assert load(tmp_path / "absent.npz") is None


def test_a_micro_batch_read_off_two_traces_is_the_trace(workloads: Workloads) -> None:
    assert ANCHORS == (2, 4)
    read, traced = workloads.searched(KNOBS, 7), workloads._trace(KNOBS, 7)
    assert {str(call) for call in read.calls} == {str(call) for call in traced.calls}
    assert np.array_equal(read.block_bytes, traced.block_bytes)


def test_each_knob_and_length_has_a_file_of_its_own(workloads: Workloads) -> None:
    other = Workloads(ModelSpec(config=TINY), DataSpec(sequence_length=32))
    paths = {workloads._path(KNOBS, 2), workloads._path(KNOBS, 3), other._path(KNOBS, 2)}
    assert len(paths) == 3


ADAPTED = ModelSpec.model_validate({"config": TINY, "lora": {"r": 2, "alpha": 2, "target_modules": ["dense"]}})


def test_pefts_version_is_asked_where_it_adapts_the_model_and_only_there() -> None:
    assert set(made_by(ADAPTED)) - set(made_by(ModelSpec(config=TINY))) == {"peft"}


def test_without_peft_an_adapter_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr("planner.libraries.import_module", None)
    said: list[str] = []
    with pytest.raises(RigplanError, match=r"model\.lora needs peft, which is not installed; pip install peft"):
        Workloads(ADAPTED, DataSpec(sequence_length=64), said.append).at(KNOBS, 2)
    assert said == []


def test_a_total_does_not_change_the_workload(workloads: Workloads) -> None:
    other = Workloads(ModelSpec(config=TINY), DataSpec(sequence_length=64, total="10 steps"))
    assert other._path(KNOBS, 2) == workloads._path(KNOBS, 2)


def test_reading_a_workload_needs_no_torch(workloads: Workloads, tmp_path: Path) -> None:
    save(workloads.at(KNOBS, 2), tmp_path / "kept.npz")
    code = (
        "import sys; from pathlib import Path; from planner.cache import load; "
        f"assert load(Path({str(tmp_path / 'kept.npz')!r})) is not None; "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_edited_module_is_another_model_however_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mynets"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('nothing is run to look')\n")
    monkeypatch.chdir(tmp_path)
    for where in ("mynets/small.py:make", "mynets.small:make"):
        (package / "small.py").write_text("width = 1\n")
        before = contents(ModelSpec(module=where))
        (package / "small.py").write_text("width = 2\n")
        assert (before, contents(ModelSpec(module=where))) == ("width = 1\n", "width = 2\n")
    assert contents(ModelSpec(module="mynets.absent:make")) == ""
