"""Fields of a spec: the checks that turn a raw value into the right one, or say what was wanted instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from catalog.errors import RigplanError
from catalog.units import parse_bytes, parse_total

T = TypeVar("T")


def wanting(wanted: str, accepts: Callable[[Any], Any]) -> BeforeValidator:
    """A check that turns a field's raw value into the right one, or says what was wanted."""

    def check(value: Any) -> Any:
        try:
            return accepts(value)
        except RigplanError as error:
            raise PydanticCustomError("said", "{message}", {"message": str(error)}) from None
        except (TypeError, ValueError, OverflowError):
            raise PydanticCustomError("wanted", "{wanted}", {"wanted": wanted}) from None

    return BeforeValidator(check)


def whole(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < least:
        raise ValueError(value)
    return int(value)


def _whole_or_auto(value: Any) -> int | None:
    return None if value is None or value == "auto" else whole(value)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= float(value) < float("inf"):
        raise ValueError(value)
    return float(value)


def above_zero(value: Any) -> float:
    if _real(value) == 0:
        raise ValueError(value)
    return float(value)


def _at_least_one(value: Any) -> float:
    if _real(value) < 1:
        raise ValueError(value)
    return float(value)


def _share(value: Any) -> float:
    if not 0 < _real(value) <= 1:
        raise ValueError(value)
    return float(value)


def _dollars(value: Any) -> str:
    if value != "USD":
        raise ValueError(value)
    return "USD"


def as_day(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)


def _ahead(value: Any) -> date:
    day = as_day(value)
    if day <= date.today():
        raise RigplanError(f"found {day}, which has passed; wanted a day after today, {date.today()}")
    return day


def _not_past(value: Any) -> date:
    day = as_day(value)
    if day < date.today():
        raise RigplanError(f"found {day}, which has passed; wanted today, {date.today()}, or a later day")
    return day


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return whole(parse_bytes(value))
    return whole(value, least=1 << 20)  # a bare number is bytes, and "39" is surely not meant as 39 bytes


def _total(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    parse_total(value)
    return value


def _name(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise TypeError(value)
    return str(value)  # YAML reads 4090 as a number


def _config(value: Any) -> dict[str, Any] | str:
    if not isinstance(value, Mapping | str):
        raise TypeError(value)
    return value if isinstance(value, str) else dict(value)


def optional(accepts: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else accepts(value)


def _as_choices(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


Choices = Annotated[tuple[T, ...], BeforeValidator(_as_choices), Field(min_length=1)]
Count = Annotated[int, wanting("a positive integer", whole)]
GpuName = Annotated[str, wanting("the name of a GPU", _name)]
Size = Annotated[int | None, wanting("a positive integer", optional(whole))]
MicroBatch = Annotated[int | None, wanting("a positive integer or auto", _whole_or_auto)]
Bytes = Annotated[int | None, wanting("an amount of memory such as 39 GiB", optional(_bytes))]
Norm = Annotated[float | None, wanting("a number above 0, or null for no clipping", optional(above_zero))]
Limit = Annotated[float | None, wanting("a number above 0", optional(above_zero))]
Share = Annotated[float, wanting("a number of at least 0", _real)]
Allowance = Annotated[float | None, wanting("a number of at least 0", optional(_real))]
UpToOne = Annotated[float, wanting("a number above 0 and at most 1", _share)]
Money = Annotated[float | None, wanting("an amount of at least 0", optional(_real))]
AtLeastOne = Annotated[float | None, wanting("a number of at least 1", optional(_at_least_one))]
Dollars = Annotated[str, wanting("USD: convert other currencies first, at a rate and date you can show", _dollars)]
Day = Annotated[date | None, wanting("a date such as 2027-06-30", optional(_ahead))]
Start = Annotated[date | None, wanting("a date such as 2027-01-15", optional(_not_past))]
Config = Annotated[dict[str, Any] | str | None, wanting("a mapping or the path of a config.json", optional(_config))]
Total = Annotated[str | None, wanting("an amount such as 300B tokens or 143000 steps", optional(_total))]


class SpecPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
