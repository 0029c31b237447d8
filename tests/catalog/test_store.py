"""Finding an accelerator by what people write."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from catalog import store
from catalog.errors import RigplanError
from catalog.units import GIB
from tests.catalog.spellings import NOT_OURS, SPELLINGS


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100 80GB", "a100-sxm4-80gb"),
        ("a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("a100 40", "a100-sxm4-40gb"),
        ("4090", "rtx-4090"),
        ("3090", "rtx-3090"),
        ("RTX 3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("rtx_3090 24GB", "rtx-3090"),
        ("h100 pcie", "h100-pcie-80gb"),
        ("H100 SXM", "h100-sxm5-80gb"),
        ("H200-SXM-141GB", "h200-sxm"),
        ("h200", "h200-sxm"),
        ("RTXA4000", "rtx-a4000"),
        ("A6000", "rtx-a6000"),
        ("4070 ti", "rtx-4070-ti"),
        ("4070 Ti Super", "rtx-4070-ti-super"),
        ("H20", "h20"),
        ("L40", "l40"),
        ("tpu v5e", "tpu-v5e"),
    ],
)
def test_a_name_is_found_in_any_case_and_punctuation(written: str, name: str) -> None:
    assert store.find(written).name == name


# torch.cuda.get_device_name() of these cards.
@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell-ws"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-blackwell-maxq"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA L40S", "l40s"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla T4", "t4"),
    ],
)
def test_the_name_the_driver_gives_is_found(written: str, name: str) -> None:
    assert store.find(written).name == name


@pytest.mark.parametrize(("written", "name"), SPELLINGS.items())
def test_published_tables_spell_it_so(written: str, name: str) -> None:
    assert store.find(written).name == name


@pytest.mark.parametrize("written", NOT_OURS)
def test_a_card_that_is_not_in_the_catalog_is_never_taken_for_one_that_is(written: str) -> None:
    with pytest.raises(RigplanError, match="Unknown accelerator"):
        store.find(written)


@pytest.mark.parametrize("name", store.accelerator_names())
def test_every_canonical_name_and_label_finds_its_own_device(name: str) -> None:
    device = store.find(name)
    assert device.name == name
    assert store.find(name.upper().replace("-", " ")).name == name
    assert store.find(device.label).name == name


@pytest.mark.parametrize(
    ("written", "choices"),
    [
        ("A100", ["a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb"]),
        ("H100", ["h100-sxm5-80gb", "h100-pcie-80gb", "h100-nvl-94gb"]),
        ("V100", ["v100-sxm2-16gb", "v100-sxm2-32gb", "v100-pcie-16gb", "v100-pcie-32gb"]),
        ("RTX 6000", ["quadro-rtx-6000", "rtx-6000-ada", "rtx-pro-6000-blackwell-server"]),
        ("RTX5000", ["quadro-rtx-5000", "rtx-5000-ada", "rtx-pro-5000-blackwell"]),
    ],
)
def test_a_name_that_means_several_asks_which(written: str, choices: list[str]) -> None:
    with pytest.raises(RigplanError, match="write which one") as error:
        store.find(written)
    for choice in choices:
        assert choice in str(error.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rtx-4091", "rtx-4090"),
        ("h20O-sxm", "h200-sxm"),
        ("a600", "rtx-a6000"),
        ("L4OS", "l40s"),
        ("h300", "h200"),
        ("h300", "h100"),  # a model that several devices are of
        ("3091", "rtx-3090 or"),
    ],
)
def test_a_near_miss_asks_did_you_mean(written: str, meant: str) -> None:
    with pytest.raises(RigplanError, match="Did you mean") as error:
        store.find(written)
    assert meant in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("written", ["", "   ", "-", "banana split"])
def test_what_is_no_name_is_refused_in_one_line(written: str) -> None:
    with pytest.raises(RigplanError, match="rigplan gpus"):
        store.find(written)


def test_what_is_nothing_like_a_name_is_told_what_names_look_like() -> None:
    with pytest.raises(RigplanError, match="Names look like h100-sxm5-80gb") as error:
        store.find("nosuch")
    for name in re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", str(error.value)):
        assert name in store.accelerator_names()


def test_what_was_assumed_is_said() -> None:
    assert store.assumption("A100 80GB") == "A100 80GB was taken as the SXM4 module; write a100-pcie-80gb for the card"
    assert store.assumption("a100-sxm4-80gb") == ""
    assert store.assumption("4090") == ""


MINE = {
    "name": "my-gpu",
    "memory": "24 GiB",
    "memory_bandwidth": "900 GB/s",
    "peak": {"fp32": "35 TFLOP/s", "bf16": "70 TFLOP/s"},
}


def test_a_file_of_your_own_works_as_a_name(tmp_path: Path) -> None:
    path = tmp_path / "my_gpu.yaml"
    path.write_text(yaml.safe_dump(MINE))
    device = store.find(str(path))
    assert device.name == "my-gpu"
    assert device.peak("bf16") == 70e12
    assert device.memory_bytes == 24 * GIB
    assert 23 * GIB < device.usable_memory_bytes < 24 * GIB
    assert device.usable_memory_known == "derived"
    assert device.sources == (str(path),)
    assert store.assumption(str(path)) == ""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"memroy": "24 GiB"}, "unknown field 'memroy'. Did you mean memory"),
        ({"memory": "24 bananas"}, "has unit 'bananas'"),
        ({"memory": "0 GiB"}, "must be above zero"),
        ({"peak": {"bf61": "70 TFLOP/s"}}, "peak has bf61"),
        ({"peak": {}}, "peak has no dtype"),
        ({"peak": 70}, "a field has the wrong form"),
        ({"compute_capability": "nine"}, "a field has the wrong form"),
        ({"peak": None}, "a field has the wrong form"),
    ],
)
def test_a_mistake_in_that_file_is_told_in_one_line(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    path = tmp_path / "my_gpu.yaml"
    path.write_text(yaml.safe_dump(MINE | change))
    with pytest.raises(RigplanError) as error:
        store.find(str(path))
    assert reason in str(error.value)
    assert "my_gpu.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("- a\n- b\n", "holds list"),
        ("a: [", "is not valid YAML"),
        ("name: x\n", "memory, memory_bandwidth, peak missing"),
    ],
)
def test_a_file_that_is_no_accelerator_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "my_gpu.yaml"
    path.write_text(content)
    with pytest.raises(RigplanError, match=r"my_gpu\.yaml") as error:
        store.find(str(path))
    assert reason in str(error.value)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(RigplanError, match=r"There is no file 'nowhere.yaml'"):
        store.find("nowhere.yaml")


def test_finding_a_device_reads_few_files_and_imports_little(root: Path) -> None:
    script = (
        "import sys; from catalog import store, system; system.default_node(store.find('h200'));"
        "heavy = {'torch', 'pydantic', 'transformers', 'numpy'} & set(sys.modules);"
        "print(store.accelerator.cache_info().currsize, *sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
