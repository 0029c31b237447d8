"""Limits: how far a spec can go on its machine: the largest micro-batch or the longest sequence that fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial

from catalog import presets
from catalog.errors import RigplanError
from catalog.units import gib
from planner.answer import Estimate
from planner.question import How
from planner.search import Progress, outcomes
from planner.spec import Spec
from planner.strategy import LARGEST_MICRO_BATCH, choices

FIRST_SEQUENCE, LONGEST_SEQUENCE = 1024, 1 << 22
IMAGES = ("image-classification", "video-classification", "semantic-segmentation")
MOST_AHEAD = 8  # times the largest size that fits: no line is trusted further
FINE = 128
GRAIN = 64  # sequence lengths are told in multiples of this: kernels like them, and nobody asks for finer

Tried = Callable[[int], Estimate]  # raises RigplanError where the model does not take that size


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest value that fits, the estimate there, and the least value tried that does not, with its own estimate
    where the model takes it at all."""

    what: str
    value: int | None
    too_large: int | None
    estimate: Estimate | None
    reason: str = ""
    beyond: Estimate | None = None

    @property
    def text(self) -> str:
        if self.value is None or self.estimate is None:
            why = self.reason if self.beyond is None else _need(self.beyond)
            return (
                f"{self.what}: not even {self.too_large} fits: {why}; `rigplan fits` without --max has what would help"
            )
        if self.reason:
            more = self.reason
        elif self.beyond is None:
            more = "no larger one was tried"
        else:
            is_not = "is borderline" if self.beyond.verdict == "borderline" else "does not fit"
            more = f"{self.too_large} {is_not} ({_need(self.beyond)})"
        return f"{self.what}: {self.value} fits ({_need(self.estimate)}); {more}"

    def to_json(self) -> str:
        """The limit as JSON, the estimates inside as everywhere."""
        plain = asdict(replace(self, estimate=None, beyond=None))
        for name, found in (("estimate", self.estimate), ("beyond", self.beyond)):
            plain[name] = None if found is None else found.model_dump(mode="json")
        return json.dumps(plain, indent=2)


def _need(found: Estimate) -> str:
    memory = found.memory
    return f"{gib(memory.device_bytes)} of {gib(memory.usable_bytes)}, peak in {memory.peak_phase}"


def furthest_fitting(spec: Spec, what: str, *, profile: str = "", progress: Progress | None = None) -> Limit:
    """`what` is micro-batch or sequence-length; the answer is a real trace. RigplanError on a choice."""
    if spec.models:
        raise RigplanError("--max takes one combination, and the spec lists models; leave models out")
    combinations = list(choices(spec))
    if len(combinations) > 1:
        raise RigplanError(
            f"--max takes one combination, and the spec leaves {len(combinations)}; leave one of each list"
        )
    strategy, choice = combinations[0]

    @cache
    def tried(size: int, *, read_off: bool = False) -> Estimate:
        asked, plan = spec, replace(strategy, micro_batch=size, accumulation=1, global_batch=None)
        if what == "sequence-length":
            asked = spec.model_copy(update={"data": spec.data.model_copy(update={"sequence_length": size})})
            plan = replace(strategy, micro_batch=strategy.micro_batch or 1)
        how = How(timed=False, whole=True, read_off=read_off)
        found = outcomes(asked, [(plan, choice)], how, profile=profile, progress=progress)[0]
        if isinstance(found, str):
            raise RigplanError(found)
        return found

    if what == "sequence-length":
        preset = _has_length(spec)
        usual = spec.data.sequence_length or (preset.sequence_length if preset else None) or FIRST_SEQUENCE
        start = _first_length(tried, usual)
        if preset is None and not _counts(tried, start):
            raise _no_sequence("the model")
        return _bisect(what, tried, GRAIN, start, start, LONGEST_SEQUENCE)
    # two traces say where the limit is; traces of the sizes beside it say that it is there
    start = strategy.micro_batch or 1
    rough = _bisect(what, partial(tried, read_off=True), 1, start, start, LARGEST_MICRO_BATCH)
    return rough if rough.value is None else _bisect(what, tried, 1, rough.value, 1, LARGEST_MICRO_BATCH)


