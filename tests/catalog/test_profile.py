"""Profiles: read, written, and put together for devices that have none of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from catalog.ceilings import ceiling
from catalog.errors import RigplanError
from catalog.profile import PROFILES, Factor, Profile, Samples, from_json, load, own, relatives, resolve, save, to_json
from catalog.store import accelerator, accelerator_names


def small(device: str = "h200-sxm", known: str = "measured") -> Profile:
    samples = Samples(
        device=device, kind="pointwise", dtype="any", source="test", variants=("add", "mul"),
        variant=np.array([0, 1]), shape=np.array([[1e6, 0.0], [2e6, 1.0]]),
        work=np.array([[0.0, 4e6, 2e6], [0.0, 8e6, 4e6]]), seconds=np.array([4.12345678e-6, 6e-6]),
    )  # fmt: skip
    return Profile(
        name="test", accelerator=device, known=known, method_version=3, provenance={"torch": "2.11"},  # type: ignore[arg-type]
        points={"add.Tensor(...)": 1e-6}, curves={samples.key: (samples,)},
        factors={"host_view_s": Factor(1.5e-6, "s", "measured", 0.1)}, residuals={"pointwise": 0.02},
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"mine.{ending}"
    save(small(), path)
    again = load(path)
    assert to_json(again) == to_json(small())
    assert again.curves["pointwise/any"][0].seconds[0] == pytest.approx(4.12345678e-6, rel=1e-4)
    assert again.factor("host_view_s") == 1.5e-6


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.json.gz", "two.json.gz"):
        save(small(), tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}'])
def test_a_file_that_is_no_profile_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RigplanError, match="is not a profile") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_profile_and_a_missing_factor_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(RigplanError, match="no profile"):
        load(tmp_path / "none.json")
    with pytest.raises(RigplanError, match="no factor 'speed'"):
        small().factor("speed")


def test_every_shipped_profile_loads_names_its_device_and_its_source() -> None:
    paths = sorted(PROFILES.glob("*.json*"))
    assert len(paths) >= 15
    for path in paths:
        profile = load(path)
        assert profile.accelerator in accelerator_names(), path
        assert profile.name
        for layers in profile.curves.values():
            for samples in layers:
                assert samples.source, path
                assert len(samples) == len(samples.shape) == len(samples.work) == len(samples.variant)
                assert np.all(samples.seconds > 0)


def test_shipped_prior_data_stay_below_two_megabytes() -> None:
    assert sum(path.stat().st_size for path in PROFILES.glob("*.json*") if load(path).known == "prior") < 2_000_000


def test_every_catalog_device_resolves_to_a_profile_with_products_and_host_factors() -> None:
    for name in accelerator_names():
        profile, known = resolve(accelerator(name))
        assert profile.accelerator == name
        assert known in ("measured", "transferred", "prior")
        assert any(key.startswith("matmul/") for key in profile.curves), name
        assert profile.factor("host_forward_op_s") > profile.factor("host_view_s") > 0


def test_own_samples_lie_on_top_of_a_relatives() -> None:
    layers = resolve(accelerator("a100-sxm4-80gb"))[0].curves["matmul/bf16"]
    assert [samples.device for samples in layers][-1] == "a100-sxm4-80gb"
    assert len(layers) == 2


def test_a_device_without_samples_takes_a_measured_relative_and_its_own_generation_on_top() -> None:
    assert own("rtx-4090") is None
    layers = resolve(accelerator("rtx-4090"))[0].curves["matmul/bf16"]
    assert [(samples.device, samples.measured) for samples in layers] == [("h200-sxm", True), ("l40s", False)]


def test_a_profile_of_a_users_own_file_wins(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    save(small("rtx-4090"), path)
    profile, known = resolve(accelerator("rtx-4090"), str(path))
    assert known == "measured"
    assert profile.points == {"add.Tensor(...)": 1e-6}
    assert profile.factor("host_view_s") == 1.5e-6
    assert "matmul/bf16" in profile.curves  # kinds that were not measured still come from relatives


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("a100-sxm4-80gb", "bf16", 264.5),
        ("h100-sxm5-80gb", "bf16", 783.7),
        ("rtx-3090", "bf16", 76.6),
        ("t4", "bf16", 2.3),
    ],
)  # source: zzc0721/torch-performance-test-data
def test_published_ceilings_are_used(name: str, dtype: str, tflops: float) -> None:
    assert ceiling(accelerator(name)).rate(dtype) == tflops * 1e12


def test_an_unpublished_device_gets_its_classs_share_of_the_peak() -> None:
    device = accelerator("h200-nvl")
    found = ceiling(device)
    assert 0.6 * device.peak("bf16") < found.rate("bf16") < device.peak("bf16")
    assert 0.7 * device.memory_bytes_per_s < found.memory_bytes_per_s < device.memory_bytes_per_s


@pytest.mark.parametrize(("with_ecc", "without"), [("a40", "rtx-a6000"), ("l40", "rtx-6000-ada")])
def test_gddr6_that_keeps_ecc_on_streams_a_smaller_share_of_its_bandwidth(with_ecc: str, without: str) -> None:
    share = {name: ceiling(at).memory_bytes_per_s / at.memory_bytes_per_s for name in (with_ecc, without)
             if (at := accelerator(name))}  # fmt: skip
    assert share[with_ecc] == pytest.approx(0.77)  # NeuSight's elementwise kernels: L4 234 of 300 GB/s, T4 242 of 320
    assert share[without] == pytest.approx(0.85)


def test_turing_and_volta_emulate_bf16_below_their_fp32_rate() -> None:
    for name in ("v100-sxm2-32gb", "titan-rtx", "quadro-rtx-8000"):
        found = ceiling(accelerator(name))
        assert found.rate("bf16") < found.rate("fp32") < found.rate("fp16")


def test_relatives_are_catalog_devices() -> None:
    for name in accelerator_names():
        chain = relatives(accelerator(name))
        assert set(chain) <= set(accelerator_names()), name
        assert len(chain) >= 3


def test_plain_data_of_a_profile_is_json() -> None:
    assert to_json(from_json(json.loads(json.dumps(to_json(small()))))) == to_json(small())


def test_bf16_timings_of_the_generation_stand_for_fp16_that_was_not_timed() -> None:
    curves = resolve(accelerator("rtx-4090"))[0].curves
    assert [(layer.device, layer.dtype) for layer in curves["matmul/f16"]] == [("h200-sxm", "f16"), ("l40s", "bf16")]
    assert curves["matmul/bf16"][-1] is curves["matmul/f16"][-1]
