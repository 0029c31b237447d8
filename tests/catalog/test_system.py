"""Links and nodes: what is published about them, and what a card gets when nothing is said."""

from __future__ import annotations

import pytest

from catalog import store, system
from catalog.errors import RigplanError
from catalog.units import GIB


@pytest.mark.parametrize("name", system.link_names())
def test_every_link_has_a_source_and_sane_numbers(name: str) -> None:
    link = system.link(name)
    assert link.source
    assert 0.1e9 < link.bytes_per_s < 1e12
    assert 0.4 <= link.achieved_share <= 1.0
    assert 1e-6 < link.latency_s < 1e-4
    assert 0 < link.hop_s < link.latency_s


@pytest.mark.parametrize("name", system.node_names())
def test_every_node_is_made_of_known_parts(name: str) -> None:
    node = system.node(name)
    assert node.accelerator in store.accelerator_names()
    assert node.inter is not None
    assert node.inter.kind == "network"
    assert node.host_memory_bytes >= 128 * GIB
    assert 10e9 < node.host_bytes_per_s < 400e9
    own = store.accelerator(node.accelerator).link_bytes_per_s_per_direction
    if node.intra.kind in ("nvswitch", "nvlink-mesh", "mesh"):
        assert node.intra.bytes_per_s == own


@pytest.mark.parametrize("name", store.accelerator_names())
def test_every_accelerator_has_a_default_node(name: str) -> None:
    node = system.default_node(store.accelerator(name))
    assert node.accelerator == name
    assert 1 <= node.gpus_per_node <= 72
    assert node.intra.achieved_bytes_per_s > 1e9


def test_an_h200_sits_in_a_dgx_with_nvswitch_and_eight_400g_ports() -> None:
    node = system.default_node(store.find("h200"))
    assert (node.name, node.gpus_per_node) == ("dgx-h200", 8)
    assert node.intra.bytes_per_s == 450e9
    assert node.inter is not None
    assert node.inter.bytes_per_s == 50e9


# Bus bandwidth of a large ring collective on one node, GB/s, as published.
@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("v100-sxm2-32gb", 124), ("a100-sxm4-80gb", 234.9), ("h200-sxm", 365), ("b200-sxm", 682), ("rtx-5090", 28)],
)
def test_achieved_bandwidth_is_what_was_measured(name: str, gb_per_s: float) -> None:
    node = system.default_node(store.accelerator(name))
    assert node.intra.achieved_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.03)


@pytest.mark.parametrize("name", ["rtx-4090", "rtx-5090", "rtx-3090", "rtx-2080-ti"])
def test_a_geforce_has_no_peer_access_over_pcie(name: str) -> None:
    node = system.default_node(store.accelerator(name))
    assert not node.intra.peer_access
    assert node.intra.kind == "pcie"


@pytest.mark.parametrize("name", ["rtx-a6000", "l40s", "rtx-4000-ada", "rtx-2000-ada", "a100-pcie-80gb", "rx-7900-xtx"])
def test_a_workstation_or_data_centre_card_has(name: str) -> None:
    assert system.default_node(store.accelerator(name)).intra.peer_access


def test_bridged_cards_use_the_bridge_for_two_and_pcie_for_more() -> None:
    node = system.default_node(store.find("A6000"))
    assert node.link(2).kind == "pair"
    assert node.link(2).bytes_per_s == 56.25e9
    assert node.link(4).kind == "pcie"
    assert node.link(4).bytes_per_s == 31e9


def test_two_mi300x_see_one_link_of_the_mesh() -> None:
    node = system.default_node(store.find("mi300x"))
    assert node.link(2).bytes_per_s == 64e9
    assert node.link(8).bytes_per_s == 448e9


def test_a_card_with_eight_lanes_has_half_the_rate() -> None:
    assert system.default_node(store.find("rtx-4060")).intra.bytes_per_s == 15.5e9


@pytest.mark.parametrize(
    ("written", "name"), [("DGX-H200", "dgx-h200"), ("dgx h100", "dgx-h100"), ("Standard_ND96isr_H100_v5", "dgx-h100")]
)
def test_a_node_is_found_by_any_of_its_names(written: str, name: str) -> None:
    assert system.node(written).name == name


def test_an_aws_p4d_has_400_gbit_for_eight_gpus() -> None:
    inter = system.node("p4d.24xlarge").inter
    assert inter is not None
    assert inter.bytes_per_s * 8 * 8 == pytest.approx(400e9)


def test_an_unknown_node_or_link_asks_did_you_mean() -> None:
    with pytest.raises(RigplanError, match=r"Unknown node 'dgx-h20'.*Did you mean"):
        system.node("dgx-h20")
    with pytest.raises(RigplanError, match=r"Unknown link 'nvlink9'"):
        system.link("nvlink9")


def test_energy_ratios_are_those_of_the_published_cost_analysis() -> None:
    facts = system.energy_facts()
    assert facts["server_over_gpu_tdp"] == pytest.approx(10.2e3 / 8 / 700, rel=0.01)
    assert facts["pue"] == 1.25
