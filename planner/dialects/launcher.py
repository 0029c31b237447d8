"""Who starts the run, and on how many GPUs: torchrun, accelerate, deepspeed, or the environment."""

from __future__ import annotations

from typing import Any

from planner.dialects.command_line import Command
from planner.dialects.reading import Options, Reading, as_flag, bearing_nothing

# accelerate launch takes an accelerate config's fields as options, and these beside them
OF_THE_LAUNCHER = frozenset({"multi_gpu", "use_deepspeed", "use_fsdp", "quiet", "config_file"})
ALL_OF_A_NODE = ("gpu", "auto")


def say_gpus(reading: Reading, nodes: int | None, per_node: int | None, total: int | None = None) -> None:
    """How many GPUs in all, and in a node where there are several nodes."""
    if total is None and per_node is not None:
        total = per_node * (nodes or 1)
    reading.say("hardware.count", total)
    if nodes is not None and nodes > 1 and total is not None and total % nodes == 0:
        reading.say("hardware.gpus_per_node", total // nodes)


def read_launch(command: Command, reading: Reading, source: str) -> None:
    """Say what the launcher's options and the environment say of the hardware."""
    options = Options(command.launch, source, as_flag)
    if command.launcher == "torchrun":
        _torchrun(options, reading)
        options.finish(reading, bearing_nothing("torchrun"))
    elif command.launcher == "deepspeed":
        _deepspeed(options, reading)
        options.finish(reading, bearing_nothing("deepspeed-launcher"))
    elif command.launcher in ("accelerate", "axolotl"):
        _accelerate(options, reading, source)
    _environment(command, reading)


def _torchrun(options: Options, reading: Reading) -> None:
    nodes = str(options.take("nnodes") or 1)
    if ":" in nodes:
        reading.assume(f"{nodes.split(':')[-1]} nodes of --nnodes {nodes}")
        nodes = nodes.split(":")[-1]
    each = options.take("nproc_per_node", "nproc-per-node")
    if str(each) in ALL_OF_A_NODE or (each is not None and not str(each).isdigit()):
        reading.assume(f"the GPUs of --nproc_per_node {each} are those of the other files, or --count")
        each = None
    if not nodes.isdigit():
        reading.not_understood.append(options.shown("nnodes", nodes))
        nodes = "1"
    say_gpus(reading, int(nodes), None if each is None else int(each))


def _deepspeed(options: Options, reading: Reading) -> None:
    nodes, each = options.whole("num_nodes", "nnodes"), options.whole("num_gpus")
    include = options.take("include", "i")
    if include is not None and "@" not in str(include) and ":" in str(include):
        each = len(str(include).split(":", 1)[1].split(","))
    elif include is not None:
        hosts = [host.partition(":")[2] for host in str(include).split("@")]
        if all(hosts):
            say_gpus(reading, len(hosts), None, sum(len(host.split(",")) for host in hosts))
            return
        reading.not_understood.append(options.shown("include", include))
    say_gpus(reading, nodes, each)


def _accelerate(options: Options, reading: Reading, source: str) -> None:
    from planner.dialects.accelerate import read_options

    config = options.take("config_file")
    if config is not None:
        reading.companions.append((str(config), "accelerate"))
    given: dict[str, Any] = {name: value for name, value in options.given.items() if name not in OF_THE_LAUNCHER}
    if given:
        read_options(Options(given, source, as_flag), reading)


def _environment(command: Command, reading: Reading) -> None:
    known = command.environment
    nodes = known.get("NNODES", "")
    each = known.get("NPROC_PER_NODE", "")
    visible = [device for device in known.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    if "hardware.count" in reading.fields:
        return
    if each.isdigit():
        say_gpus(reading, int(nodes) if nodes.isdigit() else None, int(each))
    elif visible:
        say_gpus(reading, None, len(visible))
        if command.launcher == "python" and len(visible) > 1:
            reading.assume(f"DDP on {len(visible)} GPUs: plain python runs them as torch's slower DataParallel")
    if (
        known.get("PYTORCH_CUDA_ALLOC_CONF", known.get("PYTORCH_ALLOC_CONF", ""))
        .replace(" ", "")
        .lower()
        .find("expandable_segments:true")
        >= 0
    ):
        reading.say("training.allocator", "expandable")


__all__ = ["read_launch", "say_gpus"]
