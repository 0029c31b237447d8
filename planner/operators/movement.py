"""Operators that move or fill memory: pointwise maths, copies, gathers, scatters, random numbers, optimizers."""

from __future__ import annotations

from planner.call import Call, TensorSpec
from planner.operators.operator import (
    FREE,
    Describer,
    Operator,
    argument,
    broadcast,
    by_bytes,
    each,
    elements,
    first,
    integers,
    item_bytes,
    mixed,
    run,
    size,
    strided,
    tensors,
)

INDEX_DTYPES = ("i64", "i32")
INDEXED = ("index_put", "_index_put_impl", "_unsafe_index_put")
PADDING = ("constant_pad_nd", "pad")
# Copies of many tensors by one kernel are timed as a concatenation, whose kernel is of the same make.
BATCHED = "cat"


def pointwise(variant: str, call: Call) -> Operator:
    """Each element of the result from the elements at its place."""
    count = max((spec.elements for spec in (*call.results, *call.tensors)), default=0)
    written = None if call.results else size(call.tensors[:1])
    every = (*call.tensors, *call.results)
    shape = (count, strided(every), broadcast(every), mixed(call.tensors))
    return by_bytes("pointwise", variant, call, shape, written_bytes=written)


def copy(variant: str, call: Call) -> Operator:
    """A copy, a cast, a concatenation: what is copied is read once and written once."""
    results = call.results or call.tensors[:1]
    sources = call.tensors[1:] if variant in ("copy", "_copy_from") else call.tensors
    layout = strided((*sources, *results)) if len(sources) == 1 else max(map(_layout, sources), default=0)
    if variant in PADDING and any(integers(argument(call, 1, "pad"))):
        layout = max(layout, 1)  # a copy into a part of the result
    joined = sources if len(sources) > 1 else (*sources, *results)
    shape = (elements(results), layout, run(joined) if layout else elements(results))
    return by_bytes("copy", variant, call, shape, read_bytes=size(sources), written_bytes=size(results))


def copy_of_list(variant: str, call: Call) -> Operator:
    """The second list into the first, cast on the way."""
    into, source = (tensors(value) for value in call.arguments[:2])
    shape = (len(into), elements(into))
    return by_bytes("optimizer", variant, call, shape, read_bytes=size(source), written_bytes=size(into))


def into_buffer(_: str, call: Call) -> Operator:
    """FSDP's copies into the buffer of a collective: the rank's own shards, or whole gradients, cast on the way."""
    source = tensors(call.arguments[0])
    into = tensors(dict(call.keywords).get("out")) or source
    shape = (elements(into), 0, elements(into))
    return by_bytes("copy", BATCHED, call, shape, read_bytes=size(source), written_bytes=size(into))


def out_of_buffer(_: str, call: Call) -> Operator:
    """FSDP's copy of what was gathered into whole weights: every byte read once and written once."""
    gathered = (first(call),)
    shape = (elements(gathered), 0, elements(gathered))
    return by_bytes("copy", BATCHED, call, shape, read_bytes=size(gathered), written_bytes=size(gathered))


def part_backward(variant: str, call: Call) -> Operator:
    """The gradient of a view: zeros of the full size, with the part copied in."""
    part = first(call)
    return by_bytes("copy", variant, call, (elements(call.results), 1, run((part,))))


def fill(variant: str, call: Call) -> Operator:
    results = call.results or call.tensors[:1]
    return by_bytes("fill", variant, call, (elements(results),), read_bytes=0, written_bytes=size(results))


def random(variant: str, call: Call) -> Operator:
    results = call.results or call.tensors[:1]
    read = size(call.tensors) if variant in ("native_dropout", "native_dropout_backward") else 0
    return by_bytes("random", variant, call, (max(map(_count, results)),), read_bytes=read, written_bytes=size(results))


