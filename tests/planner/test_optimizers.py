"""Every optimizer traces in every implementation, with the state that it really keeps."""

from __future__ import annotations

import pytest
import torch

from catalog.errors import RigplanError
from planner.optimizers import build_optimizer, hidden_matrices
from planner.recorder import Recorder


class Net(torch.nn.Module):
    """An embedding, two hidden matrices and biases, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(100, 64)
        self.hidden = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
        self.head = torch.nn.Linear(64, 100)

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


def _state_bytes(name: str, implementation: str) -> int:
    """Bytes of state after two steps, on fake tensors under the recorder, as in a trace."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), Recorder() as recorder:
        net = Net()
        for parameter in net.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer = build_optimizer(name, implementation, net)
        recorder.start("optimizer")
        optimizer.step()
        optimizer.step()
        parts = getattr(optimizer, "parts", [optimizer])
        tensors = [value for part in parts for state in part.state.values() for value in state.values()]
        return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor) and t.dim() > 0)


WEIGHTS = sum(parameter.numel() for parameter in Net().parameters())


@pytest.mark.parametrize("implementation", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize(("name", "bytes_each"), [("adamw", 8), ("adam", 8), ("sgd", 4)])
def test_states_are_fp32_copies_of_the_parameters(name: str, bytes_each: int, implementation: str) -> None:
    assert _state_bytes(name, implementation) == bytes_each * WEIGHTS


def test_lion_keeps_one_momentum() -> None:
    assert _state_bytes("lion", "foreach") == 4 * WEIGHTS


@pytest.mark.parametrize("implementation", ["foreach", "for-loop"])
def test_adafactor_keeps_rows_and_columns_of_a_matrix(implementation: str) -> None:
    rows_columns = (100 + 64) + (256 + 64) + (64 + 256) + (100 + 64)
    vectors = 256 + 64 + 100
    assert _state_bytes("adafactor", implementation) == 4 * (rows_columns + vectors)


def test_eight_bit_adamw_keeps_two_bytes_a_parameter_and_fp32_for_small_tensors() -> None:
    large = 100 * 64 + 256 * 64 + 64 * 256 + 100 * 64
    small = 256 + 64 + 100
    assert _state_bytes("adamw-8bit", "foreach") == 2 * large + 2 * 4 * (large // 256) + 8 * small


def test_muon_keeps_one_momentum_for_hidden_matrices_and_two_states_for_the_rest() -> None:
    hidden = 2 * 64 * 256
    assert _state_bytes("muon", "foreach") == 4 * hidden + 8 * (WEIGHTS - hidden)


def test_neither_embedding_nor_head_is_a_hidden_matrix() -> None:
    assert [tuple(matrix.shape) for matrix in hidden_matrices(Net())] == [(256, 64), (64, 256)]


def test_a_frozen_model_has_nothing_to_step() -> None:
    net = Net().requires_grad_(False)
    with pytest.raises(RigplanError, match="no parameter that trains"):
        build_optimizer("adamw", "foreach", net)


def test_torch_has_no_fused_adafactor() -> None:
    with pytest.raises(RigplanError, match="fused adafactor"):
        build_optimizer("adafactor", "fused", Net())
