"""Published timings: only of kernels that a training step runs, and as it runs them."""

from __future__ import annotations

import csv
from pathlib import Path

from calibrate.prior import attention_rows, convolution_rows, matmul_rows

ROW = {
    "gpu": "L40S", "dtype": "bf16", "source": "aiconfigurator", "direction": "fwd", "causal": "false", "batch": "2",
    "heads": "16", "kv_heads": "16", "seq_q": "1024", "seq_k": "1024", "head_dim": "64", "seconds": "1e-4", "notes": "",
}  # fmt: skip


def told(folder: Path, *rows: tuple[str, str]) -> int:
    with (folder / "attention.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*ROW, "source_where", "kernel"])
        writer.writeheader()
        writer.writerows({**ROW, "source_where": where, "kernel": kernel} for where, kernel in rows)
    return len(list(attention_rows(folder)))


def test_prefill_of_a_server_writes_a_cache_beside_and_is_left_out(tmp_path: Path) -> None:
    served = ("l40s/attention/vllm/0.24.0", "vllm_flash_attn_fa2")
    plain = ("l40s/encoder_attention/vllm/0.24.0", "vllm_vit_flash_attn_fa2")
    assert told(tmp_path, served) == 0
    assert told(tmp_path, plain) == 1


def test_kernels_that_training_does_not_run_are_left_out(tmp_path: Path) -> None:
    assert told(tmp_path, *(("l40s/encoder_attention/x", kernel) for kernel in ("torch_flow", "triton", "flex"))) == 0


def test_of_deepbenchs_few_images_and_columns_only_fp32_convolutions_count(tmp_path: Path) -> None:
    common = {"source": "DeepBench", "source_where": "", "gpu": "V100", "seconds": "1e-3", "notes": "", "batch": "16"}
    image = {"cin": "64", "h": "56", "w": "56", "cout": "64", "kh": "3", "kw": "3", "stride": "1", "pad": "1"}
    lines = [{**common, **image, "groups": "1", "direction": "fwd", "dtype": dtype} for dtype in ("fp16", "fp32")]
    products = [{**common, "op": "gemm", "layout": "NN", "m": "1760", "n": "16", "k": "1760", "dtype": "fp16"}]
    for name, rows in (("conv.csv", lines), ("matmul.csv", products)):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    assert [call.arguments[0].dtype for _, call, *_ in convolution_rows(tmp_path)] == ["f32"]
    assert list(matmul_rows(tmp_path)) == []
