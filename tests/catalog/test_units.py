"""Quantities as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog import units
from catalog.errors import RigplanError
from catalog.units import DataTotal


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80 GiB", 80 * 2**30),
        ("39GiB", 39 * 2**30),
        ("64 MiB", 64 * 2**20),
        ("512 GB", 512 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("64G", 64 * 2**30),
        (1024, 1024),
    ],
)
def test_sizes_read_as_bytes(text: str | int, size_bytes: int) -> None:
    assert units.parse_bytes(text) == size_bytes


def test_a_size_without_unit_asks_for_one() -> None:
    with pytest.raises(RigplanError, match=r"'80' has no unit; wanted a size such as \"80 GiB\""):
        units.parse_bytes("80")


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("3.35 TB/s", 3.35e12), ("450GB/s", 450e9), ("400 Gb/s", 50e9), ("200 Gbit/s", 25e9), ("100 Gbps", 12.5e9)],
)
def test_a_small_b_means_bits_and_a_capital_one_bytes(text: str, bytes_per_s: float) -> None:
    assert units.parse_bandwidth(text) == pytest.approx(bytes_per_s)


def test_a_bandwidth_without_a_time_is_refused() -> None:
    with pytest.raises(RigplanError, match="not a bandwidth"):
        units.parse_bandwidth("80 GB")


@pytest.mark.parametrize(
    ("text", "number"), [("300B", 3e11), ("1.28M", 1.28e6), ("143,000", 143000), ("2 billion", 2e9), ("1e6", 1e6)]
)
def test_counts(text: str, number: float) -> None:
    assert units.parse_count(text) == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "total"),
    [
        ("300B tokens", DataTotal("tokens", 3e11)),
        ("300 billion tokens", DataTotal("tokens", 3e11)),
        ("143000 steps", DataTotal("steps", 143000)),
        ("1.2M samples", DataTotal("samples", 1.2e6)),
        ("50k images", DataTotal("samples", 50000)),
        ("90 epochs of 1.28M samples", DataTotal("epochs", 90, 1.28e6)),
        ("90 epochs of 1.28 million samples", DataTotal("epochs", 90, 1.28e6)),
        ("3 epochs of 10k", DataTotal("epochs", 3, 1e4)),
    ],
)
def test_totals_of_data(text: str, total: DataTotal) -> None:
    assert units.parse_total(text) == total


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("300 bananas", "'300 bananas' is not an amount of data; wanted"),
        ("300B tokes", "Did you mean tokens"),
        ("0 tokens", "no data at all"),
        ("-5 steps", "negative"),
        ("90 epochs", "does not say how long an epoch is"),
        ("3 epochs of 0 samples", "empty epoch"),
        ("5 steps of 3 samples", "after the unit"),
        ("143000", "is not an amount of data"),
        ("many tokens", "'many' is not a count"),
        ("", "is not an amount of data"),
    ],
)
def test_a_wrong_total_says_what_was_wanted_in_one_line(text: str, reason: str) -> None:
    with pytest.raises(RigplanError, match=reason) as error:
        units.parse_total(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "amount_usd"), [("$20,000", 20000), ("20k USD", 20000), ("2.5", 2.5), (7, 7)])
def test_money(text: str | int, amount_usd: float) -> None:
    assert units.parse_usd(text) == pytest.approx(amount_usd)


def test_wrong_money_is_refused() -> None:
    with pytest.raises(RigplanError, match="not an amount of money"):
        units.parse_usd("a lot")


@pytest.mark.parametrize(
    ("text", "duration_s"), [("90 days", 7.776e6), ("12h", 43200), ("35 us", 35e-6), ("2 min", 120)]
)
def test_durations(text: str, duration_s: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(duration_s)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(RigplanError):
        units.parse_bytes(value)


def test_printing() -> None:
    assert units.gib(79.1 * units.GIB) == "79.10 GiB"
    assert units.gib(40 * units.MIB) == "40.0 MiB"
    assert units.seconds(0.4181) == "418 ms"
    assert units.seconds(3.214) == "3.21 s"
    assert units.seconds(38 * units.DAY_S) == "38 days"
    assert units.days(133.24) == "133 days"
    assert units.days(0.5) == "12 h"
    assert units.days(1.5 / 24) == "1.5 h"
    assert units.days(45 / 1440) == "45 min"
    assert units.days(30 / 86_400) == "30 s"
    assert units.usd(12345.6) == "12,346 USD"
    assert units.usd(2.5) == "2.50 USD"
    assert units.flop_rate(989.4e12) == "989.4 TFLOP/s"
    assert units.flop_rate(1979e12) == "1,979 TFLOP/s"
    assert units.bandwidth(3.35e12) == "3.35 TB/s"
    assert units.count(3e11) == "300B"
    assert units.count(143000) == "143,000"
    assert str(DataTotal("epochs", 90, 1.28e6)) == "90 epochs of 1.28M samples"


@given(st.sampled_from(["tokens", "steps", "samples"]), st.integers(min_value=1, max_value=999_999))
def test_a_total_reads_back_as_it_is_printed(kind: str, amount: int) -> None:
    total = units.parse_total(f"{amount} {kind}")
    assert units.parse_total(str(total)) == total


@given(st.integers(min_value=0, max_value=2**50))
def test_a_plain_number_is_bytes(size: int) -> None:
    assert units.parse_bytes(size) == units.parse_bytes(f"{size} B") == size
