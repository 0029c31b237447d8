"""CUDA's rules on fake cpu tensors: attention kernels, autocast lists, dropout masks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.attention import Mask, attention_kernel
from planner.semantics import cuda_semantics

HOPPER, AMPERE, ADA, BLACKWELL = (9, 0), (8, 0), (8, 9), (10, 0)
PASCAL, VOLTA, TURING, RTX_3090, RTX_5090 = (6, 0), (7, 0), (7, 5), (8, 6), (12, 0)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture
def on_hopper() -> Iterator[None]:
    with FakeTensorMode(), cuda_semantics(HOPPER):
        yield


def test_hopper_takes_cudnn_up_to_a_head_size_of_256() -> None:
    # pythia-1b (256) and gemma-3-1b (256, with a mask) ran cuDNN's kernel on an H200.
    assert attention_kernel(BF16, 256, capability=HOPPER) == "cudnn"
    assert attention_kernel(BF16, 256, capability=HOPPER, mask=Mask()) == "cudnn"
    assert attention_kernel(BF16, 256, capability=BLACKWELL) == "flash"


def test_ampere_and_ada_take_flash_without_a_mask_and_memory_efficient_with_one() -> None:
    assert attention_kernel(BF16, 64, capability=AMPERE) == "flash"
    assert attention_kernel(BF16, 64, capability=ADA, mask=Mask()) == "efficient"


def test_grouped_heads_with_a_mask_run_as_plain_matmuls_on_ampere() -> None:
    assert attention_kernel(BF16, 64, capability=AMPERE, mask=Mask(), grouped=True) == "math"


def test_fp32_takes_the_memory_efficient_kernel_unless_heads_are_grouped() -> None:
    assert attention_kernel(FP32, 64, capability=HOPPER) == "efficient"
    assert attention_kernel(FP32, 64, capability=HOPPER, grouped=True) == "math"


def test_a_bias_that_trains_keeps_cudnn_away_and_a_transposed_one_the_fused_kernels_too() -> None:
    # Swin's bias is contiguous (efficient on an H200), T5's is a permuted embedding (math there).
    assert attention_kernel(BF16, 32, capability=HOPPER, mask=Mask(needs_grad=True)) == "efficient"
    assert attention_kernel(BF16, 64, capability=HOPPER, mask=Mask(needs_grad=True, rows_contiguous=False)) == "math"


def test_turing_has_fp16_but_no_bf16_in_fused_attention() -> None:
    assert attention_kernel(FP16, 64, capability=TURING) == "efficient"
    assert attention_kernel(BF16, 64, capability=TURING) == "math"


def test_wide_heads_with_dropout_do_not_train_with_flash_on_ada() -> None:
    assert attention_kernel(BF16, 256, capability=ADA) == "flash"
    assert attention_kernel(BF16, 256, capability=ADA, dropout=True) == "efficient"


# The cases below follow torch's own conditions, by the name they have in aten/native/transformers/cuda/sdp_utils.cpp.


@pytest.mark.parametrize("capability", [AMPERE, RTX_3090, ADA, RTX_5090], ids=str)
def test_only_data_centre_hopper_and_blackwell_prefer_cudnn(capability: tuple[int, int]) -> None:
    """check_prefer_cudnn_attention: major 9 or 10; check_flash_attention_hardware_support: sm80 to sm121."""
    assert attention_kernel(BF16, 128, capability=capability) == "flash"
    assert attention_kernel(BF16, 128, capability=capability, dropout=True) == "flash"
    assert (
        attention_kernel(BF16, 128, capability=HOPPER) == attention_kernel(BF16, 128, capability=BLACKWELL) == "cudnn"
    )


@pytest.mark.parametrize("capability", [PASCAL, VOLTA, TURING], ids=str)
def test_before_ampere_fp16_and_fp32_are_fused_and_bf16_is_not(capability: tuple[int, int]) -> None:
    """less_than_sm80_mem_efficient_dtypes: half and float, from sm50 on."""
    kernels = [attention_kernel(dtype, 64, capability=capability) for dtype in (FP16, FP32, BF16)]
    assert kernels == ["efficient", "efficient", "math"]
    assert attention_kernel(FP16, 64, capability=capability, mask=Mask(), dropout=True) == "efficient"
    assert attention_kernel(FP16, 64, capability=capability, grouped=True) == "math"


@pytest.mark.parametrize(
    ("dtype", "capability", "size", "kernel"),
    [
        (FP16, TURING, 20, "math"),  # tensor cores take 8 elements
        (FP16, PASCAL, 20, "efficient"),
        (FP32, TURING, 21, "efficient"),  # no tensor cores for fp32 before sm80
        (FP32, AMPERE, 21, "math"),
        (FP32, AMPERE, 20, "efficient"),
        (BF16, HOPPER, 20, "flash"),  # cuDNN takes multiples of 8, flash pads
    ],
)
def test_head_sizes_have_to_be_aligned_where_tensor_cores_work(
    dtype: torch.dtype, capability: tuple[int, int], size: int, kernel: str
) -> None:
    """minimum_gemm_alignment, check_cudnn_tensor_shapes."""
    assert attention_kernel(dtype, size, capability=capability) == kernel


def test_flash_ends_at_a_head_size_of_256() -> None:
    """check_head_dim_size_flash."""
    assert attention_kernel(BF16, 256, capability=AMPERE) == "flash"
    assert attention_kernel(BF16, 264, capability=AMPERE) == "efficient"


def test_values_of_another_size_keep_flash_away_and_cudnn_not() -> None:
    """check_head_dim_size_flash wants q, k and v alike; DeepSeek's latent attention has 192 and 128."""
    assert attention_kernel(BF16, 192, value_size=128, capability=AMPERE) == "efficient"
    assert attention_kernel(BF16, 192, value_size=128, capability=HOPPER) == "cudnn"
    assert attention_kernel(BF16, 192, value_size=124, capability=AMPERE) == "math"


