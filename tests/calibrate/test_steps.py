"""Factors of real training steps: which runs are trained, what they tell, and that the profile carries it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibrate import cases, steps
from catalog import profile
from catalog.errors import RigplanError
from planner.spec import Spec

H200 = {"device": "NVIDIA H200", "total_bytes": 150109880320}


def _run(host_s: float, device_s: float, alone: dict[str, float] | None = None, busy_s: float = 0.0) -> steps.Run:
    record: dict[str, Any] = {"host_seconds": host_s, "pipelined_seconds": device_s}
    for phase in ("forward", "backward", "optimizer"):
        record |= {f"{phase}_host_seconds": host_s / 3, f"{phase}_seconds": device_s / 3}
    busy = {"forward": busy_s, "backward": busy_s}
    return steps.Run(record, None, 1, alone or {}, busy)  # type: ignore[arg-type]


def test_the_cases_are_specs_half_limited_by_the_host() -> None:
    listed = cases.load(steps.CASES)
    assert 8 <= len(listed) <= 10
    assert sum(case.name.startswith("host-") for case in listed) == 4
    assert sum(case.name.startswith("device-") for case in listed) == len(listed) - 4
    assert all(Spec.load(case.spec).training.micro_batch[0] for case in listed)
    tf32 = [case for case in listed if case.spec["training"]["precision"] == "tf32"]
    assert len(tf32) >= steps.FEWEST_RUNS


@pytest.mark.slow
def test_every_case_fits_16_gigabytes() -> None:
    from planner.search import estimate

    for case in cases.load(steps.CASES):
        assert estimate(case.spec, timed=False).memory.device_bytes < 16e9, case.name


def test_the_cases_are_trained_in_a_process_of_their_own_on_the_gpu_that_is_there() -> None:
    seen: dict[str, Any] = {}

    def execute(command: list[str], **settings: Any) -> None:
        seen.update(command=command, cases=yaml.safe_load(Path(command[3]).read_text()))
        Path(command[command.index("-o") + 1]).write_text('{"name": "host-bert", "spec": {}}\n')

    records = steps.trained("rtx-4090", 0.5, print, execute)
    assert records == [{"name": "host-bert", "spec": {}}]
    assert seen["command"][1:3] == ["-m", "calibrate.train"]
    assert seen["command"][-4:] == ["--minutes", "0.500", "--timeout", "60"]
    assert seen["cases"]["defaults"]["hardware"] == {"gpu": "rtx-4090"}
    assert len(seen["cases"]["cases"]) == len(cases.load(steps.CASES))


def test_a_process_that_cannot_start_gives_no_records_and_says_so() -> None:
    def execute(command: list[str], **settings: Any) -> None:
        raise OSError("no memory")

    told: list[str] = []
    assert steps.trained("rtx-4090", 0.5, told.append, execute) == []
    assert told == ["training steps ended early: no memory"]


def test_host_factors_are_the_median_over_runs_that_the_host_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "host_work", lambda workload, phase: 1000)
    slow_device = _run(0.03, 3.0)
    waited = _run(9.0, 9.0, busy_s=3.0)  # the host waits while the device works through the phase
    waited = replace(waited, alone={"": 9.0})
    found = steps.host_factors([_run(0.09, 0.09), _run(0.06, 0.06), _run(0.12, 0.12), slow_device, waited])
    assert found["host_forward_op_s"].value == pytest.approx(0.03 / 1000)
    assert found["host_backward_op_s"].source == "3 training runs limited by the host"
    assert found["host_optimizer_unit_s"].value == pytest.approx(0.025 / 1000)  # the lower quartile of 20, 30, 40


def test_the_sustained_ratio_is_what_long_runs_take_more_than_short_timings() -> None:
    half = [_run(0.01, 1.1 * size + 0.2, {"sustained_half_ratio": size, "": 0.2}) for size in (1.0, 2.0, 3.0)]
    found = steps.sustained_factors([*half, _run(1.0, 1.0, {"sustained_half_ratio": 0.1})])
    assert found["sustained_half_ratio"].value == pytest.approx(1.1, rel=1e-3)
    assert found["sustained_half_ratio"].source == "3 training runs limited by the device"
    assert "sustained_tf32_ratio" not in found  # no run multiplies in TF32


def test_without_runs_limited_by_the_device_there_is_no_ratio() -> None:
    assert steps.sustained_factors([_run(1.0, 1.0, {"sustained_half_ratio": 0.5})] * 5) == {}
    assert steps.sustained_factors([]) == {}


def _profile(path: Path) -> Path:
    known = {"kept": profile.Factor(1.0, "s"), "host_forward_op_s": profile.Factor(1.0, "s")}
    profile.save(profile.Profile("mine", "h200-sxm", "measured", 1, {}, {}, {}, known, {}), path)
    return path


def test_the_profile_carries_the_fitted_factors_beside_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "host_work", lambda workload, phase: 1000)
    monkeypatch.setattr(steps, "compiled_work", lambda workload: (0, 0))
    monkeypatch.setattr(steps, "runs", lambda *_: [_run(0.09, 0.09)])
    path = _profile(tmp_path / "mine.json")
    fitted = steps.improve(path, [], print)
    factors = profile.load(path).factors
    assert factors["kept"].value == 1.0
    assert factors["host_forward_op_s"].value == pytest.approx(0.03 / 1000)
    assert set(fitted) == {"host_forward_op_s", "host_backward_op_s", "host_optimizer_unit_s"}


def test_records_that_tell_nothing_are_refused_and_the_profile_is_left_alone(tmp_path: Path) -> None:
    path = _profile(tmp_path / "mine.json")
    before = path.read_bytes()
    told: list[str] = []
    records = [
        {"name": "full", "spec": {}, "oom": True, "message": "out of memory"},
        {"name": "foreign", "spec": {}, "pipelined_seconds": 1.0, "device": "NVIDIA A40", "total_bytes": 47 << 30},
        {"name": "odd", "spec": {"model": {"name": "no-such-model"}}, "pipelined_seconds": 1.0, **H200},
    ]
    with pytest.raises(RigplanError, match="found 0 timed training runs on h200-sxm"):
        steps.improve(path, records, told.append)
    assert path.read_bytes() == before
    assert told[0] == "left out full: out of memory"
    assert told[1] == "left out foreign: it ran on a40, and the profile is of h200-sxm"
    assert told[2].startswith("left out odd: ")


def test_host_factors_lie_between_machines_however_many_runs_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "host_work", lambda workload, phase: 1000)
    slow, fast = _run(0.12, 0.12), _run(0.03, 0.03)
    runs = [replace(run, record={**run.record, "machine": name}) for run, name in ((slow, "a"),) * 3 + ((fast, "b"),)]
    assert steps.host_factors(runs)["host_forward_op_s"].value == pytest.approx(0.02 / 1000)  # of 40 and 10


def test_records_are_read_from_a_run_of_train_and_from_a_calibration(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    record = {"name": "mine", "spec": {}}
    path.write_text("\n".join(json.dumps(line) for line in (record, {"call": []}, {"training": record})))
    assert steps.read(path, path) == 4 * [record | {"machine": path.name}]
    path.write_text("[1]\n")
    with pytest.raises(RigplanError, match="wanted records of `calibrate train`"):
        steps.read(path)


def test_a_compiled_launch_takes_what_entering_the_programs_leaves_between_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "compiled_work", lambda workload: (2, 1000))
    slow, fast, device_bound = _run(0.069, 0.069), _run(0.03, 0.03), _run(0.03, 3.0)
    runs = [replace(run, record={**run.record, "machine": name}) for run, name in ((slow, "a"), (fast, "b"))]
    found = steps.compiled_factors([*runs, device_bound], enter_s=2e-3)
    spent = (0.046 - 0.004, 0.02 - 0.004)  # of forward and backward, two entries taken off
    assert found["host_compiled_launch_s"].value == pytest.approx((spent[0] * spent[1]) ** 0.5 / 1000)
    assert found["host_compiled_launch_s"].source == "2 compiled runs limited by the host on 2 machines"
    assert steps.compiled_factors([device_bound], enter_s=2e-3) == {}
