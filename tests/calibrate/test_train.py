"""Real training steps of tiny models on the host, and the runner of case lists."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from calibrate import cases, history, loop, train
from catalog import presets
from catalog.errors import RigplanError
from planner import optimizers
from planner.spec import Spec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
LLAMA_PARAMETERS = 2 * 128 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32
renamed_in_transformers = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
H200_CASES = Path(__file__).parents[1] / "measured" / "cases" / "h200_memory.yaml"
ROOT = Path(__file__).parents[2]


def spec(model: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    return {
        "model": model or {"config": LLAMA},
        "data": {"sequence_length": 16},
        "training": {"micro_batch": 2} | training,
        "hardware": {"gpu": "h200-sxm"},
    }


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a tiny model take milliseconds: a tenth of a second of them is enough."""
    monkeypatch.setattr(train, "LEAST_SECONDS", 0.1)


def test_a_run_says_what_it_trained_and_how_long_a_step_took() -> None:
    record = train.run(spec(), steps=5, device="cpu")
    assert record["parameters"] == record["trainable_parameters"] == LLAMA_PARAMETERS
    assert record["parameter_bytes"] == 4 * LLAMA_PARAMETERS, "mixed precision keeps fp32 weights"
    assert record["micro_batch"] == 2
    assert record["accumulation"] == 1
    assert record["loss"] == pytest.approx(4.85, abs=0.3), "ln 128: random weights know nothing"
    assert record["timed_steps"] >= 5
    assert record["step_low_seconds"] <= record["step_seconds"] <= record["step_high_seconds"]
    parts = sum(record[f"{phase}_seconds"] for phase in train.PHASES)
    assert parts == pytest.approx(record["step_seconds"], rel=0.3)
    assert record["peak_allocated_bytes"] is None, "the host has no caching allocator to ask"
    assert json.loads(json.dumps(record)) == record


def test_bf16_keeps_weights_in_two_bytes() -> None:
    record = train.run(spec(precision="bf16", optimizer="sgd"), steps=1, device="cpu")
    assert record["parameter_bytes"] == 2 * LLAMA_PARAMETERS


def test_a_spec_with_choices_is_no_run() -> None:
    with pytest.raises(RigplanError, match="found 2 combinations in the spec"):
        train.run(spec(precision=["bf16", "fp32"]), device="cpu")


@pytest.mark.parametrize("change", [{"sharding": "fsdp"}, {"offload": "all", "sharding": "fsdp"}])
def test_what_needs_several_gpus_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(RigplanError, match="a real run here is of one GPU"):
        train.run(spec(**change), device="cpu")


def test_accumulation_gives_the_gradient_of_the_mean() -> None:
    once = loop.prepare(Spec.load(spec(precision="fp32", max_grad_norm=None)), "cpu")
    twice = loop.prepare(Spec.load(spec(precision="fp32", max_grad_norm=None, accumulation=2)), "cpu")
    seen = []
    for training in (once, twice):
        phases: list[str] = []
        training.optimizer.zero_grad = lambda set_to_none: None  # type: ignore[method-assign, assignment]
        training.step(phases.append)
        seen.append(phases)
    assert seen == [["forward", "backward", "optimizer"], ["forward", "backward"] * 2 + ["optimizer"]]
    for one, two in zip(once.trainable, twice.trainable, strict=True):
        assert torch.equal(one, two), "the same batch twice has the mean of once"


def test_gradients_are_gone_after_a_step_and_the_graph_with_them() -> None:
    training = loop.prepare(Spec.load(spec()), "cpu")
    training.step()
    assert all(parameter.grad is None for parameter in training.trainable)
    assert training.loss is not None
    assert training.loss.grad_fn is None


def test_gradients_are_clipped_to_the_norm_asked_for() -> None:
    training = loop.prepare(Spec.load(spec(precision="fp32", max_grad_norm=0.001)), "cpu")
    training.optimizer.zero_grad = lambda set_to_none: None  # type: ignore[method-assign, assignment]
    training.step()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in training.trainable if p.grad is not None]))
    assert float(norm) == pytest.approx(0.001, rel=1e-3)


@renamed_in_transformers
def test_checkpointing_recomputes_every_block() -> None:
    training = loop.prepare(Spec.load(spec(precision="fp32", checkpointing="full")), "cpu")
    seen: Counter[str] = Counter()
    for name, block in training.module.named_modules():
        if name.endswith("mlp"):
            block.register_forward_pre_hook(lambda *_: seen.update(["mlp"]))
    training.step()
    assert seen["mlp"] == 2 * LLAMA["num_hidden_layers"], "once forward, once again in backward"


