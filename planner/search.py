"""Search: every combination of a spec, ranked; and the answers to a spec that leaves one.

What was asked before is read back; the rest is worked out, on two processes where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from catalog.errors import RigplanError
from catalog.units import gib
from planner.answer import Estimate, Excluded, HardwareUsed, Plan, StrategyUsed
from planner.kept import Kept
from planner.money import charged, month_by_month, old_prices
from planner.question import Combination, How, by_model, check_budget
from planner.rank import over_budget, pareto, question, ranked
from planner.spec import Spec
from planner.strategy import choices, same_without_sharding

Source = Spec | Mapping[str, Any] | str | Path
Progress = Callable[[str], None]

MOST_TRACED = 2  # given micro-batches that are traced as they are; of a longer list all are read off two traces

ALL_BY_MONTH = 500  # rows of a plan that are told month by month; of a longer one, the first and the front


def estimate(
    source: Source,
    *,
    profile: str = "",
    progress: Progress | None = None,
    timed: bool = True,
    read_off: bool = False,
) -> Estimate:
    """The estimate of a spec that leaves one combination, fitting or not. Raises RigplanError when it leaves more.

    `read_off`: the micro-batch is read off two traces of smaller ones, which many specs of one model share.
    """
    spec = Spec.load(source)
    if spec.models:
        raise RigplanError("the spec lists models; `rigplan plan` ranks them, an estimate takes one: leave models out")
    combinations = list(choices(spec))
    if len(combinations) > 1:
        raise RigplanError(
            f"the spec leaves {len(combinations)} combinations; `rigplan plan` ranks them, an estimate takes one"
        )
    if progress is not None:
        progress("working out memory, time and cost" if timed else "working out the memory")
    outcome = outcomes(
        spec, combinations, How(timed, whole=True, read_off=read_off), profile=profile, progress=progress
    )[0]
    if isinstance(outcome, str):
        raise RigplanError(outcome)
    return _with_notes(spec, month_by_month(spec, outcome))


def fits(source: Source, *, profile: str = "", progress: Progress | None = None) -> Estimate | Plan:
    """Whether it fits, memory alone: an Estimate for one combination, a Plan for several."""
    spec = Spec.load(source)
    if len(list(choices(spec))) == 1 and not spec.models:
        return estimate(spec, profile=profile, progress=progress, timed=False)
    return plan(spec, profile=profile, progress=progress, timed=False)


def plan(source: Source, *, profile: str = "", progress: Progress | None = None, timed: bool = True) -> Plan:
    """Every combination of a spec: the ranked, best first; the excluded with their reasons; the front."""
    spec = Spec.load(source)
    check_budget(spec)
    kept: list[Estimate] = []
    excluded: list[Excluded] = []
    for one in by_model(spec):
        model = one.model.name if spec.models else None
        for (strategy, choice), outcome in _answers(one, profile, naming(progress, model), timed):
            if isinstance(outcome, str):
                used, machine, reason = StrategyUsed.of(strategy), HardwareUsed.of(choice), outcome
            elif (over := _refused(one, outcome)) is not None:
                used, machine, reason = outcome.strategy, outcome.hardware, over
            else:
                kept.append(outcome.model_copy(update={"model": model}) if model else outcome)
                continue
            excluded.append(Excluded(model=model, strategy=used, hardware=machine, reason=reason))
    if progress is not None:
        progress("ranking what works")
    best = ranked(kept, spec.objective)
    told = {id(item) for item in (best if len(best) <= ALL_BY_MONTH else (*best[:1], *pareto(best)))}
    best = [month_by_month(spec, item) if id(item) in told else item for item in best]
    return Plan(
        ranked=best,
        excluded=excluded,
        pareto=pareto(best),
        assumptions=_counts_together(_each_once(item.assumptions for item in best)),
        unmodelled=_each_once(item.unmodelled for item in best),
        notes=[*_batch(best), *_unpriced(best), *old_prices(best)],
        question=question(spec),
    )


def naming(progress: Progress | None, model: str | None) -> Progress | None:
    """Progress that names the model that it is about, where several are compared."""
    return progress if progress is None or model is None else lambda text: progress(f"{model}: {text}")


def _answers(
    spec: Spec, profile: str, progress: Progress | None, timed: bool
) -> Iterable[tuple[Combination, Estimate | str]]:
    combinations = list(choices(spec))
    how = How(timed, read_off=len(spec.training.micro_batch) > MOST_TRACED)
    asked = set(combinations)
    if progress is not None:
        progress(f"looking up what is known of {len(combinations)} combination{'s' * (len(combinations) > 1)}")
    found = outcomes(spec, combinations, how, profile=profile, progress=progress)
    for (strategy, choice), outcome in zip(combinations, found, strict=True):
        plain = same_without_sharding(strategy, choice)
        if plain is not None and (plain, choice) in asked:
            outcome = f"on one GPU sharding {strategy.sharding} without offload is sharding none, which is here too"
        yield (strategy, choice), outcome


def outcomes(
    spec: Spec,
    combinations: Sequence[Combination],
    how: How,
    *,
    profile: str = "",
    progress: Progress | None = None,
    what: str = "combinations",
) -> list[Estimate | str]:
    """An estimate or a reason for each combination, from memory where it was asked before; `what` they are for the
    progress."""
    with closing(Kept(spec, profile)) as memory:
        found: dict[Combination, Estimate | str | None] = {item: memory.get(*item, how) for item in combinations}
        missing = [item for item, outcome in found.items() if outcome is None]
        if missing:
            from planner.workers import Failure, work_out

            for item, outcome in work_out(spec, missing, profile, progress or (lambda _: None), how, what):
                found[item] = outcome
                if not isinstance(outcome, Failure):
                    memory.put(*item, outcome, how)
            memory.save()
            failures = [outcome for outcome in found.values() if isinstance(outcome, Failure)]
            if failures and not any(isinstance(outcome, Estimate) for outcome in found.values()):
                raise RigplanError(failures[0])
    every = [settled for item in combinations if (settled := found[item]) is not None]
    return [charged(spec, outcome) if isinstance(outcome, Estimate) else outcome for outcome in every]


def _refused(spec: Spec, outcome: Estimate) -> str | None:
    if outcome.verdict == "does-not-fit":
        return missing(outcome)
    return None if spec.objective == "amount" else over_budget(outcome, spec.budget)


def missing(outcome: Estimate) -> str:
    """Why an estimate does not fit: what it needs, what is there, what is missing and when."""
    memory = outcome.memory
    short = missing_bytes(outcome)
    where = f"at micro-batch {outcome.strategy.micro_batch}"
    return (
        f"does not fit {where}: needs {gib(memory.usable_bytes + short)} of {gib(memory.usable_bytes)}, "
        f"{gib(short)} missing, peak in {memory.peak_phase}"
    )


def missing_bytes(outcome: Estimate) -> int:
    """Bytes that a GPU lacks for an estimate; what it would take at the least when only the cache's share is over."""
    memory = outcome.memory
    return max(memory.device_bytes, memory.low_bytes) - memory.usable_bytes


