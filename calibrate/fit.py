"""Turns timings of operators into a profile: exact points, curves with held-out residuals, named factors."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import minimize

from catalog.errors import RigplanError
from catalog.profile import Factor, Profile, Samples, curve_dtype, own, prior_factors, save
from catalog.store import accelerator as catalog_accelerator
from planner.call import from_json
from planner.cost import point_key
from planner.curve import DEFAULT_TUNING, RESTS_ON, Curve, below, coordinates, fit_residual, residual_of
from planner.curve import fit as fit_curve
from planner.operators import KINDS, Operator, describe
from planner.roofline import Numbers, Rates, rates

METHOD_VERSION = 2
"""Raised when timing or fitting changes what a profile means."""

LARGEST_CURVE = 2400
TUNING_POINTS = 600
FOLDS = 5
REPORTED = ("h200-sxm", "h100-sxm5-80gb", "a100-sxm4-80gb", "l40s")
FEWEST_FOR_TUNING = 25
STEPS = 60
SEED = 20260101
LOCAL_SHARE = 0.95
"""Of what a smooth curve leaves over, the part that repeats at one shape (library heuristics); the rest is noise."""


def samples_of(
    device: str, kind: str, dtype: str, source: str, timed: Sequence[tuple[Operator, float]], measured: bool = False
) -> Samples:
    """Samples from operators and their seconds."""
    variants = tuple(sorted({operator.variant for operator, _ in timed}))
    place = {name: index for index, name in enumerate(variants)}
    return Samples(
        device=device,
        kind=kind,
        dtype=dtype,
        source=source,
        variants=variants,
        variant=np.asarray([place[operator.variant] for operator, _ in timed], dtype=np.int64),
        shape=np.asarray([operator.shape for operator, _ in timed], dtype=np.float64),
        work=np.asarray(
            [(item.executed_flop, item.bytes_read, item.bytes_written) for item, _ in timed], dtype=np.float64
        ),
        seconds=np.asarray([seconds for _, seconds in timed], dtype=np.float64),
        measured=measured,
    )


def thinned(samples: Samples, largest: int) -> Samples:
    """At most `largest` samples, taken evenly over their order of work."""
    if len(samples) <= largest:
        return samples
    order = np.lexsort((samples.seconds, samples.work[:, 0] + samples.work[:, 1:].sum(axis=1)))
    return samples.take(np.sort(order[np.linspace(0, len(order) - 1, largest).astype(int)]))


def tuned(samples: Samples, at: Rates, lower: tuple[Curve, ...] = ()) -> Samples:
    """The samples with the smoothness that makes them most likely: one length a coordinate, signal, noise."""
    if len(samples) < FEWEST_FOR_TUNING:
        return samples
    some = samples.take(np.random.default_rng(SEED).permutation(len(samples))[:TUNING_POINTS])
    names, residual = residual_of(some, at, lower)
    raw = coordinates(some, names, some.shape, some.work)
    count = raw.shape[1] - len(some.variants)
    # Squared distances a coordinate once; the variants share one.
    apart = [(raw[:, [place]] - raw[:, place]) ** 2 for place in range(count)]
    apart.append(np.asarray(sum((raw[:, [place]] - raw[:, place]) ** 2 for place in range(count, raw.shape[1]))))
    start = np.log(np.array([3.0] * count + [1.5, 0.35, 0.03]))
    low = np.log(np.array([1.0] * count + [0.3, 0.03, 0.01]))
    high = np.log(np.array([60.0] * count + [60.0, 1.5, 0.3]))

    def loss(place: Numbers) -> tuple[float, Numbers]:
        return _likelihood(place, apart, residual, (start,))

    bounds = list(zip(low, high, strict=True))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
    values = np.exp(found.x)
    tuning = {
        "lengths": [float(f"{value:.4g}") for value in values[:count]],
        "variant": float(f"{1.0 / values[count]:.4g}"),
        "signal": float(f"{values[count + 1]:.4g}"),
        "local": float(f"{values[count + 2] * LOCAL_SHARE:.4g}"),
        "noise": float(f"{values[count + 2] * (1 - LOCAL_SHARE**2) ** 0.5:.4g}"),
        "mean": DEFAULT_TUNING["mean"],
    }
    return replace(samples, tuning=tuning)


def _likelihood(place: Numbers, apart: list[Any], residual: Numbers, start: tuple[Numbers]) -> tuple[float, Numbers]:
    """Negative log marginal likelihood of a Matern 5/2 process and its gradient in log parameters."""
    values = np.exp(place)
    lengths, signal, noise = values[:-2], values[-2], values[-1]
    square = sum(item / length**2 for item, length in zip(apart, lengths, strict=True))
    distance = np.sqrt(5.0 * square)
    decay = np.exp(-distance)
    shape = (1.0 + distance + distance**2 / 3.0) * decay
    size = len(residual)
    matrix = DEFAULT_TUNING["mean"] ** 2 + signal**2 * shape + (noise**2 + 1e-8) * np.eye(size)
    lower = np.linalg.cholesky(matrix)
    inverse = np.linalg.inv(lower)
    inverse = inverse.T @ inverse
    weights = inverse @ residual
    value = 0.5 * residual @ weights + np.log(np.diag(lower)).sum()
    core = inverse - np.outer(weights, weights)
    slope = core * (signal**2 * 5.0 / 3.0 * (1.0 + distance) * decay)
    gradient = [0.5 * (slope * item).sum() / length**2 for item, length in zip(apart, lengths, strict=True)]
    gradient.append((core * shape).sum() * signal**2)
    gradient.append(np.trace(core) * noise**2)
    # A weak pull to the start keeps coordinates that the samples do not tell apart from running away.
    pull = (place - start[0]) / 4.0
    return float(value + (pull**2).sum() * 2.0), np.asarray(gradient) + pull


def held_out_errors(samples: Samples, at: Rates, lower: tuple[Curve, ...] = (), folds: int = FOLDS) -> Numbers:
    """Absolute log errors of each sample, predicted by a curve that has not seen it."""
    names, residual = residual_of(samples, at, lower)
    order = np.random.default_rng(SEED).permutation(len(samples))
    errors = np.zeros(len(samples))
    for part in range(folds):
        out = order[part::folds]
        kept = np.setdiff1d(order, out)
        curve: Curve = fit_residual(samples.take(kept), names[kept], residual[kept], at)
        errors[out] = np.abs(curve.log_factor(names[out], samples.shape[out], samples.work[out]) - residual[out])
    return errors


def fit(lines: Iterable[Mapping[str, Any]], name: str = "") -> Profile:
    """A profile from measurement lines: one header, factors, and calls with their seconds.

    Raises RigplanError when there is no header naming a catalog device or nothing was measured.
    """
    header: dict[str, Any] = {}
    factors: dict[str, Factor] = {}
    timed: dict[tuple[str, str], list[tuple[Operator, float]]] = defaultdict(list)
    points: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if "header" in line:
            header = dict(line["header"])
        elif "factor" in line:
            factors[str(line["factor"])] = Factor(
                float(line["value"]), str(line["unit"]), str(line.get("source", "measured")), line.get("residual")
            )
        elif "call" in line:
            call, tf32 = from_json(line["call"]), bool(line.get("tf32", False))
            points[point_key(call, tf32)].append(float(line["seconds"]))
            operator = describe(call, tf32=tf32)
            if operator.kind in KINDS:
                timed[operator.kind, curve_dtype(operator.kind, operator.dtype)].append(
                    (operator, float(line["seconds"]))
                )
    device = str(header.get("accelerator", ""))
    if not device or not timed:
        raise RigplanError(
            "The measurements have no header with an accelerator, or no timed call; run `rigplan calibrate run`."
        )
    at = rates(catalog_accelerator(device))
    curves: dict[str, tuple[Samples, ...]] = {}
    residuals: dict[str, float] = {}
    errors: dict[str, list[float]] = defaultdict(list)
    for (kind, dtype), pairs in sorted(timed.items(), key=lambda item: (item[0][1] in RESTS_ON, item[0])):
        merged = _merged(pairs)
        samples = thinned(samples_of(device, kind, dtype, "measured", merged, measured=True), LARGEST_CURVE)
        lower = tuple(fit_curve(item, at) for item in below(samples, curves))
        samples = tuned(samples, at, lower)
        curves[samples.key] = (samples,)
        if len(samples) >= 2 * FOLDS:
            errors[kind].extend(held_out_errors(samples, at, lower).tolist())
    residuals = {kind: float(f"{median(values):.4g}") for kind, values in errors.items()}
    return Profile(
        name=name or f"{device}-{header.get('torch', '')}".rstrip("-"),
        accelerator=device,
        known="measured",
        method_version=METHOD_VERSION,
        provenance=header,
        points={key: median(values) for key, values in points.items()},
        curves=curves,
        factors=factors,
        residuals=residuals,
    )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a sweep's result. Raises RigplanError on a line that is none."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise RigplanError(f"{str(path)!r} is not a file of measurements ({error}).") from None


def _merged(pairs: Sequence[tuple[Operator, float]]) -> list[tuple[Operator, float]]:
    grouped: dict[Operator, list[float]] = defaultdict(list)
    for operator, seconds in pairs:
        grouped[operator].append(seconds)
    return [(operator, median(seconds)) for operator, seconds in grouped.items()]


def report(devices: Sequence[str]) -> Iterator[str]:
    """One line a device and curve: held-out errors of a curve that has not seen the shape, and the model's own."""
    for device in devices:
        profile = own(device)
        if profile is None:
            raise RigplanError(f"{device} has no profile of its own; `rigplan gpus` lists the devices.")
        at = rates(catalog_accelerator(device), {**prior_factors(), **profile.factors})
        for key, layers in sorted(profile.curves.items()):
            samples = layers[-1]
            if len(samples) < 2 * FOLDS:
                continue
            lower = tuple(fit_curve(item, at) for item in below(samples, profile.curves))
            errors = held_out_errors(samples, at, lower)
            _, residual = residual_of(samples, at)
            model = np.median(np.abs(residual - np.median(residual)))
            yield (
                f"{device:32}{key:22}{len(samples):5}  held-out median {np.median(errors):6.1%}  "
                f"p90 {np.quantile(errors, 0.9):6.1%}  model alone, one scalar {model:6.1%}"
            )


def main(arguments: Sequence[str]) -> int:
    """`--report [DEVICE ...]` prints held-out errors; `MEASUREMENTS.jsonl PROFILE.json[.gz]` writes a profile."""
    try:
        if arguments[:1] == ["--report"]:
            for line in report(arguments[1:] or REPORTED):
                print(line)
            return 0
        if len(arguments) == 2:
            save(fit(read_lines(Path(arguments[0]))), Path(arguments[1]))
            return 0
    except RigplanError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        "usage: python -m calibrate.fit --report [DEVICE ...] | MEASUREMENTS.jsonl PROFILE.json[.gz]", file=sys.stderr
    )
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