@renamed_in_transformers
def test_lora_trains_the_adapters_alone() -> None:
    model = {"config": LLAMA, "lora": {"r": 4, "alpha": 8, "target_modules": ["q_proj"]}}
    record = train.run(spec(model, optimizer="adamw"), steps=1, device="cpu")
    assert record["trainable_parameters"] == 2 * 2 * 4 * 32
    assert record["parameters"] == LLAMA_PARAMETERS + 2 * 2 * 4 * 32


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "adafactor", "muon"])
@pytest.mark.parametrize("implementation", ["foreach", "for-loop"])
def test_every_optimizer_moves_every_parameter(name: str, implementation: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 16), torch.nn.LayerNorm(16))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = optimizers.build_optimizer(name, implementation, module, real=True)
    (1e3 * module(torch.arange(8)) * torch.randn(8, 16)).sum().backward()  # large: a step of 1e-5 must show in fp32
    optimizer.step()
    moved = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert all(moved)


def test_muon_steps_hidden_matrices_and_adamw_the_rest() -> None:
    training = loop.prepare(Spec.load(spec(optimizer="muon")), "cpu")
    assert isinstance(training.optimizer, optimizers.Several)
    muon, adamw = training.optimizer.parts
    counts = [len(part.param_groups[0]["params"]) for part in (muon, adamw)]
    assert counts == [2 * 7, 2 + 2 * 2 + 1], "seven matrices a layer; embedding, head and norms are left"


def test_an_optimizer_of_a_missing_package_is_unsupported_in_one_line() -> None:
    with pytest.raises(RigplanError, match="unsupported: Lion needs the package lion_pytorch"):
        optimizers.build_optimizer("lion", "foreach", torch.nn.Linear(2, 2), real=True)


def test_a_module_without_a_loss_is_told() -> None:
    with pytest.raises(RigplanError, match="returned Tensor without a scalar loss"):
        loop.loss_of(torch.ones(3))


def test_a_loss_may_stand_in_a_dict() -> None:
    loss = torch.ones(())
    assert loop.loss_of({"loss": loss, "logits": torch.ones(3)}) is loss


def test_fp32_runs_without_tf32() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        loop.set_precision("fp32")
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
        loop.set_precision("tf32")
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("dropout", "mask"), [(0.0, False), (0.0, True)])
def test_the_attention_kernel_is_read_off_the_graph(dropout: float, mask: bool) -> None:
    q = torch.randn(1, 2, 8, 16, requires_grad=True)
    with train._attention_kernels() as kernels:
        given = torch.zeros(8, 8) if mask else None
        torch.nn.functional.scaled_dot_product_attention(q, q, q, given, dropout)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert kernels == {"flash": 1, "math": 1}


def test_an_allocators_events_are_kept_without_addresses(tmp_path: Path) -> None:
    trace = [
        {"action": "segment_alloc", "addr": 4096, "size": 2 << 20, "stream": 0},
        {"action": "alloc", "addr": 4096, "size": 512, "stream": 0},
        {"action": "alloc", "addr": 8192, "size": 1000, "stream": 0},
        {"action": "free_requested", "addr": 4096, "size": 512, "stream": 0},
        {"action": "free_completed", "addr": 4096, "size": 512, "stream": 0},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
    ]
    path = tmp_path / "new" / "case.json.gz"
    history.write(path, [{"step": 0, **history.compact(trace)}])
    (step,) = history.read(path)
    assert step["actions"] == "Aaaf"
    assert step["sizes"] == [2 << 20, 512, 1000, 512]
    assert step["blocks"] == [0, 0, 1, 0]
    assert not step["truncated"]


CASES = f"""
defaults: {{training: {{micro_batch: 2}}, data: {{sequence_length: 16}}}}
cases:
  - {{name: good, spec: {{model: {{config: {json.dumps(LLAMA)}}}, training: {{optimizer: sgd}}}}}}
  - {{name: unknown, spec: {{model: {{name: no-such-model}}}}}}
"""


def test_every_case_leaves_a_record_and_a_failure_does_not_stop_the_rest(tmp_path: Path) -> None:
    listed, output = tmp_path / "cases.yaml", tmp_path / "out.jsonl"
    listed.write_text(CASES, encoding="utf-8")
    loaded = cases.load(listed)
    output.write_text(
        "".join(json.dumps(cases.run_case(case, "cpu", None)) + "\n" for case in loaded), encoding="utf-8"
    )
    good, unknown = (json.loads(line) for line in output.read_text(encoding="utf-8").splitlines())
    assert good["name"] == "good"
    assert good["strategy"]["optimizer"] == "sgd"
    assert good["micro_batch"] == 2, "from the defaults"
    assert good["step_seconds"] > 0
    assert unknown["error"] == "unsupported"
    assert "no-such-model" in unknown["message"]
    assert "ms a step" in cases.told(good)


