"""`rigplan gpus` and `rigplan prices`: what the catalog knows, as a table, a page or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from catalog import price, refresh, store, system, units
from catalog.accelerator import Accelerator
from catalog.price import Offer
from planner.arguments import files
from planner.arguments import gpus as gpu_names
from planner.report import prices as prices_page
from planner.report.layout import columns

_WIDTH = 100
_NO_BF16 = "no: emulated and about ten times slower than fp16; train in fp16"
_HEADLINE_DTYPES = ("bf16", "fp16", "tf32", "fp8")


def _one_name(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> str | None:
    """A name of several words, with or without quotes around it."""
    return " ".join(words) or None


@click.command("gpus", short_help="Show the accelerators of the catalog, or one of them.")
@click.argument("name", nargs=-1, metavar="[NAME]", callback=_one_name, shell_complete=gpu_names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object with NAME, else a list.")
def gpus(name: str | None, as_json: bool) -> None:
    """Show the accelerators of the catalog, or all that is known about NAME, with sources.

    NAME is written as you like ("A100 80GB", "4090", "h100 pcie") or is the path of a YAML file of your own.
    Peaks are dense, with fp32 accumulation; usable memory is what torch can have on the card.
    """
    if name is None:
        devices = store.accelerators()
        click.echo(_json([_device_json(device) for device in devices]) if as_json else _device_table(devices))
        return
    device, assumption = store.find(name), store.assumption(name)
    if as_json:
        click.echo(_json(_device_json(device) | {"assumption": assumption}))
        return
    click.echo(_device_page(device, assumption))


@click.command("prices", short_help="Show what accelerators cost by the hour and to buy.")
@click.argument("name", nargs=-1, metavar="[NAME]", callback=_one_name, shell_complete=gpu_names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object with NAME, else a list.")
@click.option("--refresh", "ask", is_flag=True, help="First ask the providers for today's prices, through gpuhunt.")
@click.option(
    "--from-csv", metavar="FILE", shell_complete=files, help="First read a CSV in the skypilot catalog's format."
)
def prices(name: str | None, as_json: bool, ask: bool, from_csv: str | None) -> None:
    """Show dated prices: the one a plan would use for every accelerator, or all offers for NAME.

    The hourly price of a plan is the median over providers of their on-demand price per GPU-hour.
    """
    if ask or from_csv is not None:
        kept = refresh.keep(refresh.from_skypilot(Path(from_csv)) if from_csv is not None else refresh.from_gpuhunt())
        click.echo(f"{kept} prices kept in {refresh.refreshed_file()}", err=True)
    today = date.today()
    if name is None:
        names = [n for n in store.accelerator_names() if price.default_offer(n) or price.purchase_offer(n)]
        click.echo(_json([_price_json(n, today) for n in names]) if as_json else _price_table(names, today))
        return
    canonical = store.find(name).name
    if as_json:
        found = [_offer_json(offer, today) for offer in price.offers(canonical)]
        click.echo(_json(_price_json(canonical, today) | {"offers": found, "assumption": store.assumption(name)}))
        return
    click.echo(prices_page.page(canonical, store.assumption(name), today, columns(_WIDTH)))


def _json(data: Any) -> str:
    return json.dumps(data, indent=2)


def _device_json(device: Accelerator) -> dict[str, Any]:
    return device.to_json() | {"default_node": asdict(system.default_node(device))}


def _offer_json(offer: Offer, today: date) -> dict[str, Any]:
    return asdict(offer) | {"age_days": offer.age_days(today), "stale": offer.is_stale(today)}


def _price_json(name: str, today: date) -> dict[str, Any]:
    hourly, bought = price.default_offer(name), price.purchase_offer(name)
    return {
        "name": name,
        "usd_per_gpu_hour": hourly.usd_per_gpu_hour if hourly else None,
        "cost_source": hourly.cost_source if hourly else price.cost_unknown_reason(name),
        "cost_date": hourly.cost_date if hourly else None,
        "hourly": _offer_json(hourly, today) if hourly else None,
        "purchase": _offer_json(bought, today) if bought else None,
    }


def _tera(value: float | None) -> str:
    return "" if value is None else f"{value / 1e12:.4g}"


def _device_table(devices: Sequence[Accelerator]) -> str:
    rows = [
        [
            device.name,
            f"{device.memory_bytes / units.GIB:.0f}",
            f"{device.usable_memory_bytes / units.GIB:.1f}{'' if device.usable_memory_known == 'measured' else '~'}",
            f"{device.memory_bytes_per_s / 1e12:.3g}",
            *(_tera(device.peak_flop_per_s.get(dtype)) for dtype in _HEADLINE_DTYPES),
            f"{device.tdp_w:.0f}" if device.tdp_w else "",
            device.launch_date[:7],
        ]
        for device in devices
    ]
    headers = ["name", "GiB", "usable", "TB/s", *_HEADLINE_DTYPES, "W", "since"]
    align = ("left", "right", "right", *["right"] * (2 + len(_HEADLINE_DTYPES)), "left")
    table = tabulate(rows, headers, tablefmt="simple", colalign=align, disable_numparse=True)
    return (
        f"{table}\n\n{len(rows)} accelerators. Peaks in dense TFLOP/s, fp32 accumulation.\n"
        "usable: GiB torch can have (~ derived). Sources and links of one: rigplan gpus NAME"
    )


def _device_page(device: Accelerator, assumption: str) -> str:
    node = system.default_node(device)
    capability = ".".join(map(str, device.compute_capability)) if device.compute_capability else "-"
    peaks = ", ".join(f"{key} {_tera(value)}" for key, value in device.peak_flop_per_s.items())
    rate, native = device.link_bytes_per_s_per_direction, "yes" if device.has_bf16 else _NO_BF16
    memory = f"{units.gib(device.memory_bytes)} {device.memory_type} at {units.bandwidth(device.memory_bytes_per_s)}"
    link = device.link_name if rate is None else f"{device.link_name}, {units.bandwidth(rate)} per direction"
    intra = f"{node.intra.name} {units.bandwidth(node.intra.bytes_per_s)}"
    peer = "" if node.intra.peer_access else ", no peer access"
    pair = f"; pairs {units.bandwidth(node.pair.bytes_per_s)}" if node.pair else ""
    rows = [
        ("vendor", f"{device.vendor} {device.architecture}, compute capability {capability}"),
        ("form", f"{device.form_factor}, PCIe {device.pcie_gen or '-'} x{device.pcie_lanes}"),
        ("memory", memory),
        (
            "usable",
            f"{units.gib(device.usable_memory_bytes)}, {_usable_known(device)}",
        ),
        ("peak TFLOP/s", f"{peaks} (dense, fp32 accumulation)"),
        ("native bf16", native),
        ("SMs, clock, L2", _chip(device)),
        ("link", f"{link}{', ' + device.link_topology if device.link_topology else ''}"),
        ("default node", f"{node.name}: {node.gpus_per_node} GPUs, {intra}{peer}{pair}"),
        ("power", f"{device.tdp_w:.0f} W" if device.tdp_w else "-"),
        ("launch", f"{device.launch_date or '-'}{', ' + units.usd(device.launch_usd) if device.launch_usd else ''}"),
        ("price", _price_line(device)),
        *(("source", source) for source in device.sources),
        *(("note", note) for note in device.notes),
        *((("assumed", assumption),) if assumption else ()),
    ]
    return f"{device.name}\n{_page(rows)}"


def _usable_known(device: Accelerator) -> str:
    return f"{device.usable_memory_known} ({device.usable_memory_source})"


def _chip(device: Accelerator) -> str:
    clock = f"{device.boost_clock_hz / 1e6:.0f} MHz" if device.boost_clock_hz else "-"
    cache = units.gib(device.l2_bytes) if device.l2_bytes else "-"
    return f"{device.sm_count or '-'}, {clock}, {cache}"


def _price_line(device: Accelerator) -> str:
    if device.name not in store.accelerator_names():
        return "set hardware.price.usd_per_gpu_hour"
    hourly = price.default_offer(device.name)
    if hourly is None:
        return price.cost_unknown_reason(device.name)
    return f"{hourly.usd_per_gpu_hour:.2f} USD per GPU-hour ({hourly.cost_source}, {hourly.cost_date})"


def _page(rows: Sequence[tuple[str, str]]) -> str:
    label = max(len(key) for key, _ in rows) + 2
    wrapped = (click.wrap_text(text, _WIDTH - label - 2, "", "").splitlines() or [""] for _, text in rows)
    lines: list[str] = []
    for (key, _), texts in zip(rows, wrapped, strict=True):
        lines.append(f"  {key:<{label}}{texts[0]}".rstrip())
        lines.extend(f"  {'':<{label}}{text}" for text in texts[1:])
    return "\n".join(lines)


def _price_table(names: Sequence[str], today: date) -> str:
    rows = []
    for name in names:
        hourly, bought = price.default_offer(name), price.purchase_offer(name)
        rows.append(
            [
                name,
                f"{hourly.usd_per_gpu_hour:.2f}{'' if hourly.kind == 'on-demand' else ' m'}" if hourly else "-",
                _marked(hourly, today) if hourly else "",
                f"{bought.amount_usd:,.0f}" if bought else "-",
                f"{bought.kind} {bought.date}" if bought else "",
            ]
        )
    headers = ["name", "USD/GPU-h", "asked", "to buy", "kind, date"]
    align = ("left", "right", "left", "right", "left")
    table = tabulate(rows, headers, tablefmt="simple", colalign=align, disable_numparse=True)
    legend = (
        "USD throughout, on-demand by the hour (m: marketplace, where nobody lists on-demand).\n"
        f"asked: oldest to newest of the offers; !: even the newest is older than {price.STALE_AFTER_DAYS} days."
    )
    note = click.wrap_text(prices_page.age(price.snapshot_date(), today), _WIDTH)
    return f"{table}\n\n{legend}\n{note}\nOffers and sources of one: rigplan prices NAME"


def _marked(offer: Offer, today: date) -> str:
    since = f"{offer.date_from[:7]} to " if offer.date_from and offer.date_from != offer.date else ""
    return f"{since}{offer.date}{' !' if offer.is_stale(today) else ''}"
