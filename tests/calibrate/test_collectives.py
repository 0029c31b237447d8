"""The collectives harness, for real over gloo; and the fit that makes link profiles."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from calibrate.collectives import SMALLEST_BYTES, groups, sizes
from calibrate.links import errors, fit, from_torch, rows_of
from catalog.errors import RigplanError
from catalog.link_curve import LinkCurves, from_json, read, to_json

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> LinkCurves:
    out = tmp_path_factory.mktemp("links") / "profile.json"
    command = [sys.executable, "-m", "calibrate.collectives", "--link", "ethernet-10-shared", "--out", str(out)]
    command += ["--largest", str(1 << 18), "--point-seconds", "0.005"]
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    # what torchrun says to each process, without the seconds that it takes to start
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    group |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-2000:]
    return read(out)


def test_two_processes_time_every_collective_from_4_kib_on(written: LinkCurves) -> None:
    assert set(written.curves) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"}
    points, seconds = written.curves["all_reduce"][2]
    assert points.tolist() == [4096.0 * 2**step for step in range(7)]
    assert (np.diff(seconds) >= 0).all()
    assert 1e-6 < seconds[0] < 1.0
    assert "gloo over 2 processes" in written.source


def test_groups_are_powers_of_two_and_everyone() -> None:
    assert groups(2) == [2]
    assert groups(6) == [2, 4, 6]
    assert groups(16) == [2, 4, 8, 16]


def test_sizes_reach_from_4_kib_to_2_gib() -> None:
    asked = sizes(2 << 30)
    assert (asked[0], asked[-1], len(asked)) == (SMALLEST_BYTES, 2 << 30, 20)


def test_a_profile_survives_its_file(written: LinkCurves) -> None:
    again = from_json(json.loads(json.dumps(to_json(written))))
    assert again.seconds("all_gather", 50_000, 2) == pytest.approx(written.seconds("all_gather", 50_000, 2), rel=1e-3)


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with pytest.raises(RigplanError, match="no link profile"):
        read(tmp_path / "x.json")


def test_a_fit_gives_back_what_it_was_shown() -> None:
    rows = [
        ("all_reduce", ranks, float(1 << size), 1e-5 + (1 << size) / 1e11) for ranks in (2, 4) for size in range(10, 30)
    ]
    curves = fit(rows, "pcie4-host", "made up")
    assert max(abs(error) for _, error in errors(curves, rows)) < 1e-9
    gathered = curves.seconds("all_gather", 1 << 29, 4)
    assert gathered == pytest.approx((curves.seconds("all_reduce", 1 << 29, 4) or 0) / 2, rel=0.01)


def test_below_the_smallest_message_a_curve_goes_down_to_the_latency_of_its_link() -> None:
    curves = fit([("all_gather", 10, float(1 << 25), 7.2e-4)], "infiniband-ndr-8x400", "made up")
    assert curves.seconds("all_gather", 1.0, 10) == pytest.approx(29e-6 + 8 * 4e-6, rel=0.1)


def test_torchs_sizes_are_of_one_rank_and_become_the_full_tensors() -> None:
    found = from_torch({"rows": [{"op": "all_reduce", "mib": 1, "s": 1.0}, {"op": "all_gather", "mib": 1, "s": 1.0}]})
    assert [size for _, _, size, _ in found] == [1 << 20, 2 << 20]


def test_rows_of_one_node_and_of_one_gpu_a_node_are_told_apart() -> None:
    def row(gpus: int, nodes: str) -> dict[str, str]:
        plain = {"source": "s", "gpu": "g", "source_where": "", "op": "sendrecv", "fabric": ""}
        return {**plain, "bytes": "8", "seconds": "1", "n_gpus": str(gpus), "n_nodes": nodes}

    table = [row(8, ""), row(8, "1"), row(10, "10"), row(80, "10")]
    assert [ranks for _, ranks, _, _ in rows_of(table, "s", "g")] == [8, 8]
    assert rows_of(table, "s", "g", one_gpu_a_node=True) == [("send_recv", 10, 8.0, 1.0)]
