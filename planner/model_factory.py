"""A user's own model: `path/to/file.py:make` or `package.module:make`, where make(batch_size) gives (module, inputs).

Loading and calling a factory runs the user's code; every failure of it is told in one line with its file and line.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from catalog.errors import RigplanError

Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]
Factory = Callable[[int], Made]


def load(where: str) -> Factory:
    """The factory at `file.py:name` or `package.module:name`; RigplanError names file, exception and line."""
    source, colon, name = where.rpartition(":")
    if not colon or not source or not name:
        raise RigplanError(f"model.module is '{where}': wanted path/to/file.py:make or package.module:make")
    try:
        module = _load_file(Path(source)) if source.endswith(".py") else _load_package(source)
    except RigplanError:
        raise
    except (Exception, SystemExit) as error:
        raise RigplanError(f"model.module {source} raised {_described(error)}") from error
    factory = getattr(module, name, None)
    if not callable(factory):
        raise RigplanError(f"model.module {source} has no function '{name}': wanted {name}(batch_size)")
    return factory


def module(factory: Factory, where: str, device: str, dtype: torch.dtype) -> tuple[torch.nn.Module, tuple[str, ...]]:
    """The module of the factory on `device`, with a note where 'meta' had to be host memory."""
    notes: tuple[str, ...] = ()
    if device == "meta":
        made, weightless = _call_weightless(factory, where, 1)
        if not weightless:
            notes = ("the module cannot be built without weights: it was built in host memory",)
        return made[0].to(dtype), notes
    return _call(factory, where, 1)[0].to(device=device, dtype=dtype), notes


def inputs(factory: Factory, where: str, device: str, micro_batch: int) -> dict[str, torch.Tensor]:
    """The factory's inputs for `micro_batch` samples, real; on cpu when the model is on meta. Raises RigplanError where
    they are the same for any number of samples."""
    (_, made), _ = _call_weightless(factory, where, micro_batch)
    if micro_batch > 1 and made:
        (_, one), _ = _call_weightless(factory, where, 1)
        if {key: value.shape for key, value in made.items()} == {key: value.shape for key, value in one.items()}:
            raise RigplanError(
                f"model.module {where} gives inputs of the same shapes for {micro_batch} samples as for 1: "
                "its argument is how many samples they hold"
            )
    return made if device == "meta" else {key: value.to(device) for key, value in made.items()}


def _call_weightless(factory: Factory, where: str, batch_size: int) -> tuple[Made, bool]:
    """What the factory makes with parameters and buffers on meta, or really where it cannot do without their values."""
    try:
        with _parameters_on_meta():
            made = _checked(factory(batch_size), where)
    except RigplanError:
        raise
    except (Exception, SystemExit):
        return _call(factory, where, batch_size), False
    for layer in made[0].modules():
        for name, buffer in layer._buffers.items():
            layer._buffers[name] = None if buffer is None else buffer.to("meta")
    return made, True


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters go to meta as modules register them; other tensors stay real, for constructors and inputs use them."""
    register = torch.nn.Module.register_parameter

    def registered(layer: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":  # one on meta may be tied: it stays the same object
            param = torch.nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)
        register(layer, name, param)

    torch.nn.Module.register_parameter = registered  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _call(factory: Factory, where: str, batch_size: int) -> Made:
    try:
        return _checked(factory(batch_size), where)
    except RigplanError:
        raise
    except (Exception, SystemExit) as error:
        raise RigplanError(f"model.module {where}({batch_size}) raised {_described(error)}") from error


def _checked(made: Any, where: str) -> Made:
    shape = isinstance(made, tuple) and len(made) == 2
    if not shape or not isinstance(made[0], torch.nn.Module) or not isinstance(made[1], dict):
        found = f"({', '.join(type(part).__name__ for part in made)})" if shape else type(made).__name__
        raise RigplanError(f"model.module {where} returned {found}: wanted (torch.nn.Module, dict of input tensors)")
    for key, value in made[1].items():
        if not isinstance(value, torch.Tensor):
            raise RigplanError(f"model.module {where}: input '{key}' is a {type(value).__name__}, wanted a tensor")
    return made[0], made[1]


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise RigplanError(f"model.module file {path} does not exist: check the path (it is relative to here)")
    spec = importlib.util.spec_from_file_location(f"rigplan_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise RigplanError(f"model.module file {path} cannot be imported")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses and pickle look their module up there
    sys.path.insert(0, str(path.parent.resolve()))  # as `python file.py` would, for its neighbours
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return loaded


def _load_package(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(Path.cwd()))


def _described(error: BaseException) -> str:
    """Exception type, first line of its message and the deepest line of user code."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno} of {error.filename})"
    return f"{type(error).__name__}: {first_line(error)}{place(error)}"


def place(error: BaseException) -> str:
    """The deepest line of user code, or of a model's own library, that an exception passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type when it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _is_ours(filename: str) -> bool:
    """Whether a line of a traceback lies in torch or here."""
    return filename.startswith(("<", str(Path(torch.__file__).parent), str(Path(__file__).parent)))
