"""Published multi-GPU training of language models, told as specs and compared: error by source, GPU and GPU count.

    rigplan calibrate tables llm_training_tables.csv             # rows that say enough, as JSON lines
    rigplan calibrate tables tests/measured/llm_tables.jsonl     # predictions beside them

A row becomes a spec when it is data parallel (FSDP, ZeRO or DDP) and states model, batch, precision, sharding and
checkpointing. What is stated nowhere is never guessed: such a row is left out with its reason.
"""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from catalog.errors import RigplanError
from planner.evaluate import Progress

Row = Mapping[str, str]

WORST = 8  # runs that a report names
FOUNDRY = "mosaicml/llm-foundry"
GPUS = {"A100-SXM4-40GB": "a100-sxm4-40gb", "A100-SXM4-80GB": "a100-sxm4-80gb", "H100-SXM5-80GB": "h100-sxm5-80gb"}
# What a GPU of a source is joined by, where the table says it: 1600 Gb/s a node between A100 of 40 GB.
NODES = {"a100-sxm4-40gb": "dgx-a100-40gb"}
SHARDINGS = {"fsdp": "fsdp", "none": "none"}
COLUMNS = (
    "source", "source_where", "gpu", "n_gpus", "arch_family", "n_layers", "d_model", "n_heads", "seq_len", "precision",
    "zero_or_fsdp", "act_ckpt", "tp", "pp", "cp", "micro_batch", "grad_accum", "tokens_per_s_per_gpu",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """One published run: what it is called, its spec, and tokens a second of each GPU."""

    source: str
    where: str
    spec: dict[str, Any]
    tokens_per_second_per_gpu: float

    @property
    def gpu(self) -> str:
        return str(self.spec["hardware"]["gpu"])

    @property
    def count(self) -> int:
        return int(self.spec["hardware"]["count"])

    @property
    def scaled(self) -> str:
        """What is the same in runs that differ in GPU count alone."""
        training = {key: value for key, value in self.spec["training"].items() if key != "accumulation"}
        return json.dumps([self.source, self.gpu, self.spec["model"], training], sort_keys=True)


def runs(rows: Iterable[Row]) -> Iterator[Run | str]:
    """A run of each row, or why there is none."""
    for row in rows:
        yield (
            _foundry(row)
            if row["source"].startswith(FOUNDRY)
            else "no adapter: the stack is not torch's own, or untold"
        )


def _foundry(row: Row) -> Run | str:
    """llm-foundry: Composer with FSDP, bf16 autocast, fused attention; every knob is in the table."""
    gpu = GPUS.get(row["gpu"])
    if gpu is None or row["arch_family"] != "mpt":
        return "no such GPU or model in the adapter"
    if row["precision"] != "bf16" or row["zero_or_fsdp"] not in SHARDINGS or row["act_ckpt"] not in ("none", "full"):
        return f"precision {row['precision']}, sharding {row['zero_or_fsdp']} or checkpointing {row['act_ckpt']}"
    if (row["tp"], row["pp"], row["cp"]) != ("1", "1", "1"):
        return "not data parallel alone"
    length = int(row["seq_len"])
    name = f"mpt_{row['n_layers']}_{row['d_model']}_{row['n_heads']}_{length}"
    hardware: dict[str, Any] = {"gpu": gpu, "count": int(row["n_gpus"])}
    if gpu in NODES:
        hardware["node"] = NODES[gpu]
    spec = {
        "model": {"module": f"calibrate.models.mpt:{name}"},
        "data": {"sequence_length": length},
        "training": {
            "precision": "bf16-mixed",
            "optimizer_implementation": "for-loop",  # Composer's DecoupledAdamW steps parameter by parameter
            "micro_batch": int(row["micro_batch"]),
            "accumulation": int(row["grad_accum"]),
            "sharding": SHARDINGS[row["zero_or_fsdp"]],
            "checkpointing": row["act_ckpt"],
        },
        "hardware": hardware,
    }
    return Run(FOUNDRY, row["source_where"], spec, float(row["tokens_per_s_per_gpu"]))


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
            what = f"{many.run.spec['model']['module'].rpartition(':')[2]} on {many.run.gpu}"
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
    training, name = run.spec["training"], run.spec["model"]["module"].rpartition(":")[2]
    batch = f"micro-batch {training['micro_batch']} x {training['accumulation']}"
    return f"{run.count} x {run.gpu}, {name}, {batch}, {training['checkpointing']} checkpointing"


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
