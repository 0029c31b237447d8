"""Newer prices over the snapshot, from gpuhunt and from a CSV of the skypilot catalog."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from catalog import price, refresh
from catalog.errors import RigplanError
from planner.cli import rigplan

CACHED = (price.cloud_offers, price.default_offer, price.snapshot_date)
SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,GpuInfo,Arch
p5.48xlarge,H100,8.0,192,2048,40.0,,us-east-1,"{}",x86
m5.large,,,2,8,0.1,0.05,us-east-1,,x86
g6e.xlarge,L40S,1.0,4,32,1.5,0.9,us-east-2,"{}",x86
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


@pytest.fixture
def skypilot(tmp_path: Path) -> Path:
    (tmp_path / "aws").mkdir()
    path = tmp_path / "aws" / "vms.csv"
    path.write_text(SKYPILOT)
    return path


def _gpuhunt(monkeypatch: pytest.MonkeyPatch, *items: SimpleNamespace) -> None:
    module = ModuleType("gpuhunt")
    module.query = lambda **_: list(items)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", module)


def _item(**changes: object) -> SimpleNamespace:
    known = {
        "provider": "lambda", "location": "us-east-1", "instance_name": "gpu_1x_a100", "price": 1.29,
        "gpu_name": "A100", "gpu_count": 1, "gpu_memory": 40.0, "spot": False,
    }  # fmt: skip
    return SimpleNamespace(**(known | changes))


def test_a_csv_of_the_skypilot_catalog_replaces_its_provider_alone(skypilot: Path) -> None:
    before = {offer.provider for offer in price.cloud_offers()}
    done = CliRunner().invoke(rigplan, ["prices", "--from-csv", str(skypilot)])
    assert done.exit_code == 0, done.output
    assert "2 prices kept" in done.output
    price.cloud_offers.cache_clear()
    mine = [offer for offer in price.cloud_offers() if offer.provider == "aws"]
    assert {(offer.instance, offer.kind, offer.usd_per_gpu_hour) for offer in mine} == {
        ("p5.48xlarge", "on-demand", 5.0),
        ("g6e.xlarge", "on-demand", 1.5),
        ("g6e.xlarge", "spot", 0.9),
    }
    assert {offer.provider for offer in price.cloud_offers()} == before
    assert {offer.date for offer in mine} == {date.today().isoformat()}


def test_gpuhunt_tells_an_a100_of_40_gb_from_one_of_80(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpuhunt(monkeypatch, _item(), _item(gpu_memory=80.0, price=2.0, spot=True), _item(gpu_name=None))
    rows = list(refresh.from_gpuhunt())
    assert [row["accelerator"] for row in rows] == ["A100-40GB", "A100-80GB"]
    assert (rows[0]["price_usd_per_hour"], rows[1]["spot_price_usd_per_hour"]) == ("1.29", "2.0")


def test_refresh_keeps_the_snapshot_when_it_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _gpuhunt(monkeypatch)
    done = CliRunner().invoke(rigplan, ["prices", "--refresh"])
    assert done.exit_code == 2
    assert done.stderr == "rigplan: error: no GPU price was found; the snapshot stays as it is\n"
    assert not refresh.refreshed_file().exists()


def test_without_gpuhunt_refresh_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    done = CliRunner().invoke(rigplan, ["prices", "--refresh"])
    assert done.exit_code == 2
    assert "pip install gpuhunt" in done.stderr


def test_a_csv_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(RigplanError, match="has no column InstanceType"):
        list(refresh.from_skypilot(path))
