"""Dated offers and the one rule that picks a number."""

from __future__ import annotations

import csv
from datetime import date
from statistics import median

import pytest

from catalog import price, store
from catalog.price import Offer

# Spellings of the price tables that leave the device open, or are of devices that the catalog does not hold.
OPEN = {"A100", "A100-PCIE", "A100-SXM4", "H100", "V100", "V100-SXM2", "RTX5000"}
NOT_OURS = {
    "Apple-M2-Ultra-76c",
    "Apple-M3-Ultra-80c",
    "Apple-M4-Max-40c",
    "GTX1080Ti",
    "Inferentia2",
    "K80",
    "P4",
    "P40",
}
NOT_OURS |= {"P100-PCIE-16GB", "P100-SXM2-16GB", "TITAN-V", "TPU-v2 pod", "TPU-v4 pod"}


def test_the_whole_snapshot_is_read() -> None:
    with (store.DATA / "prices" / "cloud.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    asked = [bool(row[cell]) for row in rows for cell in ("price_usd_per_hour", "spot_price_usd_per_hour")]
    assert len(price.cloud_offers()) == sum(asked) >= 498 + 204
    assert len(price.purchase_offers()) >= 175
    assert price.snapshot_date() == max(row["as_of"] for row in rows) >= "2026-09-06"


def test_every_row_is_of_a_catalog_device_or_known_not_to_be() -> None:
    names = {offer.accelerator for offer in (*price.cloud_offers(), *price.purchase_offers())}
    assert names - set(store.accelerator_names()) == OPEN | NOT_OURS


def test_every_hourly_offer_is_sane_and_has_a_source() -> None:
    for offer in price.cloud_offers():
        assert offer.usd_per_gpu_hour is not None
        assert 0.01 < offer.usd_per_gpu_hour < 50, offer
        assert offer.usd is None
        assert offer.source
        assert offer.provider
        assert offer.kind in ("on-demand", "marketplace", "spot")


def test_every_purchase_offer_is_sane_and_has_a_source() -> None:
    for offer in price.purchase_offers():
        assert offer.usd is not None
        assert 100 < offer.usd < 100_000, offer
        assert offer.usd_per_gpu_hour is None
        assert offer.source


def test_an_instance_of_eight_is_priced_per_gpu() -> None:
    azure = [o for o in price.offers("h100 sxm") if o.instance == "Standard_ND96isr_H100_v5" and o.kind == "on-demand"]
    assert azure
    for offer in azure:
        assert offer.usd_per_gpu_hour == pytest.approx(98.32 / 8)


def test_the_default_is_the_median_over_providers_of_recent_on_demand_prices() -> None:
    offer = price.default_offer("rtx-3090")
    assert offer is not None
    assert offer.kind == "on-demand"
    listed = {"genesis-cloud": 0.20, "novita": 0.21, "runpod": 0.22, "tensordock": 0.20, "vast-ai": 0.15}
    assert offer.usd_per_gpu_hour == pytest.approx(median(listed.values()))
    assert offer.provider == ", ".join(listed)
    assert offer.cost_date == "2026-05-24"
    assert offer.cost_source == "on-demand, median of 5 offers by 5 providers"


def test_old_and_spot_prices_stay_out_of_the_default() -> None:
    offer = price.default_offer("a100-sxm4-80gb")
    assert offer is not None
    assert offer.date_from >= "2025-09-06"
    assert offer.cost_date == "2026-01-21 to 2026-09-06"
    assert "paperspace" not in offer.provider  # of March 2025
    assert offer.usd_per_gpu_hour == pytest.approx(1.645, abs=0.005)


def test_a_price_whose_form_factor_was_assumed_says_so() -> None:
    offer = price.default_offer("a100-sxm4-80gb")
    assert offer is not None
    assert "A100 80GB was taken as the SXM4 module" in offer.assumption


def test_a_device_that_only_a_marketplace_rents_says_marketplace() -> None:
    offer = price.default_offer("rtx-pro-6000-blackwell-ws")
    assert offer is not None
    assert offer.kind == "marketplace"


def test_a_card_nobody_rents_has_no_hourly_price_but_one_to_buy() -> None:
    assert price.default_offer("titan-rtx") is None
    reason = price.cost_unknown_reason("titan-rtx")
    assert reason.startswith("No hourly price for titan-rtx: nobody in the price snapshot rents it")
    assert "hardware.price.usd_per_gpu_hour" in reason
    bought = price.purchase_offer("titan-rtx")
    assert bought is not None
    assert (bought.usd, bought.kind) == (2499, "msrp")


def test_a_known_price_has_no_reason_to_be_unknown() -> None:
    assert price.cost_unknown_reason("h200-sxm") == ""


def test_a_device_of_your_own_has_no_price() -> None:
    assert price.default_offer("zx-9000") is None
    assert price.purchase_offer("zx-9000") is None
    assert price.offers("zx-9000") == ()


def test_the_newest_street_price_of_a_card_is_what_it_costs_to_buy() -> None:
    offer = price.purchase_offer("rtx-4090")
    assert offer is not None
    assert (offer.usd, offer.kind, offer.date) == (1417.2, "street", "2025-03-03")


def test_a_system_price_is_divided_by_its_accelerators() -> None:
    dgx = [o for o in price.purchase_offers() if o.instance == "DGX H100 (8x)"]
    assert [o.usd for o in dgx] == [270000 / 8]


def _offer(day: str) -> Offer:
    return Offer("t4", "on-demand", 1.0, None, "p", "", "", 1, day, "s")


@pytest.mark.parametrize(
    ("day", "age_days", "stale"),
    [
        ("2026-09-06", 85, False),
        ("2026-09-01", 90, False),
        ("2026-08-31", 91, True),
        ("2025", 698, True),
        ("", None, True),
    ],
)
def test_a_price_is_stale_after_90_days(day: str, age_days: int | None, stale: bool) -> None:
    today = date(2026, 11, 30)
    assert _offer(day).age_days(today) == age_days
    assert _offer(day).is_stale(today) is stale
