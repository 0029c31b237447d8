"""Which values an operator's arguments may take, by the operator's and the argument's name.

An index out of range ends the process on a GPU, so integers that mean a place are listed here operator by operator, and
a call whose integers nobody has described cannot be replayed: it is reported, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from calibrate.pool import NORMAL, POSITIVE, Values
from planner.call import Call, TensorSpec

Bound = Mapping[str, Any]
Rule = Callable[[Bound, TensorSpec, int], Values]


class NotReplayable(Exception):
    """This call cannot be run again with random data; the message says why."""


def _rows(argument: str, dim: int = 0) -> Rule:
    """Indices into a dimension of another argument."""
    return lambda bound, spec, place: Values("below", bound[argument].shape[dim])


def _number(argument: str) -> Rule:
    """Indices below an integer argument."""
    return lambda bound, spec, place: Values("below", bound[argument])


def _along(bound: Bound, spec: TensorSpec, place: int) -> Values:
    """Indices along `dim` of `self`."""
    shape = bound["self"].shape
    return Values("below", shape[bound["dim"]] if shape else 1)


def _by_place(bound: Bound, spec: TensorSpec, place: int) -> Values:
    """The indices of x[i, j, ...]: the n-th lies within the n-th dimension."""
    if spec.dtype in ("b8", "u8"):
        raise NotReplayable("the number of true of a boolean index is not part of the call")
    return Values("below", bound["self"].shape[place])


def _classes(bound: Bound, spec: TensorSpec, place: int) -> Values:
    shape = bound["self"].shape
    return Values("below", shape[1] if len(shape) > 1 else shape[0])


def _plane(dims: int) -> Rule:
    """A place within the last `dims` dimensions, flattened, as pooling counts them."""
    return lambda bound, spec, place: Values("below", math.prod(bound["self"].shape[-dims:]))


def _grouped_rows(bound: Bound, spec: TensorSpec, place: int) -> Values:
    """Ends of equal groups of rows; of columns where both matrices are flat (a weight gradient)."""
    left, right = bound["self"], bound["mat2"]
    if len(left.shape) == 3:
        return Values("offsets", right.shape[-1])
    return Values("offsets", left.shape[-1] if len(right.shape) == 2 else left.shape[0])


def _ctc_targets(bound: Bound, spec: TensorSpec, place: int) -> Values:
    return Values("below", bound["log_probs"].shape[-1])


def _positive(bound: Bound, spec: TensorSpec, place: int) -> Values:
    return POSITIVE


def _ctc_steps(bound: Bound, spec: TensorSpec, place: int) -> Values:
    return Values("constant", bound["log_probs"].shape[0])


def _ctc_target_length(bound: Bound, spec: TensorSpec, place: int) -> Values:
    """All rows as long as the longest; where targets are strung together, the mean."""
    targets = bound["targets"].shape
    return Values("constant", targets[1] if len(targets) == 2 else targets[0] // bound["log_probs"].shape[1])


_CTC: dict[str, Rule] = {"targets": _ctc_targets, "input_lengths": _ctc_steps, "target_lengths": _ctc_target_length}
_INDEX: dict[str, Rule] = {"index": _along}
_TARGET: dict[str, Rule] = {"target": _classes, "total_weight": _positive}
_BY_PLACE: dict[str, Rule] = {"indices": _by_place}
_MOMENTS: dict[str, Rule] = {"rstd": _positive}
_ADAM: dict[str, Rule] = {
    "exp_avg_sqs": _positive,
    "state_steps": _positive,
    "max_exp_avg_sqs": _positive,
    "grad_scale": _positive,
}
_FIRST: dict[str, Rule] = {"self": _positive}

# Base name (without the in-place underscore) -> argument -> its values. What is not listed is N(0, 0.5) or 0/1.
LEGAL: dict[str, dict[str, Rule]] = {
    "embedding": {"indices": _rows("weight")},
    "embedding_dense_backward": {"indices": _number("num_weights")},
    "gather": _INDEX,
    "scatter": _INDEX,
    "scatter_add": _INDEX,
    "scatter_reduce": _INDEX,
    "index_select": _INDEX,
    "index_add": _INDEX,
    "index_copy": _INDEX,
    "index_fill": _INDEX,
    "index": _BY_PLACE,
    "index_put": _BY_PLACE,
    "_index_put_impl": _BY_PLACE,
    "_unsafe_index": _BY_PLACE,
    "_unsafe_index_put": _BY_PLACE,
    "take": {"index": lambda bound, spec, place: Values("below", bound["self"].elements)},
    "nll_loss_forward": _TARGET,
    "nll_loss_backward": _TARGET,
    "nll_loss2d_forward": _TARGET,
    "nll_loss2d_backward": _TARGET,
    "binary_cross_entropy": {"self": _positive, "target": _positive},
    "binary_cross_entropy_backward": {"self": _positive, "target": _positive},
    "_ctc_loss": _CTC,
    "_ctc_loss_backward": _CTC,
    "max_pool2d_with_indices_backward": {"indices": _plane(2)},
    "max_pool3d_with_indices_backward": {"indices": _plane(3)},
    "adaptive_max_pool2d_backward": {"indices": _plane(2)},
    "_grouped_mm": {"offs": _grouped_rows},
    "native_layer_norm_backward": _MOMENTS,
    "native_group_norm_backward": _MOMENTS,
    "_fused_rms_norm_backward": _MOMENTS,
    "_softmax_backward_data": {"output": _positive},
    "log": _FIRST,
    "log2": _FIRST,
    "log1p": _FIRST,
    "sqrt": _FIRST,
    "rsqrt": _FIRST,
    "reciprocal": _FIRST,
    "pow": _FIRST,
    "div": {"other": _positive},
    "_foreach_div": {"other": _positive, "scalars": _positive},
    "_foreach_sqrt": _FIRST,
    "_foreach_reciprocal": _FIRST,
    "_foreach_pow": _FIRST,
    "_foreach_addcdiv": {"tensor2": _positive},
    "addcdiv": {"tensor2": _positive},
    "_fused_adam": _ADAM,
    "_fused_adamw": _ADAM,
    "_amp_foreach_non_finite_check_and_unscale": {"inv_scale": _positive},
    "_amp_update_scale": {"self": _positive, "found_inf": _positive},
    "bernoulli": {"self": _positive, "p": _positive},
    "_embedding_bag": {
        "indices": _rows("weight"),
        "offsets": lambda bound, spec, place: Values("below", bound["indices"].elements),
    },
}

# Operators for which any integer is legal: arithmetic, comparison, copies, reductions, reorderings.
FREE_INTEGERS = frozenset(
    [
        "abs",
        "add",
        "all",
        "amax",
        "amin",
        "any",
        "arange",
        "argmax",
        "argmin",
        "argsort",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "bucketize",
        "cat",
        "ceil",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "copy",
        "count_nonzero",
        "cummax",
        "cummin",
        "cumprod",
        "cumsum",
        "div",
        "empty_like",
        "eq",
        "fill",
        "flip",
        "floor_divide",
        "full_like",
        "ge",
        "gt",
        "isin",
        "isinf",
        "isnan",
        "le",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "lt",
        "masked_fill",
        "max",
        "maximum",
        "mean",
        "min",
        "minimum",
        "mul",
        "ne",
        "neg",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "pow",
        "prod",
        "remainder",
        "repeat",
        "roll",
        "rsub",
        "scalar_tensor",
        "select_backward",
        "sgn",
        "sign",
        "slice_backward",
        "sort",
        "stack",
        "sub",
        "sum",
        "topk",
        "tril",
        "triu",
        "where",
        "zero",
        "zeros_like",
        "_to_copy",
        "searchsorted",
        "slice_scatter",
        "select_scatter",
        "new_empty_strided",
        "native_dropout_backward",
        "unfold",
        "_foreach_add",
        "_foreach_copy",
        "linalg_vector_norm",
        "rand_like",
        "randn_like",
        "lift_fresh_copy",
        "split_with_sizes_copy",
        "copy_",
        "bernoulli",
        "exponential",
    ]
)


def base_name(call: Call) -> str:
    """The operator without overload and without the underscore of its in-place form."""
    return call.name.rsplit(".", 1)[0].rstrip("_")


def values_of(call: Call, bound: Bound, argument: str, spec: TensorSpec, place: int = 0) -> Values:
    """The values that `argument` of `call` may hold; NotReplayable where integers have no rule."""
    base = base_name(call)
    rule = LEGAL.get(base, {}).get(argument)
    if rule is not None:
        return rule(bound, spec, place)
    if spec.dtype == "b8":
        return Values("mask")
    if spec.dtype.startswith(("f", "bf", "c")):
        return NORMAL
    if base in FREE_INTEGERS or base in LEGAL:  # what a described operator does not list is data, not a place
        return Values("free")
    raise NotReplayable(f"the integers in argument {argument!r} of {call.name} have no rule in legal.LEGAL")
