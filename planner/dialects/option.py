"""One option of a plan, as the writers of the dialects take it."""

from __future__ import annotations

from dataclasses import dataclass

from catalog import presets
from catalog.errors import RigplanError
from catalog.presets import Preset
from catalog.units import gib
from planner.answer import Estimate, HardwareUsed, Plan, StrategyUsed
from planner.spec import Spec

ZERO_STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
# What a dialect says that has one kind of checkpointing alone.
FULL_ONLY = "checkpointing selective: only full checkpointing can be said, which saves more and is slower"


@dataclass(frozen=True, slots=True)
class Written:
    """A file's text, and in words what its dialect cannot say."""

    text: str
    notices: list[str]


@dataclass(frozen=True, slots=True)
class Option:
    """A spec and one ranked answer to it: nothing is left open."""

    spec: Spec
    estimate: Estimate
    rank: int

    @classmethod
    def of(cls, spec: Spec, plan: Plan, rank: int) -> Option:
        """The option of this rank, 1 the best. Raises RigplanError when the plan has fewer."""
        if not 1 <= rank <= len(plan.ranked):
            raise RigplanError(
                f"--rank: found {rank}, wanted a rank from 1 to {len(plan.ranked)}, as `rigplan plan` numbers"
            )
        return cls(spec, plan.ranked[rank - 1], rank)

    @property
    def strategy(self) -> StrategyUsed:
        return self.estimate.strategy

    @property
    def hardware(self) -> HardwareUsed:
        return self.estimate.hardware

    @property
    def micro_batch(self) -> int:
        return self.strategy.micro_batch or 1

    @property
    def accumulation(self) -> int:
        return self.strategy.accumulation or 1

    @property
    def nodes(self) -> int:
        """How many nodes the GPUs fill; one when the node's size is not known."""
        each = self.hardware.gpus_per_node
        return 1 if each is None else -(-self.hardware.count // each)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one node: processes that are started in it."""
        return self.hardware.count // self.nodes

    @property
    def data_parallel(self) -> int:
        """Ranks that see different samples."""
        return max(1, self.hardware.count // self.strategy.tensor_parallel)

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step over all GPUs."""
        return self.micro_batch * self.accumulation * self.data_parallel

    @property
    def zero_stage(self) -> int | None:
        """DeepSpeed's stage; None where the option does not shard as DeepSpeed does."""
        return None if self.shards_optimizer else ZERO_STAGES.get(self.strategy.sharding)

    @property
    def shards_optimizer(self) -> bool:
        """Whether torch's ZeroRedundancyOptimizer shares the states of a DDP run, which is for the script to do."""
        return self.strategy.sharding == "zero1" and self.strategy.zero1 == "torch"

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run; None where the spec has no `data.total`."""
        run = self.estimate.run
        return None if run is None else run.steps

    @property
    def preset(self) -> Preset | None:
        """The model's entry among the presets, if it has one."""
        return presets.lookup(self.spec.model.name or "")

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a sample, as the spec or the preset has them."""
        given = self.spec.data.sequence_length
        return self.preset.sequence_length if given is None and self.preset is not None else given

    @property
    def model(self) -> str:
        """The model by the name a hub knows it, or as the spec has it."""
        source, preset = self.spec.model, self.preset
        if preset is not None and preset.hub:
            return preset.hub
        if isinstance(source.config, dict):
            return f"the spec's own {source.config.get('model_type', 'config')}"
        return str(source.name or source.module or source.config)

    def head(self, dialect: str) -> list[str]:
        """What the file is: one line for the plan, one for the batch, one for the estimate."""
        step = self.estimate.step
        time = (
            "" if step is None else f", {step.seconds:.3g} s a step ({step.low_seconds:.3g} to {step.high_seconds:.3g})"
        )
        memory = self.estimate.memory
        return [
            f"{dialect}, written by rigplan: option {self.rank}, {self.model} on "
            f"{self.hardware.count} x {self.hardware.gpu}",
            f"micro-batch {self.micro_batch} x accumulation {self.accumulation} x {self.data_parallel} data-parallel "
            f"ranks = global batch {self.global_batch}",
            f"{self.estimate.verdict}: {gib(memory.device_bytes)} of {gib(memory.usable_bytes)} a GPU{time}",
        ]


def outside(option: Option) -> list[str]:
    """What belongs to the script or the shell in every dialect: the model, its lengths and attention, the allocator."""
    strategy, spec = option.strategy, option.spec
    dtype = "bfloat16" if strategy.precision == "bf16" else "float32"
    notices = [
        f"the model is {option.model}, loaded with dtype=torch.{dtype} and attn_implementation={strategy.attention!r}"
    ]
    if option.sequence_length is not None:
        notices.append(f"samples are {option.sequence_length} tokens long, packed or padded")
    if spec.model.lora is not None:
        lora = spec.model.lora
        quantized = ", the base in nf4 (bitsandbytes)" if lora.quantize else ""
        notices.append(
            f"LoRA by peft: r={lora.r}, lora_alpha={lora.alpha}, lora_dropout={lora.dropout:g}, "
            f"target_modules={' '.join(lora.target_modules)}{quantized}"
        )
    if strategy.loss == "fused-linear":
        notices.append("loss fused-linear: Liger's kernel for head and loss; its other kernels are not in the plan")
    if option.shards_optimizer:
        notices.append(
            "zero1: the optimizer is torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), "
            "optimizer_class=...), and all else is DDP"
        )
    if strategy.allocator == "expandable":
        notices.append("allocator: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    return notices


def commented(lines: list[str]) -> str:
    """Lines as comments of YAML, TOML and the shell."""
    return "".join(f"# {line}\n" for line in lines)


__all__ = ["FULL_ONLY", "ZERO_STAGES", "Option", "Written", "commented", "outside"]
