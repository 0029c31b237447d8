"""Host factors, measured on a cpu in small: names, units, and what must be cheaper than what."""

import pytest

from calibrate import host


@pytest.fixture(scope="module")
def found() -> dict[str, host.HostFactor]:
    small = pytest.MonkeyPatch()
    small.setattr(host, "OPERATORS", 60)
    small.setattr(host, "SAMPLES", 5)
    try:
        return {factor.name: factor for factor in host.factors("cpu")}
    finally:
        small.undo()


def test_the_host_model_finds_its_factors(found: dict[str, host.HostFactor]) -> None:
    wanted = "host_forward_op_s host_view_s host_backward_op_s host_module_call_s host_no_grad_op_s host_synchronize_s"
    assert set(wanted.split()) <= set(found)
    assert all(factor.unit == "s" for factor in found.values())


def test_quartiles_enclose_the_median(found: dict[str, host.HostFactor]) -> None:
    for factor in found.values():
        assert 0 <= factor.low <= factor.value <= factor.high < 1e-2, factor


def test_a_linear_layer_costs_the_host_more_than_a_view(found: dict[str, host.HostFactor]) -> None:
    assert found["host_forward_linear_s"].value > found["host_view_s"].value > 0


def test_a_factor_is_a_line_of_the_sweep(found: dict[str, host.HostFactor]) -> None:
    line = found["host_view_s"].line()
    assert line["factor"] == "host_view_s"
    assert line["value"] == found["host_view_s"].value