@pytest.mark.parametrize("capability", [RTX_3090, ADA, RTX_5090], ids=str)
def test_consumer_cards_do_not_train_with_flash_between_192_and_224(capability: tuple[int, int]) -> None:
    """check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120."""
    sizes = (192, 200, 224, 256)
    assert [attention_kernel(BF16, size, capability=capability) == "flash" for size in sizes] == [
        True,
        False,
        False,
        True,
    ]
    assert attention_kernel(BF16, 200, capability=capability, needs_grad=False) == "flash"
    assert attention_kernel(BF16, 200, capability=AMPERE, dropout=True) == "flash"


def test_causal_attention_of_unequal_lengths_is_not_flashs() -> None:
    """check_flash_causal_non_square_seqlens."""
    assert attention_kernel(BF16, 64, capability=AMPERE, causal_oblong=True) == "efficient"


def test_strided_rows_run_as_plain_products_everywhere() -> None:
    """check_last_dim_stride_equals_1_dense."""
    for capability in (TURING, AMPERE, HOPPER):
        assert attention_kernel(FP16, 64, capability=capability, rows_contiguous=False) == "math"


@pytest.mark.usefixtures("on_hopper")
def test_autocast_keeps_layer_norm_and_losses_in_fp32_and_matmuls_low() -> None:
    x, weight = torch.empty(4, 8, dtype=BF16), torch.empty(8, 8)
    with torch.autocast("cpu", BF16):
        assert torch.nn.functional.linear(x, weight).dtype == BF16
        assert torch.nn.functional.layer_norm(x, (8,)).dtype == FP32
        assert torch.softmax(x, -1).dtype == FP32
        image = torch.empty(1, 2, 4, 4, dtype=BF16)
        assert torch.nn.functional.interpolate(image, scale_factor=2, mode="bilinear").dtype == FP32


@pytest.mark.usefixtures("on_hopper")
def test_dropout_keeps_one_byte_an_element() -> None:
    x = torch.empty(16, 16, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        torch.nn.functional.dropout(x, 0.1)
    assert torch.bool in {tensor.dtype for tensor in saved}


@pytest.mark.usefixtures("on_hopper")
def test_a_linear_over_a_transposed_input_adds_its_bias_in_place() -> None:
    x = torch.empty(2, 8, 4).transpose(1, 2)
    assert torch.nn.functional.linear(x, torch.empty(6, 8), torch.empty(6)).shape == (2, 4, 6)


def test_the_rules_end_with_the_trace() -> None:
    with FakeTensorMode(), cuda_semantics(HOPPER):
        pass
    x = torch.ones(2, 3, dtype=BF16)
    with torch.autocast("cpu", BF16):
        assert torch.softmax(x, -1).sum().item() == pytest.approx(2, abs=0.05)