def gather(variant: str, call: Call) -> Operator:
    """Rows picked by index: only what is picked is read; `table` counts the elements of what it is picked from."""
    result = call.results[0] if call.results else first(call)
    indices = tuple(spec for spec in call.tensors[1:] if spec.dtype in INDEX_DTYPES) or call.tensors[1:2]
    rows = max((spec.elements for spec in indices), default=1)
    shape = (rows, max(1, result.elements // max(rows, 1)), first(call).elements)
    operator = by_bytes("gather", variant, call, shape, read_bytes=size((result,)) + size(indices))
    return Operator(operator.kind, variant, result.dtype, shape, 0.0, operator.bytes_read, operator.bytes_written)


def scatter(variant: str, call: Call) -> Operator:
    """Rows added or put at an index; `targets` counts the elements of what is written to."""
    result = call.results[0] if call.results else first(call)
    indices = tuple(spec for spec in call.tensors if spec.dtype in INDEX_DTYPES)
    rows = max((spec.elements for spec in indices), default=1)
    source = max((spec.elements for spec in call.tensors if spec.dtype not in INDEX_DTYPES), default=0)
    if variant != "embedding_dense_backward":
        values = [spec for spec in call.tensors[1:] if spec.dtype not in INDEX_DTYPES]
        source = max((spec.elements for spec in values), default=rows)
    summed = int(variant in INDEXED and argument(call, 3, "accumulate") is True)
    shape = (rows, max(1, source // max(rows, 1)), result.elements, summed)
    return by_bytes("scatter", variant, call, shape, written_bytes=size((result,)))


def optimizer(variant: str, call: Call) -> Operator:
    """A multi-tensor step: `written` are the lists that the kernel updates in place."""
    lists = [tensors(value) for value in call.arguments if isinstance(value, tuple) and tensors(value)]
    updated = lists[: WRITTEN_LISTS.get(variant, 1)]
    if variant.startswith("_fused"):
        updated = [lists[0], *lists[2 : 1 + WRITTEN_LISTS.get(variant, 1)]]
    written = size(call.results) or sum(map(size, updated))
    main = lists[0] if lists else call.tensors
    return by_bytes("optimizer", variant, call, (len(main), elements(main)), written_bytes=written)


def free(variant: str, call: Call) -> Operator:
    """No kernel: a view, an allocation, a question to the host."""
    return Operator(FREE, variant, first(call).dtype, (), 0.0, 0, 0)


def _layout(spec: TensorSpec) -> int:
    """Of one part of a concatenation: 0 when it is contiguous, else as `strided`."""
    return 0 if spec.stride is None else max(1, strided((spec,)))


def _count(spec: object) -> int:
    return max((item.elements for item in tensors(spec)), default=0)


def unknown_bytes(call: Call) -> tuple[int, int]:
    """(read, written) of a call that nothing is known about."""
    written = size(call.results) or sum(spec.elements * item_bytes(spec.dtype) for spec in call.tensors[:1])
    return size(call.tensors), written


WRITTEN_LISTS = {"_fused_adam": 4, "_fused_adamw": 4, "_fused_sgd": 3, "_fused_adagrad": 3}
"""Lists of a fused step that it updates, the gradients (the second list) not among them but counted."""

OPERATORS: dict[str, Describer] = {
    **each(
        pointwise,
        """
        add sub mul div rsub neg abs sign sgn pow exp exp2 expm1 log log2 log1p log10 sqrt rsqrt reciprocal
        sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv
        floor ceil round trunc frac fmod remainder floor_divide true_divide square clamp clamp_min clamp_max
        clip maximum minimum fmax fmin lerp addcmul addcdiv xlogy polar real imag complex
        view_as_complex_copy angle hypot digamma lgamma polygamma special_erfcx i0 sinc nan_to_num copysign
        heaviside logaddexp logaddexp2 ldexp deg2rad eq ne lt le gt ge logical_and logical_or logical_not
        logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor bitwise_left_shift bitwise_right_shift
        __and__ __or__ __xor__ __lshift__ __rshift__ isnan isinf isfinite isneginf isposinf where
        masked_fill tril triu relu relu6 gelu gelu_backward silu silu_backward mish mish_backward elu
        elu_backward selu celu leaky_relu leaky_relu_backward prelu _prelu_kernel _prelu_kernel_backward
        hardtanh hardtanh_backward hardswish hardswish_backward hardsigmoid hardsigmoid_backward softplus
        softplus_backward softshrink softshrink_backward hardshrink hardshrink_backward log_sigmoid
        log_sigmoid_forward log_sigmoid_backward sigmoid_backward tanh_backward logit_backward threshold
        threshold_backward rrelu_with_noise rrelu_with_noise_backward dropout mse_loss mse_loss_backward
        l1_loss smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy
        binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss
        soft_margin_loss_backward kl_div masked_scatter_backward _masked_scale native_dropout_backward cross
        rot90 cdist _cdist_forward _cdist_backward _euclidean_dist cosine_similarity renorm _pdist_forward
        nextafter _amp_update_scale special_log_ndtr special_ndtr special_xlog1py special_i1e special_entr
        _fused_dropout _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
        _thnn_fused_gru_cell_backward isclose signbit rrelu_with_noise_functional conj_physical
        """,
    ),
    **each(
        copy,
        """
        _to_copy clone copy contiguous cat stack hstack vstack _copy_from lift_fresh_copy roll flip repeat
        repeat_interleave tile constant_pad_nd pad _pad_circular split_with_sizes_copy split_copy
        unbind_copy slice_copy select_copy view_copy expand_copy permute_copy transpose_copy t_copy
        as_strided_copy slice_scatter select_scatter diagonal_scatter as_strided_scatter diag_embed diag
        rigplan.dequantize_nf4 rigplan.dequantize_scales
        tril_indices triu_indices _pin_memory block_diag column_stack meshgrid _conj_copy narrow_copy
        unfold_copy resolve_conj resolve_neg _chunk_cat _copy_from_and_resize set_data combinations to
        _reshape_copy _resize_output
        """,
    ),
    **each(copy_of_list, "_foreach_copy"),
    **each(into_buffer, "fsdp.all_gather_copy_in fsdp.chunk_cat"),
    **each(out_of_buffer, "fsdp.split_with_sizes_copy"),
    **each(
        part_backward,
        """
        slice_backward select_backward diagonal_backward unfold_backward trace_backward
        value_selecting_reduction_backward
        """,
    ),
    **each(
        fill,
        """
        fill zero zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like scalar_tensor
        arange linspace logspace eye range fill_diagonal one_hot hann_window hamming_window bartlett_window
        blackman_window _foreach_zero
        """,
    ),
    **each(
        random,
        """
        native_dropout native_dropout_backward bernoulli rand randn randint rand_like randn_like
        randint_like uniform normal exponential random cauchy log_normal geometric poisson binomial
        alpha_dropout normal_functional
        """,
    ),
    **each(
        gather,
        """
        embedding gather index index_select take take_along_dim _embedding_bag _embedding_bag_forward_only
        embedding_bag _unsafe_index _unsafe_masked_index
        """,
    ),
    **each(
        scatter,
        """
        embedding_dense_backward scatter scatter_add scatter_reduce index_put _index_put_impl index_add
        index_copy index_fill index_reduce put _unsafe_index_put embedding_sparse_backward
        _embedding_bag_dense_backward _embedding_bag_backward embedding_backward gather_backward
        masked_scatter masked_select_backward index_select_backward
        _embedding_bag_per_sample_weights_backward embedding_renorm _unsafe_masked_index_put_accumulate
        segment_reduce histogram
        """,
    ),
    **each(
        optimizer,
        """
        _foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_addcdiv _foreach_addcmul _foreach_lerp
        _foreach_sqrt _foreach_rsqrt _foreach_reciprocal _foreach_neg _foreach_pow _foreach_exp _foreach_log
        _foreach_abs _foreach_sign _foreach_maximum _foreach_minimum _foreach_clamp_min _foreach_clamp_max
        _foreach_norm _foreach_max _foreach_sigmoid _foreach_tanh _foreach_round _foreach_ceil
        _foreach_floor _foreach_log1p _foreach_log2 _foreach_log10 _foreach_sin _foreach_cos _foreach_erf
        _foreach_frac _foreach_trunc _foreach_expm1 _foreach_powsum _fused_adam _fused_adamw _fused_sgd
        _fused_adagrad
        """,
    ),
    **each(
        free,
        """
        empty empty_like empty_strided new_empty new_empty_strided empty_permuted view _unsafe_view reshape
        expand t transpose permute detach alias slice select unsqueeze squeeze split split_with_sizes chunk
        unbind as_strided unfold narrow diagonal _reshape_alias view_as_real view_as_complex _conj _neg_view
        lift lift_fresh numel size stride is_contiguous sym_size storage_offset sym_numel sym_stride
        sym_storage_offset device dim record_stream _assert_async _assert_scalar _version resize set
        _has_compatible_shallow_copy_type is_same_size result_type swapaxes movedim unflatten flatten
        expand_as view_as requires_grad retain_grad is_pinned _functional_assert_async _backward
        is_floating_point is_complex _cudnn_init_dropout_state _make_dep_token resize_as
        """,
    ),
}  # fmt: skip
