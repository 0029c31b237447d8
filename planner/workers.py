"""Workers: combinations worked out, those that share a trace together, on forked processes where several traces pay.

torch and transformers are imported once, before the fork, so that a worker begins to trace at once.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing.pool import Pool
from typing import Any

from catalog.errors import RigplanError
from planner import libraries
from planner import machine as machines
from planner.answer import Estimate
from planner.cache import TraceKnobs
from planner.evaluate import Progress, knobs_of, not_possible
from planner.outcome import Outcomes
from planner.question import Combination, How
from planner.spec import Spec

Answered = tuple[Combination, Estimate | str]
Job = tuple[Spec, tuple[Combination, ...], str, How]

MOST_WORKERS = 4
# Fewer combinations than these are done before a second process has started.
WORTH_A_PROCESS = 4
LONGEST_TRIAL_S = 10.0


class Failure(str):
    """A reason that is no property of the combination: its model could not be built or traced."""


def work_out(
    spec: Spec, combinations: Sequence[Combination], profile: str, progress: Progress, how: How, what: str
) -> Iterator[Answered]:
    """The outcome of every combination, in no promised order; `what` they are, for the progress."""
    groups = _groups(combinations, profile)
    workers = min(MOST_WORKERS, os.cpu_count() or 1, len(groups))
    if workers < 2 or len(combinations) < WORTH_A_PROCESS or not _forks_can_trace():
        worker = Outcomes(spec, profile, progress)
        for done, item in enumerate((item for group in groups for item in group), 1):
            yield item, _outcome(worker, item, how)
            if len(combinations) > 1:
                progress(f"{done} of {len(combinations)} {what} worked out")
        return
    yield from _in_parallel([(spec, group, profile, how) for group in groups], workers, progress, what)


def _forks_can_trace() -> bool:
    """Whether a forked process can go backward: not after autograd has started threads for a GPU in this one, as it
    does where a process that sees a GPU has traced or trained before."""
    if "torch" not in sys.modules:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as in `forked`
        trial = multiprocessing.get_context("fork").Process(target=_backward)
        trial.start()
    trial.join(LONGEST_TRIAL_S)
    if trial.exitcode is None:
        trial.kill()
    return trial.exitcode == 0


def _backward() -> None:
    """The smallest backward; leaves without a word either way."""
    torch: Any = import_module("torch")
    try:
        torch.ones((), requires_grad=True).backward()
    except RuntimeError:
        os._exit(1)
    os._exit(0)


def _groups(combinations: Sequence[Combination], profile: str) -> list[tuple[Combination, ...]]:
    """Combinations by what decides their traces; the impossible ones need none and make no group of their own."""
    by_knobs: dict[TraceKnobs | None, list[Combination]] = {}
    for strategy, choice in combinations:
        machine = machines.resolve(choice, profile)
        knobs = None if not_possible(strategy, machine) else knobs_of(strategy, machine)
        by_knobs.setdefault(knobs, []).append((strategy, choice))
    impossible = by_knobs.pop(None, [])
    groups = sorted(by_knobs.values(), key=len, reverse=True) or [[]]
    groups[-1] += impossible
    return [tuple(group) for group in groups]


def _in_parallel(jobs: Sequence[Job], workers: int, progress: Progress, what: str) -> Iterator[Answered]:
    total, done = sum(len(job[1]) for job in jobs), 0
    compiled = sum(strategy.compile for job in jobs for strategy, _ in job[1])
    model = jobs[0][0].model
    with forked(workers, progress, models=model.module is None, adapters=model.lora is not None) as pool:
        progress(f"tracing {len(jobs)} variants of the model for {total} {what}, {workers} at a time")
        for answered in pool.imap_unordered(_job, jobs):
            done += len(answered)
            compiled -= sum(strategy.compile for (strategy, _), _ in answered)
            waits = f"; {compiled} of the rest compiled, a minute or more each" if compiled else ""
            progress(f"{done} of {total} {what} worked out{waits}")
            yield from answered


def forked(workers: int, progress: Progress, *, models: bool, adapters: bool = False) -> Pool:
    """A pool of forked processes that have what a trace needs (see libraries.load)."""
    libraries.load(progress, models=models, adapters=adapters)
    with warnings.catch_warnings():
        # Python 3.12 warns of forks while threads exist; those of numpy hold no lock that a worker needs
        warnings.simplefilter("ignore", DeprecationWarning)
        return multiprocessing.get_context("fork").Pool(workers, initializer=_alone)


def _alone() -> None:
    """One thread a worker: after a fork, OpenMP waits for ever for threads that only the parent has."""
    import_module("torch").set_num_threads(1)


def _job(job: Job) -> list[Answered]:
    """One group of combinations in a worker."""
    spec, combinations, profile, how = job
    worker = Outcomes(spec, profile)
    return [(item, _outcome(worker, item, how)) for item in combinations]


def _outcome(worker: Outcomes, item: Combination, how: How) -> Estimate | str:
    try:
        with libraries.warnings_off():
            return worker.of(*item, how)
    except RigplanError as error:
        return Failure(error)


__all__ = ["Failure", "forked", "work_out"]
