"""Fitting measurements made from a known law gives the law back, between the points that were measured."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.fit import METHOD_VERSION, fit, held_out_errors, read_lines
from catalog.errors import RigplanError
from catalog.profile import load, resolve, save
from catalog.store import accelerator
from planner.call import Call, TensorSpec, to_json
from planner.cost import Pricing, seconds
from planner.operators import describe
from planner.roofline import rates

DEVICE = "h200-sxm"
HEADER = {"header": {"accelerator": DEVICE, "torch": "2.11", "cuda": "13.0", "method_version": METHOD_VERSION}}


def product(m: int, n: int, k: int) -> Call:
    a, b = TensorSpec("bf16", (m, k)), TensorSpec("bf16", (k, n), (1, k))
    return Call("mm.default", (a, b), (), (TensorSpec("bf16", (m, n)),))


def stream(elements: int) -> Call:
    x = TensorSpec("bf16", (elements,))
    return Call("mul.Tensor", (x, x), (), (x,))


def law_s(call: Call) -> float:
    """The device that these tests invent: 3 us, 700 TFLOP/s falling off for small products, 4 TB/s."""
    operator = describe(call)
    if operator.kind == "matmul":
        _, m, n, k, *_ = operator.shape
        rate = 700e12 / (1 + 200 / m) / (1 + 300 / n) / (1 + 150 / k)
        return 3e-6 + operator.flop / rate
    return 3e-6 + operator.bytes_moved / (4e12 * operator.bytes_moved / (operator.bytes_moved + 1e6))


def measured(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    yield HEADER
    yield {"factor": "host_forward_op_s", "value": 9e-6, "unit": "s"}
    for _ in range(count):
        m, n, k = (8 * int(2 ** rng.uniform(4, 10)) for _ in range(3))
        for call in (product(m, n, k), stream(int(2 ** rng.uniform(12, 28)))):
            noisy = law_s(call) * math.exp(rng.normal(0, 0.01))
            yield {"call": to_json(call), "seconds": noisy, "low_seconds": noisy, "high_seconds": noisy, "tf32": False}


@pytest.fixture(scope="module")
def pricing() -> Pricing:
    profile = fit(measured(150))
    return Pricing(
        accelerator(DEVICE), replace(resolve(accelerator(DEVICE))[0], curves=profile.curves, known="measured")
    )


def test_unseen_shapes_are_priced_within_four_percent_of_the_law(pricing: Pricing) -> None:
    rng = np.random.default_rng(7)
    errors = []
    for _ in range(60):
        m, n, k = (8 * int(2 ** rng.uniform(4.5, 9.5)) for _ in range(3))
        for call in (product(m, n, k), stream(int(2 ** rng.uniform(13, 27)))):
            errors.append(abs(math.log(seconds(describe(call), None, pricing).seconds / law_s(call))))
    assert np.median(errors) < 0.04
    assert np.quantile(errors, 0.9) < 0.12


def test_the_price_of_a_measured_device_says_measured(pricing: Pricing) -> None:
    assert seconds(describe(product(512, 512, 512)), None, pricing).known == "measured"


def test_the_reported_residual_is_that_of_shapes_held_out() -> None:
    profile = fit(measured(150))
    for kind, key in (("matmul", "matmul/bf16"), ("pointwise", "pointwise/any")):
        again = float(np.median(held_out_errors(profile.curves[key][0], rates(accelerator(DEVICE)))))
        assert profile.residuals[kind] == pytest.approx(again, rel=1e-3)
        assert 0.001 < profile.residuals[kind] < 0.05


def test_exact_points_factors_and_provenance_are_kept(tmp_path: Path) -> None:
    lines = list(measured(15))
    path = tmp_path / "sweep.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    profile = fit(read_lines(path))
    call = product(1, 2, 3)
    assert len(profile.points) == sum("call" in line for line in lines)
    assert str(call) not in profile.points
    assert profile.factor("host_forward_op_s") == 9e-6
    assert (profile.known, profile.method_version) == ("measured", METHOD_VERSION)
    assert profile.provenance["torch"] == "2.11"
    save(profile, tmp_path / "profile.json.gz")
    assert load(tmp_path / "profile.json.gz").points.keys() == profile.points.keys()


def test_a_call_timed_twice_counts_once_with_its_middle() -> None:
    line = {"call": to_json(stream(4096)), "tf32": False}
    profile = fit([HEADER, *({**line, "seconds": value} for value in (1e-6, 2e-6, 9e-6))])
    assert list(profile.points.values()) == [2e-6]
    assert len(profile.curves["pointwise/any"][0]) == 1


def test_tf32_products_have_points_and_curves_of_their_own() -> None:
    x = TensorSpec("f32", (256, 256))
    call = Call("mm.default", (x, x), (), (x,))
    lines = [HEADER, *({"call": to_json(call), "seconds": 1e-5 / (1 + tf32), "tf32": tf32} for tf32 in (False, True))]
    profile = fit(lines)
    assert sorted(profile.points.values()) == [5e-6, 1e-5]
    assert {"matmul/f32", "matmul/tf32"} == set(profile.curves)


@pytest.mark.parametrize("lines", [[], [HEADER], [{"call": to_json(stream(8)), "seconds": 1e-6}]])
def test_measurements_without_a_device_or_without_a_call_are_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(RigplanError, match="rigplan calibrate run"):
        fit(lines)


def test_a_torn_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text('{"header": {"acc')
    with pytest.raises(RigplanError, match=r"torn\.jsonl"):
        read_lines(path)
