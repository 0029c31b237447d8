"""Parameters and FLOP of the presets, against what torch counts itself on the same models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from catalog import presets
from planner import trace
from planner.cache import TraceKnobs
from planner.operators import UNKNOWN, describe
from planner.spec import DataSpec, ModelSpec
from planner.workload import CALL, Workload

# Plain attention, whose products torch's counter sees.
KNOBS = TraceKnobs("fp32", "eager", "none", "sgd", "foreach", None, (8, 0))
# Of audio a label for each second frame; spectrograms keep their length, images their size.
SHORT_TOKENS, SHORT_AUDIO, SHORT_LABELS = 32, 4000, 6
AUDIO, FIXED = ("wav2vec2",), ("whisper",)
EXPERTS_A_TOKEN = {
    "mixtral": 2,
    "olmoe": 8,
    "qwen3_moe": 8,
    "gpt_oss": 4,
    "deepseek_v3": 8,
}  # of their papers and cards
# One preset of each architecture whose trace takes a second or two.
SAMPLE = ("pythia-14m", "t5-small", "deit-tiny", "resnet-18")


def _asked(preset: presets.Preset) -> tuple[ModelSpec, DataSpec]:
    data = DataSpec()
    if preset.family in AUDIO:
        data = DataSpec(sequence_length=SHORT_AUDIO, target_length=SHORT_LABELS)
    elif preset.sequence_length is not None and preset.family not in FIXED:
        data = DataSpec(sequence_length=SHORT_TOKENS)
    return ModelSpec(name=preset.name, attention=("eager",)), data


def _traced(workload: Workload) -> tuple[float, float, set[str]]:
    """FLOP of the micro-step: of the operators that torch counts, of experts, which it does not; and the operators
    that are not known."""
    events = workload.segments["micro_step"]
    times = Counter(events.values[events.codes == CALL].tolist())
    counted = {str(operator).removeprefix("aten.") for operator in flop_registry}
    flop: Counter[str] = Counter()
    unknown: set[str] = set()
    for at, count in times.items():
        operator = describe(workload.calls[at])
        if operator.kind == UNKNOWN:
            unknown.add(operator.variant)
        if operator.flop:
            flop["counted" if operator.variant in counted else operator.kind] += operator.flop * count
    assert set(flop) <= {"counted", "grouped_matmul"}
    return flop["counted"], flop["grouped_matmul"], unknown


def _of_experts(workload: Workload, preset: presets.Preset) -> float:
    """Each token goes through its experts forward and twice backward: the grouped products of a model with experts."""
    chosen = EXPERTS_A_TOKEN.get(str(preset.config["model_type"]), 0)
    matrices = [item for item in workload.parameters if ".experts." in item.name and len(item.shape) == 3]
    return 6.0 * SHORT_TOKENS * chosen * sum(item.elements // item.shape[0] for item in matrices)


def _compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace runs once; torch's counter stands before the recorder and sees the same forward and backward."""
    preset = presets.find(name)
    counter = FlopCounterMode(display=False)
    plain = trace._micro_step

    def counted(*arguments: Any) -> None:
        with counter:
            plain(*arguments)

    monkeypatch.setattr(trace, "_micro_step", counted)
    workload = trace.trace(*_asked(preset), KNOBS, 1)
    assert workload.parameter_count == preset.parameters
    flop, of_experts, unknown = _traced(workload)
    assert not unknown
    assert flop == pytest.approx(counter.get_total_flops(), rel=0.005)
    assert of_experts == pytest.approx(_of_experts(workload, preset), rel=0.005)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_preset_has_its_parameters_and_the_flop_that_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compared(name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [preset.name for preset in presets.presets() if preset.name not in SAMPLE])
def test_every_other_preset_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compared(name, monkeypatch)
