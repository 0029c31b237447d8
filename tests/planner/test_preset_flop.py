"""Parameters and FLOP of the presets, against what torch counts itself on the same models."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from catalog import presets
from planner import trace
from planner.cache import TraceKnobs
from planner.operators import UNKNOWN, describe
from planner.spec import DataSpec, ModelSpec
from planner.workload import CALL, Workload

# Plain attention, whose products torch's counter sees.
KNOBS = TraceKnobs("fp32", "eager", "none", "sgd", "foreach", None, (8, 0))
SHORT_TOKENS, SHORT_AUDIO = 32, 4000  # samples of audio; spectrograms keep their length, images their size
AUDIO, FIXED = ("wav2vec2",), ("whisper",)
# One preset of each architecture whose trace takes a second or two.
SAMPLE = ("pythia-14m", "t5-small", "deit-tiny", "resnet-18")


def _asked(preset: presets.Preset) -> tuple[ModelSpec, DataSpec]:
    data = DataSpec()
    if preset.family in AUDIO:
        data = DataSpec(sequence_length=SHORT_AUDIO)
    elif preset.sequence_length is not None and preset.family not in FIXED:
        data = DataSpec(sequence_length=SHORT_TOKENS)
    return ModelSpec(name=preset.name, attention=("eager",)), data


def _traced(workload: Workload) -> tuple[float, set[str]]:
    """FLOP of the micro-step, and the operators in it that are not known."""
    events = workload.segments["micro_step"]
    times = Counter(events.values[events.codes == CALL].tolist())
    operators = {at: describe(workload.calls[at]) for at in times}
    unknown = {operator.variant for operator in operators.values() if operator.kind == UNKNOWN}
    return sum(operators[at].flop * count for at, count in times.items()), unknown


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
    flop, unknown = _traced(workload)
    assert not unknown
    assert flop == pytest.approx(counter.get_total_flops(), rel=0.005)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_preset_has_its_parameters_and_the_flop_that_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compared(name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [preset.name for preset in presets.presets() if preset.name not in SAMPLE])
def test_every_other_preset_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _compared(name, monkeypatch)
