"""Builds the shipped prior profiles from published timings of single operators: `python -m calibrate.prior FOLDER`.

FOLDER holds matmul.csv, matmul_2.csv, attention.csv, conv.csv, other.csv and neusight_fp32.csv. Every row becomes the
call a trace would hold, is described like one, and joins the samples of its device.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from calibrate.fit import METHOD_VERSION, samples_of, thinned, tuned
from catalog.profile import PROFILES, Profile, Samples, curve_dtype, own, save
from catalog.store import accelerator
from planner.call import Call, TensorSpec
from planner.operators import Operator, describe
from planner.operators.attention import GATES
from planner.roofline import rates

Row = dict[str, str]
Timed = tuple[str, Call, float, bool, str]
"""Device, call, seconds, tf32, source."""

DEVICES = {
    "A100-SXM4-80GB": "a100-sxm4-80gb", "A100": "a100-sxm4-80gb", "A100-PCIE-80GB": "a100-pcie-80gb",
    "H100-SXM5-80GB": "h100-sxm5-80gb", "H100": "h100-sxm5-80gb", "H200-SXM": "h200-sxm", "A40": "a40",
    "L40S": "l40s", "B200": "b200-sxm", "B300": "b300-sxm", "GB200": "gb200", "GB300": "gb300",
    "RTX-PRO-6000-Blackwell-Server": "rtx-pro-6000-blackwell-server", "Arc-Pro-B60": "arc-pro-b60",
    "V100": "v100-sxm2-16gb", "T4": "t4", "MI300X": "mi300x", "MI355X": "mi355x", "RTX-A5000": "rtx-a5000",
    "NVIDIA A100 80GB PCIe": "a100-pcie-80gb", "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm5-80gb", "NVIDIA L4": "l4", "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "AMD Instinct MI100": "mi100", "AMD Instinct MI210": "mi210",
}  # fmt: skip
"""Names in the tables to catalog names; rows of other devices are left out."""

DTYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "tf32": "f32", "fp8": "f8", "bf16/fp16": "bf16"}
MATMUL_SOURCES = ("aiconfigurator", "vidur", "SimuMax", "openxla", "ROCm aiter")
"""Not DeepBench, whose products have few columns, warm in the L2. Nor its fp16 convolutions, of 4 to 32 images each: a
training step by them was too short by a fifth to a quarter on each of six GPUs of Volta and Turing, under libraries of
2020 and of 2022 (Lambda's ResNet-50), as none was on GPUs without such timings. Its fp32 ones hold."""
RECURRENT = {"lstm": "lstm", "gru": "gru", "vanilla": "rnn_tanh", "rnn": "rnn_tanh"}
OTHER_KERNELS = ("triton", "flex", "math", "standard", "torch_flow")
"""Attention that no training step runs. So are aiconfigurator's prefill rows (`/attention/`), which write a cache of
keys and values beside: on one chip they take up to twice what its encoder rows, the plain kernel, do."""
LEFT_OUT = ("moe", "main grad", "max over", "accumulate into")
LARGEST_CURVE = 700


def rows(folder: Path, name: str) -> Iterator[Row]:
    path = folder / name
    if path.exists():
        with path.open(encoding="utf-8", newline="") as stream:
            yield from csv.DictReader(stream)


def matmul_rows(folder: Path) -> Iterator[Timed]:
    for name in ("matmul.csv", "matmul_2.csv"):
        for row in rows(folder, name):
            device, dtype = DEVICES.get(row["gpu"]), DTYPES.get(row["dtype"])
            notes = row["notes"].lower()
            if device is None or dtype is None or row["source"] not in MATMUL_SOURCES or row["op"] == "grouped":
                continue
            if dtype == "f8" or any(word in notes for word in LEFT_OUT) or not row["seconds"]:
                continue
            if row["source"] == "SimuMax" and row["layout"] == "NT":
                continue  # it accumulates into an fp32 gradient, which moves more bytes than a plain product
            if row["source"] == "openxla" and row["dtype"] != "tf32":
                continue  # XLA's own kernels; only the TF32 ones have no better source
            batch, m, n, k = (int(row[key] or 1) for key in ("batch", "m", "n", "k"))
            call = product(dtype, batch, m, n, k, row["layout"] or "NN")
            yield device, call, float(row["seconds"]), row["dtype"] == "tf32", row["source"]


def product(dtype: str, batch: int, m: int, n: int, k: int, layout: str = "TN") -> Call:
    """C[m, n] = A[m, k] B[k, n] in BLAS words: a leading T is B stored transposed, as a linear layer's."""
    flip_b, flip_a = layout[0] == "T", layout[1] == "T"
    lead = (batch,) if batch > 1 else ()
    steps = (m * k,) if batch > 1 else ()
    a = TensorSpec(dtype, (*lead, m, k), (*steps, 1, m) if flip_a else None)
    steps = (k * n,) if batch > 1 else ()
    b = TensorSpec(dtype, (*lead, k, n), (*steps, 1, k) if flip_b else None)
    return Call("bmm.default" if batch > 1 else "mm.default", (a, b), (), (TensorSpec(dtype, (*lead, m, n)),))


def attention_rows(folder: Path) -> Iterator[Timed]:
    for row in rows(folder, "attention.csv"):
        device, dtype = DEVICES.get(row["gpu"]), DTYPES.get(row["dtype"])
        flags = row["causal"] in ("true", "false") and row["direction"] in ("fwd", "bwd")
        kernel = row["kernel"].lower()
        if device is None or dtype is None or not flags or not row["seconds"] or "fp8" in row["notes"]:
            continue
        if any(word in kernel for word in OTHER_KERNELS) or "/attention/" in row["source_where"]:
            continue
        numbers = [row[key] for key in ("batch", "heads", "seq_q", "seq_k", "head_dim")]
        if not all(numbers):
            continue
        batch, heads, queries, keys, head_dim = map(int, numbers)
        kv_heads = int(row["kv_heads"] or heads)
        q, k = (
            TensorSpec(dtype, (batch, heads, queries, head_dim)),
            TensorSpec(dtype, (batch, kv_heads, keys, head_dim)),
        )
        lse, causal = TensorSpec("f32", (batch, heads, queries)), row["causal"] == "true"
        name = "cudnn" if any(word in kernel for word in ("fa3", "v3", "transformerengine", "fa4")) else "flash"
        if row["direction"] == "fwd":
            call = Call("rigplan.attention_forward.default", (q, k, k, None, 0.0, causal, name), (), (q, lse))
        else:
            given = (q, q, k, k, q, lse, None, 0.0, causal, name)
            call = Call("rigplan.attention_backward.default", given, (), (q, k, k))
        yield device, call, float(row["seconds"]), False, row["source"]


def convolution_rows(folder: Path) -> Iterator[Timed]:
    for row in rows(folder, "conv.csv"):
        device, dtype = DEVICES.get(row["gpu"]), DTYPES.get(row["dtype"])
        if device is None or dtype != "f32" or not row["seconds"]:
            continue
        batch, c_in, h, w, c_out, kh, kw, stride, pad, groups = (
            int(float(row[key] or 1)) if key != "pad" else int(float((row[key] or "0").split("x")[0]))
            for key in ("batch", "cin", "h", "w", "cout", "kh", "kw", "stride", "pad", "groups")
        )
        out = tuple((size + 2 * pad - window) // stride + 1 for size, window in ((h, kh), (w, kw)))
        if min(out) < 1:
            continue
        sizes = ((batch, c_in, h, w), (c_out, c_in // groups, kh, kw), (batch, c_out, *out))
        call = convolved(dtype, sizes, (stride, pad, groups), row["direction"])
        yield device, call, float(row["seconds"]), False, row["source"]


def convolved(
    dtype: str, sizes: tuple[tuple[int, ...], ...], settings: tuple[int, int, int], direction: str = "fwd"
) -> Call:
    """A 2-d convolution or one product of its backward pass (`bwd_input`, `bwd_weight`, or `bwd` for both)."""
    image, weight, result = (TensorSpec(dtype, size) for size in sizes)
    stride, pad, groups = settings
    common = ((stride, stride), (pad, pad), (1, 1), False, (0, 0), groups)
    if direction == "fwd":
        return Call("convolution.default", (image, weight, None, *common), (), (result,))
    mask = (direction != "bwd_weight", direction != "bwd_input", False)
    wanted = tuple(spec for spec, needed in zip((image, weight), mask, strict=False) if needed)
    return Call("convolution_backward.default", (result, image, weight, None, *common, mask), (), wanted)


def neusight_rows(folder: Path) -> Iterator[Timed]:
    source = "sitar-lab/NeuSight"
    for row in rows(folder, "neusight_fp32.csv"):
        device = DEVICES.get(row["gpu"])
        maker = NEUSIGHT.get(row["op"])
        if device is not None and maker is not None and row["seconds"]:
            yield device, maker(row), float(row["seconds"]), False, source


def _rows_of(name: str, tensors: int, *more: object) -> Callable[[Row], Call]:
    def make(row: Row) -> Call:
        spec = TensorSpec("f32", (int(row["b"]), int(row["h"])))
        return Call(name, (spec,) * tensors + more, (), (spec,))

    return make


def _norm(row: Row) -> Call:
    count, length = int(row["b"]), int(row["h"])
    spec, line, statistic = (TensorSpec("f32", size) for size in ((count, length), (length,), (count, 1)))
    return Call("native_layer_norm.default", (spec, (length,), line, line, 1e-5), (), (spec, statistic, statistic))


def _neusight_convolution(row: Row) -> Call:
    b, c_in, c_out, window, size, stride, pad = (
        int(row[key]) for key in ("b", "cin", "cout", "kernel", "size", "stride", "pad")
    )
    out = (size + 2 * pad - window) // stride + 1
    sizes = ((b, c_in, size, size), (c_out, c_in, window, window), (b, c_out, out, out))
    return convolved("f32", sizes, (stride, pad, 1))


NEUSIGHT: dict[str, Callable[[Row], Call]] = {
    "linear": lambda row: product("f32", 1, int(row["b"]) * int(row["m"]), int(row["n"]), int(row["k"])),
    "bmm": lambda row: product("f32", int(row["b"]), int(row["m"]), int(row["n"]), int(row["k"]), "NN"),
    "ln": _norm,
    "softmax": _rows_of("_softmax.default", 1, -1, False),
    "conv": _neusight_convolution,
    **{name: _rows_of(f"{name}.Tensor", 2) for name in ("add", "mul", "div", "pow")},
    **{f"{name}u": _rows_of(f"{name}.Scalar", 1, 2.0) for name in ("add", "mul", "div", "pow")},
    **{name: _rows_of(f"{name}.default", 1) for name in ("gelu", "relu", "tanh")},
}  # fmt: skip


def recurrent_rows(folder: Path) -> Iterator[Timed]:
    """Forward and backward passes; where the two gradients of a pass are timed apart, their sum."""
    parts: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    for row in rows(folder, "other.csv"):
        device, dtype = DEVICES.get(row["gpu"]), DTYPES.get(row["dtype"] or "")
        mode, _, direction = row["op"].partition("_")
        if row["source"] == "DeepBench" and device and dtype and mode in RECURRENT and row["seconds"]:
            parts[device, dtype, RECURRENT[mode], row["shape"]][direction] = float(row["seconds"])
    for (device, dtype, mode, shape), seconds in parts.items():
        size = {key: int(value) for key, value in (item.split("=") for item in shape.split(";"))}
        given = (dtype, mode, size["hidden"], size["batch"], size["steps"])
        if "fwd" in seconds:
            yield device, recurrent(*given), seconds["fwd"], False, "DeepBench"
        both = [seconds[name] for name in ("bwd_input", "bwd_weight") if name in seconds]
        if "bwd" in seconds or len(both) == 2:
            total = seconds.get("bwd", sum(both))
            yield device, recurrent(*given, backward=True), total, False, "DeepBench"


def recurrent(dtype: str, mode: str, hidden: int, batch: int, steps: int, backward: bool = False) -> Call:
    """One layer of a recurrent net whose input is as wide as its state."""
    x, h = TensorSpec(dtype, (steps, batch, hidden)), TensorSpec(dtype, (1, batch, hidden))
    weights = (TensorSpec(dtype, (GATES[mode] * hidden, hidden)),) * 2
    states, setting = (h, h) if mode == "lstm" else (h,), (1, 0.0, False, False)
    if backward:
        return Call("rigplan.rnn_backward.default", (x, mode, x, states, weights, x, x, *setting), (), (x, h))
    return Call("rigplan.rnn_forward.default", (mode, x, states, weights, *setting), (), (x, h, h))


SOURCES = (matmul_rows, attention_rows, convolution_rows, neusight_rows, recurrent_rows)


def gather(folder: Path) -> dict[str, list[Samples]]:
    """Every device's samples, one set a kind and dtype; repeated timings of one call become their median."""
    timed: dict[tuple[str, str, str], dict[Operator, list[float]]] = defaultdict(lambda: defaultdict(list))
    named: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for source in SOURCES:
        for device, call, seconds, tf32, origin in source(folder):
            operator = describe(call, tf32=tf32)
            key = (device, operator.kind, curve_dtype(operator.kind, operator.dtype))
            timed[key][operator].append(seconds)
            named[key].add(origin)
    found: dict[str, list[Samples]] = defaultdict(list)
    for (device, kind, dtype), operators in sorted(timed.items()):
        pairs = [(operator, median(seconds)) for operator, seconds in operators.items()]
        origin = ", ".join(sorted(named[device, kind, dtype]))
        found[device].append(samples_of(device, kind, dtype, origin, pairs))
    return found


def build(folder: Path, target: Path = PROFILES) -> list[Path]:
    """Write one prior profile a device; a device with a measured profile keeps it."""
    written = []
    for device, sets in gather(folder).items():
        kept = own(device)
        if kept is not None and kept.known == "measured":
            continue
        at = rates(accelerator(device))
        curves = [tuned(thinned(samples, LARGEST_CURVE), at) for samples in sets]
        profile = Profile(
            name=f"{device}-published",
            accelerator=device,
            known="prior",
            method_version=METHOD_VERSION,
            provenance={"sources": sorted({samples.source for samples in curves})},
            points={},
            curves={samples.key: (samples,) for samples in curves},
            factors={},
            residuals={},
        )
        path = target / f"{device}.json.gz"
        save(profile, path)
        written.append(path)
    return written


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print(
            "usage: python -m calibrate.prior FOLDER (with matmul.csv, attention.csv, conv.csv, ...)", file=sys.stderr
        )
        return 2
    for path in build(Path(arguments[0])):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
