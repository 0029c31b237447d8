"""Import: readings of several configs brought together into one spec, with everything that was assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from catalog import store
from catalog.errors import RigplanError
from planner.dialects.deepspeed import say_stage
from planner.dialects.document import Document
from planner.dialects.model_names import say_model
from planner.dialects.reading import Reading
from planner.dialects.table import DIALECTS, READ_FIRST
from planner.spec import Spec

DEFAULT_GPU = "h100-sxm5-80gb"
GIVEN = "the options of this command"
MODEL = {"model.name", "model.config"}  # one of them names the model
Fields = dict[str, tuple[Any, str]]  # by their place in a spec: the value, and which file says it
ORDER = ("model", "data", "training", "hardware")
# how a file of DeepSpeed's is called in the usual examples -> the ZeRO stage that it is then taken to have
STAGE_BY_NAME = re.compile(r"(?:zero|stage|z)[_-]?(?:stage[_-]?)?([0-3])")


@dataclass(slots=True)
class Imported:
    """A spec as YAML has it, and in words what it rests on and what it leaves out."""

    sources: list[str]
    spec: dict[str, Any]
    assumed: list[str] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)
    without_bearing: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The spec as YAML, with the rest as comments."""
        lines = [f"# imported from {' and '.join(self.sources)}"]
        for title, items in (
            ("assumed", self.assumed),
            ("not understood, and left out", self.not_understood),
            ("changes neither memory nor time", [", ".join(self.without_bearing)] if self.without_bearing else []),
        ):
            lines += [f"# {title}:", *(f"#   - {' '.join(item.split())}" for item in items)] if items else []
        return "\n".join(lines) + "\n" + yaml.safe_dump(self.spec, sort_keys=False, allow_unicode=True)


def imported(
    documents: Sequence[Document], *, dialect: str | None = None, given: Mapping[str, Any] | None = None
) -> Imported:
    """One spec of all these configs; `given` are fields that the user says, as "hardware.gpu".

    Raises RigplanError when a config cannot be read, or when no one says the model.
    """
    readings = _readings(documents, dialect)
    readings.sort(key=lambda pair: READ_FIRST.index(pair[0]))
    said = Reading(GIVEN)
    for place, value in (given or {}).items():
        if place == "model.name" and value is not None:
            say_model(documents[0], said, str(value))
        else:
            said.say(place, value)
    found = _merged([said, *(reading for _, reading in readings)])
    found.sources = [document.source for document in documents]
    Spec.load(found.spec)  # what does not hold together is told here, and not by the next command
    return found


def _readings(documents: Sequence[Document], dialect: str | None) -> list[tuple[str, Reading]]:
    found: list[tuple[str, Reading]] = []
    waiting = [(document, dialect or _recognised(document)) for document in documents]
    given = {name for _, name in waiting}
    sources = {Path(document.source).name for document in documents}
    while waiting:
        document, name = waiting.pop(0)
        reading = DIALECTS[name].reader(document)
        found.append((name, reading))
        for path, other in reading.companions:
            if Path(path).name not in sources:
                sources.add(Path(path).name)
                companion = _companion(document, path, other, reading, other in given)
                waiting += [(companion, other)] if companion else []
    return found


def _recognised(document: Document) -> str:
    if document.mapping is not None and {"model", "hardware"} <= set(document.mapping):
        raise RigplanError(f"{document.source}: is a spec already; give it to rigplan fits, estimate or plan")
    for name, dialect in DIALECTS.items():
        if dialect.looks_so is not None and dialect.looks_so(document):
            return name
    names = ", ".join(name for name, dialect in DIALECTS.items() if dialect.looks_so is not None)
    raise RigplanError(f"{document.source}: is in no dialect that is known; say which with --dialect ({names})")


def _companion(document: Document, path: str, dialect: str, reading: Reading, is_there: bool) -> Document | None:
    if path.lstrip().startswith("{"):
        return Document.of(path, f"{document.source}, its {dialect} part", document.folder)
    file = document.beside(path)
    if file is not None:
        return Document.load(str(file))
    if is_there:
        return None
    named = STAGE_BY_NAME.search(Path(path).name.lower())
    if dialect == "deepspeed" and named is not None:
        stage = int(named[1])
        say_stage(reading, stage)
        if "offload" in path:
            reading.say("training.offload", "all" if stage == 3 else "optimizer")
        reading.assume(f"ZeRO stage {stage} by the name of {path}, which is not there")
        return None
    raise RigplanError(
        f"{document.source}: names the {dialect} file {path}, which is not there; give it too: "
        f"rigplan import {document.source if document.source != 'standard input' else '-'} {Path(path).name}"
    )


