"""`rigplan gpus` and `rigplan prices`."""

from __future__ import annotations

import json
import re
import statistics
from datetime import date
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from catalog import price, store
from catalog.errors import RigplanError
from planner import catalog_commands
from planner.catalog_commands import gpus, prices


def _run(command: object, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)  # type: ignore[arg-type]
    assert result.exit_code == 0
    return result.output


class _Today(date):
    """A date whose today does not move."""

    day_of_test = (2026, 11, 30)

    @classmethod
    def today(cls) -> _Today:
        return cls(*cls.day_of_test)


@pytest.fixture(autouse=True)
def _fixed_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_commands, "date", _Today)


def test_one_gpu_as_json_is_an_object_with_the_promised_fields() -> None:
    device = json.loads(_run(gpus, "H200-SXM-141GB", "--json"))
    assert device["name"] == "h200-sxm"
    assert device["peak_flop_per_s"]["bf16"] == 989.4e12
    assert device["memory_bytes"] == 141 * 2**30
    assert device["usable_memory_bytes"] == pytest.approx(139.8 * 2**30, abs=1)
    assert device["memory_bytes_per_s"] == 4.8e12
    assert device["tdp_w"] == 700
    assert len(device["sources"]) >= 2
    assert device["compute_capability"] == "9.0"
    assert device["default_node"]["name"] == "dgx-h200"


@pytest.mark.parametrize("command", [gpus, prices])
def test_a_name_of_several_words_needs_no_quotes(command: object) -> None:
    assert _run(command, "a100", "80gb", "sxm") == _run(command, "a100 80gb sxm")


def test_all_gpus_as_json_are_a_list() -> None:
    devices = json.loads(_run(gpus, "--json"))
    assert [device["name"] for device in devices] == list(store.accelerator_names())
    assert all(device["sources"] for device in devices)


def test_the_table_of_gpus_has_a_line_each_and_fits_100_columns() -> None:
    lines = _run(gpus).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[2 : 2 + len(store.accelerator_names())]] == list(
        store.accelerator_names()
    )


@pytest.mark.parametrize("name", store.accelerator_names())
def test_the_page_of_a_gpu_shows_its_sources_and_fits_100_columns(name: str) -> None:
    page = _run(gpus, name)
    assert page.startswith(name + "\n")
    assert "source" in page
    assert "default node" in page
    long = [line for line in page.splitlines() if len(line) > 100]
    assert all("/" in line for line in long)  # only an address that cannot be broken


def test_the_page_says_what_was_assumed_and_what_is_not_native() -> None:
    assert "taken as the SXM4 module" in " ".join(_run(gpus, "A100 80GB").split())
    assert "no: emulated and about ten times slower than fp16" in _run(gpus, "t4")
    assert "no peer access" in _run(gpus, "4090")


def test_a_gpu_of_your_own_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    entry = {"name": "mine", "memory": "24 GiB", "memory_bandwidth": "900 GB/s", "peak": {"bf16": "70 TFLOP/s"}}
    path.write_text(yaml.safe_dump(entry))
    assert "set hardware.price.usd_per_gpu_hour" in _run(gpus, str(path))
    assert json.loads(_run(gpus, str(path), "--json"))["name"] == "mine"


@pytest.mark.parametrize("command", [gpus, prices])
def test_a_wrong_name_raises_the_one_error_of_the_project(command: object) -> None:
    with pytest.raises(RigplanError, match="write which one"):
        CliRunner().invoke(command, ["H100"], catch_exceptions=False)  # type: ignore[arg-type]


def test_prices_of_one_gpu_as_json() -> None:
    found = json.loads(_run(prices, "3090", "--json"))
    assert found["name"] == "rtx-3090"
    assert found["usd_per_gpu_hour"] == pytest.approx(0.20)
    assert found["cost_date"] == "2026-05-24"
    assert found["hourly"]["stale"] is True
    assert found["purchase"]["usd"] == 1070
    assert {offer["kind"] for offer in found["offers"]} >= {"on-demand", "spot", "street", "msrp", "academic"}
    assert all(offer["source"] for offer in found["offers"])


def test_a_gpu_without_an_hourly_price_says_why() -> None:
    found = json.loads(_run(prices, "titan-rtx", "--json"))
    assert found["usd_per_gpu_hour"] is None
    assert found["cost_source"].startswith("No hourly price for titan-rtx")
    assert "No hourly price for titan-rtx" in _run(prices, "titan-rtx")


def test_all_prices_as_json_are_a_list() -> None:
    found = json.loads(_run(prices, "--json"))
    assert len(found) > 80
    assert {"h200-sxm", "rtx-3090", "rtx-a6000"} <= {entry["name"] for entry in found}


def test_the_table_of_prices_fits_100_columns_and_marks_old_ones() -> None:
    lines = _run(prices).splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("rtx-3090 ") and "2026-05-24 !" in line for line in lines)
    assert any(line.startswith("h100-sxm5-80gb") and "2026-09-06" in line and "!" not in line for line in lines)


def test_the_prices_of_one_gpu_are_dated_and_sourced() -> None:
    page = _run(prices, "a6000")
    assert "A plan uses 0.47 USD per GPU-hour: on-demand, median of 11 offers by 8 providers." in page
    assert "OLD PRICES: the newest is 190 days old (2026-05-24). Before you budget, ask what a GPU costs today" in page
    assert "`rigplan prices --refresh`" in page
    assert re.search(r"^ +1  tardellirs/gpu-pricing src/data/offerings.json @8f09a68$", page, re.MULTILINE)


def test_the_rows_of_providers_add_up_to_the_median_that_a_plan_uses() -> None:
    page = _run(prices, "h100-sxm5-80gb")
    hourly = page.partition("each provider by the median of its offers")[2].partition("\n\n")[0]
    rows = [line.split() for line in hourly.splitlines()[3:]]
    *providers, (usd, _, _, offers, *dates) = rows
    assert f"{usd} USD per GPU-hour: on-demand, median of {offers} offers by {len(providers)} providers" in page
    assert sum(int(row[2]) for row in providers) == int(offers)
    assert statistics.median(float(row[0]) for row in providers) == float(usd)
    assert "".join(dates) == "2026-01-21to2026-09-06"
    assert "24 of the 28 offers are older than 90 days" in page


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["h100-sxm5-80gb", "rtx-4090", "titan-rtx"])
def test_the_prices_of_one_gpu_keep_to_the_terminal_with_whole_sources(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    page = _run(prices, name)
    assert max(map(len, page.splitlines())) <= columns
    told = "".join(page.partition("Sources")[2].split())
    for offer in price.offers(name):
        if offer.usd is None:
            assert "".join(offer.source.partition("; its source")[0].removeprefix("github ").split()) in told


def test_a_snapshot_older_than_90_days_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = price.snapshot_date()
    days = (date(*_Today.day_of_test) - date.fromisoformat(newest)).days
    assert f"Newest price of {newest}, {days} days ago." in _run(prices)
    monkeypatch.setattr(_Today, "day_of_test", (2028, 1, 1))
    assert "OLD PRICES" in _run(prices)