def _first_length(tried: Tried, usual: int) -> int:
    """The length that the search begins at: the usual one or, where the model refuses it, the next half or double of it
    that the model takes. RigplanError when it takes none."""
    whole = max(GRAIN, usual // GRAIN * GRAIN)
    halves = [whole >> times for times in range(whole.bit_length()) if whole >> times >= GRAIN]
    doubles = [whole << times for times in range(1, 9)]
    refused = ""
    for length in dict.fromkeys((usual, *halves, *doubles)):
        try:
            tried(length)
        except RigplanError as error:
            if not str(error).startswith("data."):
                raise  # no other length would help
            refused = refused or str(error)
        else:
            return length
    raise RigplanError(f"--max sequence-length: {refused}")


def _counts(tried: Tried, length: int) -> bool:
    """Whether the length changes anything; a model that takes no other one is told by the search itself."""
    try:
        return tried(length + GRAIN).memory.device_bytes != tried(length).memory.device_bytes
    except RigplanError:
        return True


def _has_length(spec: Spec) -> presets.Preset | None:
    """The preset of the spec, if it is one. Raises RigplanError where `data.sequence_length` can be seen to change
    nothing: for images, and where a factory decides."""
    model = spec.model
    if model.module is not None:
        raise RigplanError("--max sequence-length: the factory of a module decides its lengths; use --max micro-batch")
    preset = presets.lookup(model.name) if model.name else None
    task = model.task or (preset.task if preset else None)
    if task in IMAGES or (preset is not None and preset.sequence_length is None):
        raise _no_sequence(model.name or "the model")
    return preset


def _no_sequence(model: str) -> RigplanError:
    return RigplanError(
        f"--max sequence-length: {model} reads images, not a sequence; use --max micro-batch, or try another "
        "data.image_size"
    )


def _bisect(what: str, tried: Tried, grain: int, start: int, stride: int, most: int) -> Limit:
    """From `start` by doubling, or to where the memory of what fits points, until it does not fit; then between."""
    known: dict[int, Estimate | None] = {}
    reason = ""

    def fits(size: int) -> bool:
        nonlocal reason
        try:
            known[size] = tried(size)
        except RigplanError as error:
            if not known:
                raise
            known[size], reason = None, str(error)  # the model itself ends here
        found = known[size]
        return found is not None and found.verdict == "fits"

    low, high = 0, start
    while high <= most and fits(high):
        low, ahead = high, _ahead(known, grain)
        step = _apart(low, grain)
        high, stride = (min(ahead, MOST_AHEAD * low), step) if ahead > low + step else (low + stride, 2 * stride)
    if high > most:
        return Limit(what, low or None, None, known.get(low), reason)
    if low == 0 and high > grain:  # the least of all, as it may be that nothing fits
        low, high = (grain, high) if fits(grain) else (0, grain)
    guess = True  # a guess, then a halving, so that neither a bad guess nor a wide gap costs many traces
    while high - low > _apart(low, grain):
        size = _ahead(known, grain) if guess else 0
        if not low < size < high:
            size = (low + high) // 2 // grain * grain
        size = min(max(size, low + grain), high - grain)
        low, high, guess = (size, high, not guess) if fits(size) else (low, size, not guess)
    beyond = known.get(high)
    return Limit(what, low or None, high, known.get(low), "" if beyond else reason, beyond)


def _ahead(known: dict[int, Estimate | None], grain: int) -> int:
    """Where the line through the largest size that fits and one of at most its half, as what lies close together says
    little, meets the limit; 0 when there is no such line."""
    fitting = [
        (size, found)
        for size, found in sorted(known.items(), key=lambda item: item[0])
        if found and found.verdict == "fits"
    ]
    if len(fitting) < 2:
        return 0
    two, large = fitting[-1]
    one, small = next((pair for pair in reversed(fitting) if 2 * pair[0] <= two), fitting[-2])
    slope = (large.memory.high_bytes - small.memory.high_bytes) / (two - one)
    if slope <= 0:
        return 0
    return int(two + (large.memory.usable_bytes - large.memory.high_bytes) / slope) // grain * grain


def _apart(low: int, grain: int) -> int:
    """How near the answer lies to what does not fit: a micro-batch exactly, a length to one part in FINE."""
    return grain if grain == 1 else max(grain, low // FINE // grain * grain)


__all__ = ["Limit", "furthest_fitting"]