def _merged(readings: Sequence[Reading]) -> Imported:
    found = Imported([], {})
    fields: Fields = {}
    for reading in readings:
        _take(reading, fields, found)
    _take_defaults(readings, fields, found)
    _complete(
        fields, found, {place: words for reading in readings for place, words in reading.unsure.items()}, readings
    )
    for place in sorted(fields, key=lambda place: ORDER.index(place.partition(".")[0])):
        part, _, name = place.partition(".")
        found.spec.setdefault(part, {})[name] = fields[place][0]
    found.assumed = list(dict.fromkeys(found.assumed))
    return found


def _take(reading: Reading, fields: Fields, found: Imported) -> None:
    """What a reading says where no earlier one says it; where they differ, that is told."""
    model = next((fields[place] for place in MODEL if place in fields), None)
    for place, value in reading.fields.items():
        known = model if place in MODEL else None
        kept, source = known or fields.setdefault(place, (value, reading.source))
        if kept != value and source != GIVEN:
            found.assumed.append(f"{place} {kept} of {source}, and not {value} of {reading.source}")
    found.assumed += reading.assumed
    found.not_understood += reading.not_understood
    found.without_bearing += reading.without_bearing


def _take_defaults(readings: Sequence[Reading], fields: Fields, found: Imported) -> None:
    has_optimizer = "training.optimizer" in fields
    for reading in readings:
        for place, (value, why) in reading.defaults.items():
            if place not in fields and not _settled_otherwise(place, fields, has_optimizer):
                fields[place] = (value, reading.source)
                found.assumed.append(f"{place.rpartition('.')[2]} {'none' if value is None else value}: {why}")


def _settled_otherwise(place: str, fields: Mapping[str, Any], has_optimizer: bool) -> bool:
    """Whether a default would contradict what is said.

    Of three batch sizes two give the third, and an optimizer that is said has its own implementation.
    """
    batches = {"training.micro_batch", "training.accumulation", "training.global_batch"}
    if place in batches:
        return len(batches & set(fields)) >= 2
    return place == "training.optimizer_implementation" and has_optimizer


def _complete(fields: Fields, found: Imported, unsure: Mapping[str, str], readings: Sequence[Reading]) -> None:
    """What every spec needs: a model, a GPU and how many; and the length of the run, where the data's size is known."""
    source = readings[-1].source
    if not MODEL & set(fields):
        raise RigplanError(
            f"{source}: " + unsure.get("model", "no file names the model; add --model NAME, as `rigplan models` lists")
        )
    if "hardware.gpu" not in fields:
        if "hardware.gpu" in unsure:
            raise RigplanError(f"{source}: {unsure['hardware.gpu']}")
        fields["hardware.gpu"] = (DEFAULT_GPU, source)
        found.assumed.append(f"gpu {DEFAULT_GPU}: no file says which; --gpu NAME says another")
    else:
        name, source_of = fields["hardware.gpu"]
        fields["hardware.gpu"] = (store.find(str(name)).name, source_of)
    if "hardware.count" not in fields:
        fields["hardware.count"] = (1, source)
        found.assumed.append("one GPU: no file says how many; --count N says more")
    if not {"training.micro_batch", "training.global_batch"} & set(fields):
        found.assumed.append("micro-batch: no file says one, so that it is searched")
    if "data.sequence_length" not in fields and "data.image_size" not in fields:
        found.assumed.append("the model's own length: no file says one; --sequence-length N says another")
    epochs, samples = fields.pop("epochs", (None, ""))[0], fields.pop("samples", (None, ""))[0]
    if epochs is not None and "data.total" not in fields:
        if samples is None:
            found.assumed.append(
                f"epochs: {epochs:g}, of a data set whose size no file says; --samples N gives days and cost"
            )
        else:
            fields["data.total"] = (f"{epochs:g} epochs of {samples} samples", source)


__all__ = ["DEFAULT_GPU", "Imported", "imported"]
