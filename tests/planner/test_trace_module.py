"""Modules of all kinds in a trace: what is held of ties, buffers and frozen parts, and how a refusal is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.errors import RigplanError
from planner.cache import TraceKnobs
from planner.memory import Scratch, replay
from planner.spec import DataSpec, ModelSpec
from planner.trace import trace
from planner.workload import Workload

KNOBS = TraceKnobs("fp32", "sdpa", "none", "adamw", "foreach", None, (8, 0))
VOCABULARY, WIDTH = 1000, 64
STEP_BYTES = 4  # how often a parameter was stepped, a state of AdamW beside the two moments
FILE = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self, forward=None):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(1000, 64), nn.Linear(64, 64), nn.Linear(64, 1000, bias=False)
        self.ends = forward or (lambda net, hidden, ids: F.cross_entropy(net.head(hidden).flatten(0, 1), ids.flatten()))

    def forward(self, ids):
        return self.ends(self, self.body(self.embed(ids)), ids)

def with_ids(net, samples):
    return net, {"ids": torch.arange(samples * 8).view(samples, 8)}

def plain(samples): return with_ids(Net(), samples)

def tied(samples):
    net = Net()
    net.head.weight = net.embed.weight
    return with_ids(net, samples)

def buffered(samples):
    net = Net()
    net.register_buffer("table", torch.zeros(1 << 20))
    return with_ids(net, samples)

def frozen(samples):
    net = Net()
    net.embed.requires_grad_(False)
    return with_ids(net, samples)

def all_frozen(samples): return with_ids(Net().requires_grad_(False), samples)
def unused(samples):
    net = Net()
    net.spare = nn.Linear(512, 512, bias=False)
    return with_ids(net, samples)

def own_loss(samples):
    def loss(net, hidden, ids):
        said = net.head(hidden).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return -(said * (ids != 0)).sum() / (ids != 0).sum()
    return with_ids(Net(loss), samples)

def branching(samples):
    def loss(net, hidden, ids):
        return hidden.sum() if hidden.mean() > 0 else hidden.mean()
    return with_ids(Net(loss), samples)

def counting(samples): return with_ids(Net(lambda net, hidden, ids: hidden[hidden > 0].sum()), samples)
def logits(samples): return with_ids(Net(lambda net, hidden, ids: net.head(hidden)), samples)
def named(samples): return with_ids(Net(lambda net, hidden, ids: {"logits": net.head(hidden)}), samples)
def pair(samples): return with_ids(Net(lambda net, hidden, ids: (hidden, hidden.sum())), samples)
def detached(samples): return with_ids(Net(lambda net, hidden, ids: hidden.sum().detach()), samples)
def on_cuda(samples): return with_ids(Net(lambda net, hidden, ids: hidden.sum() * torch.ones(1).cuda()), samples)
def one_size(samples): return with_ids(Net(), 4)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("modules") / "net.py"
    path.write_text(FILE)
    return path


def _traced(file: Path, name: str, samples: int = 2) -> Workload:
    return trace(ModelSpec(module=f"{file}:{name}"), DataSpec(), KNOBS, samples)


def _peak(workload: Workload) -> int:
    return max(replay(workload, Scratch((), lambda _: ())).peaks.values())


def test_a_tied_weight_is_held_once_and_has_one_gradient_and_one_state(file: Path) -> None:
    plain, tied = (_traced(file, name) for name in ("plain", "tied"))
    assert plain.parameter_count - tied.parameter_count == VOCABULARY * WIDTH
    for category, size in (("weights", 1), ("gradients", 1), ("optimizer", 2)):
        apart = plain.bytes_of(category) - tied.bytes_of(category)
        assert apart - (STEP_BYTES if category == "optimizer" else 0) == 4 * size * VOCABULARY * WIDTH, category


def test_a_buffer_is_held_and_has_neither_gradient_nor_state(file: Path) -> None:
    plain, buffered = (_traced(file, name) for name in ("plain", "buffered"))
    assert buffered.bytes_of("buffers") == 4 << 20
    assert buffered.parameter_count == plain.parameter_count
    assert _peak(buffered) - _peak(plain) == 4 << 20


def test_what_is_frozen_has_neither_gradient_nor_state(file: Path) -> None:
    plain, frozen = (_traced(file, name) for name in ("plain", "frozen"))
    assert frozen.parameter_count == plain.parameter_count
    assert plain.trainable_count - frozen.trainable_count == VOCABULARY * WIDTH
    assert plain.bytes_of("optimizer") - frozen.bytes_of("optimizer") == 8 * VOCABULARY * WIDTH + STEP_BYTES
    assert plain.bytes_of("weights") == frozen.bytes_of("weights")


def test_a_part_that_the_loss_does_not_reach_has_weights_alone(file: Path) -> None:
    plain, unused = (_traced(file, name) for name in ("plain", "unused"))
    assert unused.bytes_of("weights") - plain.bytes_of("weights") == 4 * 512 * 512
    assert unused.bytes_of("optimizer") == plain.bytes_of("optimizer")


def test_a_loss_of_ones_own_is_traced(file: Path) -> None:
    """log_softmax and gather keep one tensor as wide as the vocabulary, as cross_entropy does."""
    assert _peak(_traced(file, "own_loss", 64)) == pytest.approx(_peak(_traced(file, "plain", 64)), rel=0.05)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("all_frozen", r"nothing is trained: no parameter of the model has requires_grad set"),
        ("branching", r"asks a tensor for its values \(aten._local_scalar_dense.default\) \(line 49 of .*net.py\)"),
        ("counting", r"asks a tensor for its values \(aten.nonzero.default\) \(line \d+ of .*net.py\)"),
        ("logits", r"returned a tensor of shape \[2, 8, 1000\] for its loss, wanted a scalar"),
        ("named", r"returned no loss but a dict of logits: return a scalar tensor or an object with .loss"),
        ("pair", r"returned no loss but a tuple of 2: "),
        ("detached", r"returned a tensor that no parameter leads to for its loss"),
        ("on_cuda", r"take the device of the inputs, x.device \(line \d+ of .*net.py\)"),
        ("one_size", r"gives inputs of the same shapes for 2 samples as for 1"),
    ],
)
def test_what_cannot_be_traced_is_told_in_one_line(file: Path, name: str, told: str) -> None:
    with pytest.raises(RigplanError, match=told) as error:
        _traced(file, name)
    assert "\n" not in str(error.value)
