"""Machine: a hardware choice with everything the catalog knows of it, ready to be asked for sizes and prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from catalog import profile as profiles
from catalog import store, system
from catalog.accelerator import Accelerator
from catalog.errors import RigplanError
from catalog.overheads import overheads
from catalog.profile import Profile
from catalog.system import Node
from planner.cost import Pricing
from planner.scratch import Device
from planner.strategy import HardwareChoice

MIB = 1 << 20
MAX_THREADS_PER_SM = {
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 9): 1536,
    (7, 5): 1024,
    (12, 0): 1536,
    (12, 1): 1536,
}  # CUDA guide, table 21
OLDEST_CAPABILITY = (8, 0)  # taken for devices that have no CUDA compute capability of their own


@dataclass(frozen=True, slots=True)
class Machine:
    """`count` accelerators in nodes of `node.gpus_per_node`; the context sizes are low, likely, high bytes."""

    choice: HardwareChoice
    accelerator: Accelerator
    node: Node
    profile: Profile
    known: str
    context_bytes: tuple[int, int, int]
    usable_bytes: int
    assumptions: tuple[str, ...]

    @property
    def count(self) -> int:
        return self.choice.count

    @property
    def device(self) -> Device:
        capability = self.accelerator.compute_capability or OLDEST_CAPABILITY
        return Device(capability, self.accelerator.sm_count or 1, MAX_THREADS_PER_SM.get(capability, 2048))

    def pricing(self, tf32: bool) -> Pricing:
        return _pricing(self.accelerator.name, self.profile, tf32, self.accelerator)


class _Prices(dict[tuple[str, str, bool], Pricing]):
    pass


_PRICINGS = _Prices()


def _pricing(name: str, profile: Profile, tf32: bool, accelerator: Accelerator) -> Pricing:
    """One pricing a device and knob, so that curves are fitted and operators priced once."""
    key = (name, profile.name, tf32)
    if key not in _PRICINGS:
        _PRICINGS[key] = Pricing(accelerator, profile, tf32)
    return _PRICINGS[key]


def resolve(choice: HardwareChoice, profile: str = "") -> Machine:
    """The machine of a choice. Raises RigplanError for a name the catalog does not know."""
    accelerator = store.find(choice.gpu)
    node = _node(choice, accelerator)
    filled = replace(choice, gpu=accelerator.name, node=node.name, gpus_per_node=node.gpus_per_node)
    found, known = _profile(accelerator, profile)
    context = _context(accelerator, choice.count)
    usable = accelerator.usable_memory_bytes
    assumptions = [text for text in (store.assumption(choice.gpu),) if text]
    if choice.memory_limit_bytes is not None:
        allowed = choice.memory_limit_bytes + context[1]
        if allowed <= usable:  # the limit is the allocator's own: what the context takes beside it does not matter
            usable, context = allowed, (context[1],) * 3
    if choice.node is None and choice.count > 1:
        assumptions.append(f"{choice.count} GPUs joined as in {node.name} ({node.intra.name})")
    if accelerator.usable_memory_known == "derived":
        assumptions.append(f"usable memory of {accelerator.name} is derived: {accelerator.usable_memory_source}")
    return Machine(filled, accelerator, node, found, known, context, usable, tuple(assumptions))


@cache
def _profiles() -> dict[tuple[str, str], tuple[Profile, str]]:
    return {}


def _profile(accelerator: Accelerator, path: str) -> tuple[Profile, str]:
    kept = _profiles()
    if (accelerator.name, path) not in kept:
        kept[accelerator.name, path] = profiles.resolve(accelerator, path)
    return kept[accelerator.name, path]


def _node(choice: HardwareChoice, accelerator: Accelerator) -> Node:
    node = system.node(choice.node) if choice.node else system.default_node(accelerator)
    if choice.node and node.accelerator and node.accelerator != accelerator.name:
        raise RigplanError(
            f"hardware.node {choice.node} holds {node.accelerator}, not {accelerator.name}; leave one of the two out"
        )
    return replace(node, gpus_per_node=choice.gpus_per_node) if choice.gpus_per_node else node


def _context(accelerator: Accelerator, count: int) -> tuple[int, int, int]:
    table = overheads()
    entry = table["context_mib"].get(accelerator.architecture.lower(), table["context_mib"]["default"])
    sizes = [size * MIB for size in entry["value"]]
    if count > 1:
        group = table["nccl_mib"]["two" if count == 2 else "more"]["value"]
        sizes = [size + extra * MIB for size, extra in zip(sizes, group, strict=True)]
    low, likely, high = sizes
    return low, likely, high
