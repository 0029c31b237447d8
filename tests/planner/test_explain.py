"""An explanation adds up, says where each operator belongs, and is the answer that the estimate gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import planner
from catalog.errors import RigplanError
from planner.breakdown import folded
from planner.cli import rigplan
from planner.explained import explain
from planner.explanation import HOST, LINK, Explanation, TimeRow
from planner.report.explanation import page
from tests.planner.test_search import spec

TINY_BATCH = {"micro_batch": 4, "global_batch": 16}
Write = Callable[[object], Path]


def two_layers(**training: Any) -> dict[str, Any]:
    """Layers of one name, to be folded."""
    asked = spec({**TINY_BATCH, **training})
    return {**asked, "model": {**asked["model"], "config": {**asked["model"]["config"], "n_layer": 2}}}


@pytest.fixture(scope="module")
def tiny() -> Explanation:
    return explain(two_layers(), advice=False)


def rows(found: Explanation, **wanted: object) -> list[TimeRow]:
    return [row for row in found.time if all(getattr(row, name) == value for name, value in wanted.items())]


def test_it_is_the_estimate(tiny: Explanation) -> None:
    assert tiny.estimate == planner.estimate(two_layers())


@pytest.mark.parametrize(
    ("training", "hardware"),
    [
        (TINY_BATCH, None),
        ({"micro_batch": 64, "checkpointing": "full"}, None),
        ({"micro_batch": 4, "optimizer": "sgd", "optimizer_implementation": "for-loop"}, None),
        (TINY_BATCH, {"gpu": "h200-sxm", "count": 4}),
        ({**TINY_BATCH, "sharding": "zero2"}, {"gpu": "a100-sxm4-80gb", "count": 2}),
        ({**TINY_BATCH, "sharding": "fsdp", "checkpointing": "full"}, {"gpu": "rtx-3090", "count": 2}),
        ({**TINY_BATCH, "sharding": "zero2", "offload": "optimizer"}, {"gpu": "a100-sxm4-80gb", "count": 2}),
    ],
)
def test_rows_sum_to_the_step_and_to_the_peak(training: dict[str, object], hardware: object) -> None:
    found = explain(spec(training, hardware), advice=False)
    assert found.estimate.step is not None
    assert sum(row.seconds for row in found.time) == pytest.approx(found.estimate.step.seconds, rel=1e-9)
    assert sum(row.size_bytes for row in found.memory) == found.estimate.memory.peak_allocated_bytes
    assert all(row.seconds > 0 for row in found.time)
    assert all(row.size_bytes > 0 for row in found.memory)
    exposed = sum(row.seconds for row in rows(found, kind=LINK))
    assert exposed == pytest.approx(found.estimate.step.exposed_communication_seconds)


def test_memory_by_category_is_that_of_the_estimate(tiny: Explanation) -> None:
    for category, size in tiny.estimate.memory.by_category.items():
        assert sum(row.size_bytes for row in tiny.memory if row.category == category) == size


def test_a_product_stands_where_the_model_has_it_with_its_shape_flop_and_count(tiny: Explanation) -> None:
    (up,) = rows(tiny, phase="forward", module="transformer.h.*.mlp.c_fc", kind="matmul")
    assert up.modules == 2
    assert up.count == 2 * 4  # layers x micro-steps
    assert {name: up.shape[name] for name in "mnk"} == {"m": 4 * 256, "n": 256, "k": 64}
    assert up.flop == 8 * 2 * 1024 * 256 * 64


def test_backward_belongs_to_the_module_whose_forward_made_it(tiny: Explanation) -> None:
    products = rows(tiny, phase="backward", module="transformer.h.*.mlp.c_fc", kind="matmul")
    assert sum(row.count for row in products) == 2 * 2 * 4  # two products for each of the forward
    (attention,) = rows(tiny, phase="backward", kind="attention")
    assert attention.module == "transformer.h.*.attn"
    head = [row for row in rows(tiny, phase="backward", kind="matmul") if 1000 in row.shape.values()]
    assert {row.module for row in head} == {"lm_head"}
    assert sum(row.count for row in head) == 2 * 4


def test_a_recomputed_forward_belongs_to_its_modules_too() -> None:
    found = explain(two_layers(checkpointing="full"), advice=False)
    products = rows(found, phase="backward", module="transformer.h.*.mlp.c_fc", kind="matmul")
    assert sum(row.count for row in products) == 3 * 2 * 4


def test_optimizer_states_belong_to_the_module_of_their_parameter(tiny: Explanation) -> None:
    held = {(row.category, row.module): row.size_bytes for row in tiny.memory}
    weight = held["weights", "transformer.h.*.mlp.c_fc"]
    assert weight == 2 * (64 * 256 + 256) * 4
    assert held["optimizer", "transformer.h.*.mlp.c_fc"] == 2 * weight
    assert held["gradients", "transformer.h.*.mlp.c_fc"] == weight


def test_small_kernels_are_bound_by_their_launch_and_thin_products_by_memory(tiny: Explanation) -> None:
    assert rows(tiny, kind=HOST)[0].seconds > 0.5 * sum(row.seconds for row in tiny.time)
    assert {row.bound for row in rows(tiny, kind="layer_norm")} == {"launch"}
    (head,) = rows(explain(spec({"micro_batch": 64}), advice=False), phase="forward", module="lm_head", kind="matmul")
    assert head.bound == "memory"  # 64 products an element: 30 us of FLOP at 71 TFLOP/s, 37 us of bytes at 936 GB/s
    assert head.flop == 2 * 64 * 256 * 1000 * 64
    assert 0.1 < (head.efficiency or 0) <= 1


def test_a_measured_gpu_says_what_was_timed_and_what_is_read_off_a_curve() -> None:
    found = explain(spec({"micro_batch": 4}, {"gpu": "h200-sxm"}), advice=False)
    assert {row.known for row in found.time if row.phase} == {"measured"}
    assert {row.known for row in explain(spec(), advice=False).time if row.phase} >= {"transferred"}


def test_a_rank_is_a_row_of_the_plan() -> None:
    several = spec({"checkpointing": ["none", "full"], **TINY_BATCH})
    ranked = planner.plan(several).ranked
    for rank in (1, 2):
        assert explain(several, rank=rank, advice=False).estimate == ranked[rank - 1]
    with pytest.raises(RigplanError, match="--rank: found 3, wanted 1 to 2"):
        explain(several, rank=3, advice=False)


def test_numbers_of_layers_are_folded_and_nothing_else() -> None:
    assert folded("model.layers.11.mlp.conv1d_2") == "model.layers.*.mlp.conv1d_2"
    assert folded("0.3.weight") == "*.*.weight"


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_keeps_to_its_width(tiny: Explanation, width: int) -> None:
    lines = page(tiny, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.split()[:4] == ["waiting", "for", "the", "host"] for line in lines)


def test_the_command_prints_the_page_or_json_and_needs_no_torch_when_warm(spec_file: Write) -> None:
    path = spec_file(spec(TINY_BATCH))
    told = CliRunner().invoke(rigplan, ["explain", str(path), "--no-advice"], catch_exceptions=False)
    assert told.exit_code == 0
    assert "By module" in told.stdout
    done = CliRunner().invoke(rigplan, ["explain", str(path), "--no-advice", "--json"], catch_exceptions=False)
    assert Explanation.model_validate(json.loads(done.stdout)) == explain(spec(TINY_BATCH), advice=False)
    code = (
        "import sys\nfrom planner.cli import rigplan\n"
        f"rigplan(['explain', {str(path)!r}, '--no-advice'], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules\n"
    )
    warm = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert warm.returncode == 0, warm.stderr
    assert "loading" not in warm.stderr  # a slow machine may tell of other waits
