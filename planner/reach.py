"""Reach: the largest size that still fits, found with few trials.

Each trial replays a whole step, so a prediction says where to begin; the answer itself is always a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Predict = Callable[[int], float]  # size -> bytes, roughly
Holds = Callable[[int], bool]  # size -> whether it fits, for certain


def affine(first: tuple[int, float], second: tuple[int, float]) -> Predict:
    """The line through two points."""
    (one, low), (two, high) = first, second
    slope = (high - low) / (two - one)
    return lambda size: low + slope * (size - one)


def largest(sizes: Sequence[int], holds: Holds, predicted: Predict, limit: float) -> int | None:
    """The largest of ascending `sizes` that holds; None when the smallest does not.

    Starts at the last size predicted within `limit` and walks from there, in steps that double while they succeed or
    fail, then halves the gap: a good prediction costs two trials, a bad one the logarithm of its error.
    """
    if not sizes:
        return None
    start = max((at for at, size in enumerate(sizes) if predicted(size) <= limit), default=0)
    low, high = -1, len(sizes)  # sizes[low] is known to hold, sizes[high] not to
    at, stride = start, 1
    while high - low > 1:
        if holds(sizes[at]):
            low = at
        else:
            high = at
        if low < 0:
            at = max(0, high - stride)
        elif high == len(sizes):
            at = min(len(sizes) - 1, low + stride)
        else:
            at = (low + high) // 2
        stride *= 2
    return None if low < 0 else sizes[low]


__all__ = ["affine", "largest"]