def _with_notes(spec: Spec, outcome: Estimate) -> Estimate:
    note = over_budget(outcome, spec.budget)
    return outcome.model_copy(update={"notes": [*outcome.notes, note]}) if note else outcome


def _unpriced(best: Sequence[Estimate]) -> list[str]:
    reasons = (item.run.cost_source for item in best if item.run is not None and item.run.cost_usd is None)
    return [f"ranked by time after the priced ones: {reason}" for reason in dict.fromkeys(reasons) if reason]


def _batch(best: Sequence[Estimate]) -> list[str]:
    """How the micro-batch of the first was found, where it was searched."""
    return [f"of the first, {note}" for item in best[:1] for note in item.notes if note.startswith("micro_batch auto")]


def _counts_together(lines: Sequence[str]) -> list[str]:
    """Lines that are the same for several numbers of GPUs as one: ``2, 4 and 8 GPUs joined as in dgx-h100``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        number, _, rest = line.partition(" GPUs ")
        found.setdefault(f"GPUs {rest}" if rest and number.isdigit() else line, []).append(number)
    return [f"{_and(each)} {key}" if key.startswith("GPUs ") else key for key, each in found.items()]


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _each_once(groups: Any) -> list[str]:
    return list(dict.fromkeys(text for group in groups for text in group))


__all__ = ["estimate", "fits", "missing", "missing_bytes", "naming", "outcomes", "plan"]