def _child(monkeypatch: pytest.MonkeyPatch, does: Any, timeout_seconds: float = 20.0) -> dict[str, Any]:
    monkeypatch.setattr(cases, "run_case", lambda case, device, history: does())
    return cases.isolated(cases.Case("it", {}), "cpu", None, timeout_seconds)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_case_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    record = _child(monkeypatch, lambda: {"pid": os.getpid()})
    assert record["pid"] != os.getpid()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_crash_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    record = _child(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert record["error"] == "crash"
    assert record["message"] == "ended with signal 9"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_case_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    record = _child(monkeypatch, lambda: time.sleep(60), timeout_seconds=0.3)
    assert record["error"] == "timeout"
    assert time.monotonic() - began < 10


def test_a_time_budget_leaves_out_the_last_cases(tmp_path: Path) -> None:
    listed = tmp_path / "cases.yaml"
    listed.write_text(CASES, encoding="utf-8")
    arguments = [str(listed), "-o", str(tmp_path / "out.jsonl"), "--device", "cpu", "--minutes", "0"]
    result = CliRunner().invoke(cases.main, arguments)
    assert result.exit_code == 0, result.output
    assert "left out the last 2 cases" in result.output


def test_a_list_with_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "cases.yaml"
    listed.write_text("cases: [{name: a, spec: {}}, {name: a, spec: {}}]", encoding="utf-8")
    with pytest.raises(RigplanError, match="found a twice"):
        cases.load(listed)


def test_the_h200_cases_are_single_runs_of_known_models_over_many_architectures() -> None:
    loaded = cases.load(H200_CASES)
    assert len(loaded) >= 60
    architectures = set()
    for case in loaded:
        asked = Spec.load(case.spec | {"model": _anchored(case.spec["model"])})
        assert loop.only_strategy(asked).micro_batch, case.name
        if asked.model.name is not None:
            preset = presets.lookup(asked.model.name)
            assert preset is not None, f"{case.name}: no preset {asked.model.name}"
            architectures.add(preset.config["model_type"])
        else:
            architectures.add(asked.model.module or asked.model.config["model_type"])  # type: ignore[index]
    assert len(architectures) >= 25
    strategies = [loop.only_strategy(Spec.load(case.spec | {"model": {"name": "gpt2"}})) for case in loaded]
    assert {s.precision for s in strategies} == {"fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"}
    assert sum(case.memory_fraction is not None for case in loaded) >= 3


def _anchored(model: dict[str, Any]) -> dict[str, Any]:
    return model | {"module": str(ROOT / model["module"])} if "module" in model else model


def test_a_failure_late_in_a_run_keeps_what_was_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> dict[str, Any]:
        raise ValueError("the clock stopped")

    monkeypatch.setattr(train, "_times", fails)
    record = train.run(spec(), device="cpu")
    assert record["error"] == "ValueError"
    assert record["stage"] == "timing"
    assert record["parameters"] == LLAMA_PARAMETERS
    assert "fails" in record["where"][-1]
    assert cases.told(record) == "ValueError: the clock stopped"


@pytest.mark.parametrize("name", ["unet", pytest.param("dit", marks=pytest.mark.slow), "lstm", "wavenet", "dlrm"])
def test_every_example_model_trains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner import model_factory

    small = {
        "unet": {"WIDTHS": (32, 32, 64, 64), "IMAGE": 16},
        "dit": {"WIDTH": 64, "DEPTH": 2, "HEADS": 4},
        "lstm": {"VOCABULARY": 100, "WIDTH": 16, "LENGTH": 8},
        "wavenet": {"SAMPLES": 32, "CYCLES": 1, "DEPTH": 3},
        "dlrm": {"ROWS": (100, 50)},
    }[name]
    factory = model_factory.load(f"{ROOT / 'examples' / 'models' / name}.py:make")
    for constant, value in small.items():
        monkeypatch.setitem(factory.__globals__, constant, value)  # type: ignore[attr-defined]
    module, inputs = factory(2)
    loss = loop.loss_of(module(**inputs))
    loss.backward()
    assert torch.isfinite(loss)
    unused = [key for key, parameter in module.named_parameters() if parameter.grad is None]
    # What the last layer of a WaveNet hands on is heard by nobody.
    assert unused == (["layers.2.residual.weight", "layers.2.residual.bias"] if name == "wavenet" else [])
