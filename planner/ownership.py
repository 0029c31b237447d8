"""Ownership: what a machine costs to buy and to run, and after how many months that is cheaper than renting."""

from __future__ import annotations

from dataclasses import dataclass

from catalog import price, store
from catalog.accelerator import Accelerator
from catalog.errors import RigplanError
from catalog.system import energy_facts, energy_source
from planner.money_spec import BuySpec, EnergySpec

IN_SPEC = "given in the spec"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a price: USD of the whole machine, or of a GPU-hour; whose price it is and of when."""

    what: str
    usd: float
    source: str
    date: str | None = None


def capital(gpu: str, count: int, gpus_per_node: int, buy: BuySpec) -> list[Part]:
    """USD to buy `count` cards with their hosts and network. Raises RigplanError where no price is known."""
    nodes = -(-count // gpus_per_node)
    parts = [_cards(gpu, count, buy), _hosts(nodes, min(count, gpus_per_node), buy)]
    if buy.network_usd:
        parts.append(Part("network", buy.network_usd * nodes, IN_SPEC))
    return parts


def _cards(gpu: str, count: int, buy: BuySpec) -> Part:
    if buy.usd is not None:
        return Part("cards", buy.usd * count, IN_SPEC)
    offer = price.purchase_offer(gpu)
    if offer is None:
        raise RigplanError(f"No price to buy {gpu} in the snapshot. Set hardware.price.buy.usd, the USD of one card.")
    return Part("cards", offer.amount_usd * count, offer.cost_source, offer.cost_date)


def _hosts(nodes: int, gpus_in_node: int, buy: BuySpec) -> Part:
    if buy.host_usd is not None:
        return Part("hosts", buy.host_usd * nodes, IN_SPEC)
    host = price.host_offer(gpus_in_node)
    return Part("hosts", host.amount_usd * nodes, host.cost_source, host.cost_date)


def kilowatts(accelerator: Accelerator, energy: EnergySpec) -> float | None:
    """Power that one working GPU takes with its share of the server and the building; None without a rated power."""
    if accelerator.tdp_w is None:
        return None
    facts = energy_facts()
    pue = energy.pue if energy.pue is not None else facts["pue"]
    return accelerator.tdp_w * facts["server_over_gpu_tdp"] * facts["training_share_of_peak"] * pue / 1000


def electricity(accelerator: Accelerator, energy: EnergySpec) -> Part | None:
    """USD of the electricity of one GPU-hour; None where the power is not known."""
    power_kw = kilowatts(accelerator, energy)
    if power_kw is None:
        return None
    if energy.usd_per_kwh is not None:
        usd, source, date = energy.usd_per_kwh, IN_SPEC, None
    else:
        offer = price.electricity_offer()
        usd, source, date = offer.amount_usd, offer.cost_source, offer.cost_date
    return Part("electricity", power_kw * usd, f"{source}; power: {energy_source()}", date)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Buying against renting. `months` is None where running costs more than the rent."""

    months: float | None
    buy_usd: float
    rent_usd_per_month: float
    running_usd_per_month: float
    sources: tuple[str, ...]


def break_even(
    gpu: str, count: int, gpus_per_node: int, buy: BuySpec, energy: EnergySpec, rent: Part, hours_a_month: float
) -> Comparison | None:
    """Months of full use after which buying has cost less than `rent` (USD a GPU-hour); None without a price to buy."""
    try:
        parts = capital(gpu, count, gpus_per_node, buy)
    except RigplanError:
        return None
    power = electricity(store.find(gpu), energy)
    running_usd = 0.0 if power is None else power.usd * count * hours_a_month
    rent_usd, whole_usd = rent.usd * count * hours_a_month, sum(part.usd for part in parts)
    told = [f"{part.what}: {part.source}, {part.date or 'undated'}" for part in (*parts, rent, *filter(None, [power]))]
    return Comparison(
        whole_usd / (rent_usd - running_usd) if rent_usd > running_usd else None,
        whole_usd,
        rent_usd,
        running_usd,
        tuple(told),
    )


__all__ = ["Comparison", "Part", "break_even", "capital", "electricity", "kilowatts"]
