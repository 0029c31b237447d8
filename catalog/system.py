"""How accelerators sit together: links inside a node, the network between nodes, and the host beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from catalog import store
from catalog.accelerator import Accelerator
from catalog.errors import RigplanError, did_you_mean
from catalog.units import parse_bandwidth, parse_bytes, parse_seconds


@dataclass(frozen=True, slots=True)
class Link:
    """One way for GPUs to reach each other. Rates are per GPU and per direction."""

    name: str
    kind: str
    """``nvswitch``, ``nvlink-mesh``, ``mesh``, ``pair``, ``module``, ``pcie``, ``network`` or ``none``."""
    bytes_per_s: float
    """Nominal rate of the link, not what collectives achieve."""
    achieved_share: float
    """Bus bandwidth of a large ring collective over the nominal rate."""
    latency_s: float
    """Seconds of the smallest all-reduce between two GPUs."""
    hop_s: float
    """Seconds each further step of a ring adds."""
    peer_access: bool = True
    """Whether one GPU may read another's memory; else every copy is staged in host memory."""
    in_switch_share: float | None = None
    """The share for an all-reduce that the switch adds up itself (five or more GPUs), where it can."""
    half_rate_message_bytes: int | None = None
    """The message size at which half of the saturated rate is reached."""
    pair_bytes_per_s: float | None = None
    """Of a mesh without a switch: what two GPUs alone see of ``bytes_per_s``."""
    source: str = ""

    @property
    def achieved_bytes_per_s(self) -> float:
        """Bus bandwidth of a large ring collective, per GPU."""
        return self.bytes_per_s * self.achieved_share


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: how many GPUs, how they are joined, what the host has."""

    name: str
    gpus_per_node: int
    intra: Link
    inter: Link | None
    host_memory_bytes: int
    host_bytes_per_s: float
    """Achieved copy rate between host and device, per GPU and per direction."""
    pair: Link | None = None
    """A bridge that joins the GPUs two by two, beside ``intra``."""
    accelerator: str = ""

    def link(self, ranks: int) -> Link:
        """The slowest link a ring over ``ranks`` GPUs of this node must cross."""
        if ranks <= 2 and self.pair is not None:
            return self.pair
        if ranks <= 2 and self.intra.pair_bytes_per_s is not None:
            return replace(self.intra, bytes_per_s=self.intra.pair_bytes_per_s)
        return self.intra


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = store.load_yaml(store.DATA / "systems.yaml")
    return table


def _build_link(name: str, entry: dict[str, Any]) -> Link:
    half, pair = entry.get("half_rate_message"), entry.get("pair_per_direction")
    return Link(
        name=name,
        kind=entry["kind"],
        bytes_per_s=parse_bandwidth(entry["per_direction"]),
        achieved_share=float(entry["achieved_share"]),
        latency_s=parse_seconds(entry["latency"]),
        hop_s=parse_seconds(entry["hop"]),
        peer_access=bool(entry.get("peer_access", True)),
        in_switch_share=entry.get("in_switch_share"),
        half_rate_message_bytes=parse_bytes(half) if half else None,
        pair_bytes_per_s=parse_bandwidth(pair) if pair else None,
        source=entry["source"],
    )


def link_names() -> tuple[str, ...]:
    """Names of all links, sorted."""
    return tuple(sorted(_table()["links"]))


@cache
def link(name: str) -> Link:
    """The link with this name. Raises RigplanError with "did you mean"."""
    links: dict[str, Any] = _table()["links"]
    if name not in links:
        raise RigplanError(
            f"Unknown link {name!r}.{did_you_mean(name, list(links))} Known: {', '.join(sorted(links))}."
        )
    return _build_link(name, links[name])


def node_names() -> tuple[str, ...]:
    """Names of all nodes, sorted; cloud instance names among them."""
    return tuple(sorted(_table()["nodes"]))


@cache
def node(name: str) -> Node:
    """The node of this name or instance type, in any case. Raises RigplanError with "did you mean"."""
    nodes: dict[str, Any] = _table()["nodes"]
    spellings = {str(key).lower(): key for key in nodes}
    spellings |= {str(other).lower(): key for key, entry in nodes.items() for other in entry.get("also", ())}
    key = spellings.get(name.strip().lower().replace(" ", "-"))
    if key is None:
        raise RigplanError(f"Unknown node {name!r}.{did_you_mean(name, spellings)} Known: {', '.join(node_names())}.")
    entry = nodes[key]
    inter = link(entry["inter"])
    if "inter_per_direction" in entry:
        inter = replace(inter, bytes_per_s=parse_bandwidth(entry["inter_per_direction"]))
    return Node(
        name=str(key),
        gpus_per_node=entry["gpus"],
        intra=link(entry["intra"]),
        inter=inter,
        host_memory_bytes=parse_bytes(entry["host_memory"]),
        host_bytes_per_s=parse_bandwidth(entry["host_to_device"]),
        pair=_bridge(store.accelerator(entry["gpu"])),
        accelerator=entry["gpu"],
    )


def default_node(accelerator: Accelerator) -> Node:
    """The machine this accelerator is assumed to sit in when nothing else is said.

    The maker's eight-GPU system where there is one; else eight of them over the PCIe of the card's generation, staged
    through the host where the card has no peer access, with its bridge two by two; else eight over its own link.
    """
    named = _table()["default_node"].get(accelerator.name)
    if named is not None:
        return replace(node(named), accelerator=accelerator.name)
    generic = _table()["generic"]
    generation = accelerator.pcie_gen or generic["default_pcie"]
    nominal_bytes_per_s = parse_bandwidth(generic["pcie_per_direction"][generation]) * accelerator.pcie_lanes / 16
    own_bytes_per_s, bridge = accelerator.link_bytes_per_s_per_direction, _bridge(accelerator)
    if own_bytes_per_s is not None and bridge is None:
        intra = _build_link(
            f"{accelerator.link_name} of {accelerator.name}",
            {"kind": "module", "per_direction": own_bytes_per_s, **generic["module"]},
        )
    else:
        peer = "host" if has_peer_access(accelerator) else "no-peer"
        wired = link(f"pcie{generation}-{peer}")
        intra = replace(wired, bytes_per_s=wired.bytes_per_s * accelerator.pcie_lanes / 16)
    return Node(
        name=f"{generic['gpus']}x {accelerator.name}",
        gpus_per_node=generic["gpus"],
        intra=intra,
        inter=link(generic["inter"]),
        host_memory_bytes=parse_bytes(generic["host_memory"]),
        host_bytes_per_s=nominal_bytes_per_s * float(generic["host_share"]),
        pair=bridge,
        accelerator=accelerator.name,
    )


def has_peer_access(accelerator: Accelerator) -> bool:
    """Whether two such cards may copy to each other over PCIe without going through host memory."""
    rule = _table()["generic"]["no_peer"]
    if accelerator.vendor != rule["vendor"] or accelerator.name in rule["never"]:
        return True
    return not accelerator.name.startswith(tuple(rule["name_starts"]))


def energy_facts() -> dict[str, float]:
    """Ratios from GPU power to the electricity of the room; each is dimensionless, sources in ``systems.yaml``."""
    return {key: float(value) for key, value in _table()["energy"].items() if key != "source"}


def energy_source() -> str:
    """Whose ratios ``energy_facts`` are, and of when."""
    return str(_table()["energy"]["source"])


def _bridge(accelerator: Accelerator) -> Link | None:
    """The bridge that joins such cards two by two, when its rate is known."""
    rate = accelerator.link_bytes_per_s_per_direction
    if rate is None or "bridge" not in accelerator.link_name.lower():
        return None
    entry = {"kind": "pair", "per_direction": rate, **_table()["generic"]["bridge"]}
    return _build_link(f"{accelerator.link_name} of {accelerator.name}", entry)
