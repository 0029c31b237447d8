"""Published multi-GPU training of language models, told as specs and compared: error by source, GPU and GPU count.

rigplan calibrate tables llm_training_tables.csv             # rows that say enough, as JSON lines
rigplan calibrate tables tests/measured/llm_tables.jsonl     # predictions beside them
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from calibrate.llm_sources import COLUMNS, Run, runs
from catalog.errors import RigplanError
from planner.evaluate import Progress

WORST = 8  # runs that a report names


@dataclass(frozen=True, slots=True)
class Compared:
    """A run and what is predicted for it, in tokens a second of each GPU; or the reason why nothing is."""

    run: Run
    predicted: float | None
    reason: str = ""

    @property
    def error(self) -> float:
        """Relative error of the step time: positive where the prediction is slower."""
        if self.predicted is None:
            raise ValueError(self.reason)
        return self.run.tokens_per_second_per_gpu / self.predicted - 1


def compare(found: Iterable[Run], *, profile: str = "", progress: Progress | None = None) -> list[Compared]:
    """Predictions of the runs; their sizes are read off few traces, as in a search."""
    from planner.outcome import Outcomes
    from planner.question import How
    from planner.spec import Spec
    from planner.strategy import choices

    known: dict[str, Outcomes] = {}
    compared = []
    for run in found:
        spec = Spec.load(run.spec)
        worker = known.setdefault(json.dumps([run.spec["model"], run.spec["data"]]), Outcomes(spec, profile, progress))
        try:
            (item,) = choices(spec)
            outcome = worker.of(*item, How(whole=True, read_off=True))
        except RigplanError as error:
            outcome = str(error)
        if isinstance(outcome, str) or outcome.step is None or outcome.strategy.global_batch is None:
            compared.append(Compared(run, None, outcome if isinstance(outcome, str) else "not timed"))
            continue
        tokens = outcome.strategy.global_batch * run.spec["data"]["sequence_length"]
        compared.append(Compared(run, tokens / outcome.step.seconds / run.count))
    return compared


def scaling(compared: Iterable[Compared]) -> list[tuple[str, int, int, float, float]]:
    """(what, few GPUs, many, measured, predicted): speed a GPU of many over that of few, all else but count alike."""
    groups: dict[str, dict[int, Compared]] = defaultdict(dict)
    for item in compared:
        if item.predicted is not None:
            groups[item.run.scaled].setdefault(item.run.count, item)
    found = []
    for by_count in groups.values():
        few, many = by_count[min(by_count)], by_count[max(by_count)]
        if few is not many and few.predicted and many.predicted:
            measured = many.run.tokens_per_second_per_gpu / few.run.tokens_per_second_per_gpu
            what = f"{many.run.model} on {many.run.gpu}"
            found.append((what, few.run.count, many.run.count, measured, many.predicted / few.predicted))
    return found


def report(compared: list[Compared]) -> Iterator[str]:
    """Errors by source, GPU and count, scaling, and the worst."""
    done = [item for item in compared if item.predicted is not None]
    yield f"{len(done)} of {len(compared)} runs compared; error of the step time, positive where predicted slower"
    for name, key in _GROUPED.items():
        groups: dict[object, list[float]] = defaultdict(list)
        for item in done:
            groups[key(item)].append(item.error)
        for value, errors in sorted(groups.items(), key=lambda pair: str(pair[0]).zfill(8)):
            sizes = [abs(error) for error in errors]
            spread = f"median {median(sizes):5.1%}  bias {median(errors):+6.1%}  worst {max(sizes):5.1%}"
            yield f"  {name} {value!s:24} {len(errors):4d} runs  {spread}"
    for what, few, many, measured, predicted in scaling(done):
        yield f"  {what}: {few} to {many} GPUs keep {measured:.0%} of the speed, predicted {predicted:.0%}"
    for item in sorted(done, key=lambda item: -abs(item.error))[:WORST]:
        yield f"  {item.error:+6.1%}  {_called(item.run)}"
    reasons = Counter(item.reason for item in compared if item.predicted is None)
    yield from (f"  left out: {count} x {reason}" for reason, count in reasons.most_common())


_GROUPED: dict[str, Callable[[Compared], object]] = {
    "source": lambda item: item.run.source,
    "GPU": lambda item: item.run.gpu,
    "GPUs": lambda item: item.run.count,
}


def _called(run: Run) -> str:
    training = run.spec["training"]
    batch = f"micro-batch {training['micro_batch']} x {training['accumulation']}"
    return f"{run.count} x {run.gpu}, {run.model}, {batch}, {training['checkpointing']} checkpointing"


def read(path: Path) -> list[Run]:
    """Runs kept as JSON lines. Raises RigplanError for a file that holds none."""
    try:
        return [Run(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except (ValueError, TypeError) as error:
        raise RigplanError(
            f"{path} holds no published runs ({error}); wanted JSON lines with source, where, spec and "
            "tokens_per_second_per_gpu"
        ) from None


@click.command("tables")
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--profile", default="", help="Price with this profile.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON. A CSV gives JSON lines anyway.")
def main(table: Path, profile: str, as_json: bool) -> None:
    """Published multi-GPU runs: those of a CSV TABLE as JSON lines; JSON lines compared with predictions."""
    try:
        if table.suffix == ".csv":
            _told(table)
            return
        found = compare(read(table), profile=profile, progress=lambda text: click.echo(text, err=True))
    except RigplanError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps([asdict(item) for item in found]))
        return
    for line in report(found):
        click.echo(line)


def _told(table: Path) -> None:
    left_out: Counter[str] = Counter()
    with table.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise RigplanError(f"{table}: found no column {', '.join(missing)}; wanted a table of runs with it")
        for found in runs(rows):
            if isinstance(found, str):
                left_out[found] += 1
            else:
                click.echo(json.dumps(asdict(found)))
    for reason, count in left_out.most_common():
        click.echo(f"left out: {count} x {reason}", err=True)


if __name__ == "__main__":
    main()
