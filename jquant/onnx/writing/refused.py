"""What no model can express, and why."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jquant.errors import ModelError
from jquant.onnx.writing import kernel_types
from jquant.onnx.writing.tensor import is_key

RANDOM = "random numbers are not supported: pass them to the function"
_DEVICES = "a model runs on one device"
_NO_ORDER = "a model has no order of effects"
# Of what has an effect, or depends on where it runs; refused also where all operands are known.
_REASONS = {
    "a model cannot call Python": "buffer_callback debug_callback debug_print inspect_sharding io_callback pure_callback",
    "a kernel of one's own is not supported; call the operator with the implementation that has none": (
        "core_map cudnn_fusion custom_fusion dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd_wrapper "
        "dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd_wrapper ffi_call fusible mosaic_gpu_p mpmd_map "
        "pallas_call scaled_matmul_wrapper tpu_custom_call"
    ),
    _DEVICES: (
        "all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start "
        "all_to_all all_to_all_done all_to_all_start axis_index custom_partitioning global_array_to_host_local_array "
        "host_local_array_to_global_array pbroadcast pbroadcast_done pbroadcast_dynamic pbroadcast_start pmax pmin ppermute "
        "ppermute_done ppermute_start precv preduced psend psum psum_done psum_invariant psum_invariant_start psum_start "
        "pvary ragged_all_to_all reduce_scatter reduce_scatter_done reduce_scatter_start reduced_vary_cast "
        "reduced_vary_cast_p reshard shard_alike shard_map unreduced_pmax unreduced_pmin unreduced_psum "
        "unreduced_psum_start unreduced_reduce_scatter unreduced_reduce_scatter_start vary_unreduced_cast "
        "vary_unreduced_cast_p"
    ),
    "a model has no references whose values change: return the new values": (
        "accum_grad_in_ref addupdate box_get box_set broadcast_to create_linear empty_ref free_ref freeze get log_extend "
        "log_read new_box new_log new_ref pin run_scoped run_state swap unpin"
    ),
    _NO_ORDER: "after_all assert_consumed_value consume create_token program_order",
    "a model raises no errors of its own: check the values outside of it": "check shape_assertion",
    "its program was compiled by jax.export: export the function itself": "call_exported",
}
# Of what computes values; where these are known, they become constants.
_NOT_WRITTEN = {
    "is not supported: ONNX has no sparse arrays, pass dense ones": (
        "bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general "
        "bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense "
        "coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat csr_matvec csr_spmm "
        "csr_spmv csr_todense spsolve todense"
    ),
    "is not supported: ONNX has no decompositions of matrices, and solves no systems": (
        "cholesky cholesky_update custom_linear_solve eig eigh geqp3 geqrf hessenberg householder_product lu "
        "lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve tridiagonal tridiagonal_solve"
    ),
    "is not supported: ONNX has no node for this function": (
        "bessel_i0e bessel_i1e digamma igamma igamma_grad_a igammac lgamma mulhi nextafter polygamma random_gamma_grad "
        "regularized_incomplete_beta zeta"
    ),
    "is not supported: complex numbers have no nodes": "complex conj fft imag real",
    "is not supported: which elements it finds is not stated, jax.lax.top_k is written": "approx_top_k",
    "is not supported: a maximum over windows has no derivative in ONNX": (
        "select_and_gather_add select_and_scatter select_and_scatter_add"
    ),
    "is not supported: ONNX has no products of rows in groups of different sizes": "ragged_dot_general",
    "is not supported: ONNX has no products with scales by block": "scaled_dot",
    "is not supported: the kernels of cuDNN have no nodes": "rnn_bwd rnn_fwd",
    "is not supported: which device computes what is open in a model": "compute_on relayout with_memory_space_constraint",
    "is not supported: a model has none of JAX's types beyond numbers": "from_edtype to_edtype",
    "is not supported: it is a part of JAX's own transformations": (
        "call_hi_primitive_linearized custom_jvp_call_jaxpr custom_lin dce_sink eval_jaxpr fused_call remat_opt stage tie "
        "unreachable zeros_like"
    ),
    "is not supported with this size": "dimension_size empty empty2 platform_index",  # without operands, mostly known
}
_RANDOM_NAMES = "random_", "rng_", "threefry", "philox", "iota_2x32"


def _by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in reasons.items() for name in names.split()}


_ALWAYS, _UNKNOWN = _by_name(_REASONS), _by_name(_NOT_WRITTEN)


def reason(name: str) -> str | None:
    """Why a primitive without a rule is not written; None for one that is not in the lists."""
    if name.startswith(_RANDOM_NAMES):
        return RANDOM
    return _ALWAYS.get(name) or _UNKNOWN.get(name)


_OF_PROGRAMS = frozenset({"scan", "while", "cond"})  # whose effects are those of equations inside


def check(equation: Any, *, is_folded: bool) -> None:
    """Refuses an equation that no nodes express.

    Args:
      is_folded: whether its results are computed now, as random numbers from a known key are.

    Raises:
      ModelError: the reason.
    """
    name = equation.primitive.name
    operands, results = ([atom.aval for atom in atoms] for atoms in (equation.invars, equation.outvars))
    if name in _ALWAYS:
        raise ModelError(_ALWAYS[name])
    is_random = name.startswith(_RANDOM_NAMES) or any(is_key(aval) for aval in (*operands, *results))
    if is_random and not is_folded:
        raise ModelError(RANDOM)
    if equation.effects and name not in _OF_PROGRAMS:
        raise ModelError("it has an effect, and a model has none")
    for aval in (*operands, *results):
        if not (is_folded and is_key(aval)):
            check_type(aval)


def check_type(aval: Any) -> None:
    """Refuses an array of a type that models are not written in.

    Raises:
      ModelError: the reason.
    """
    if is_key(aval):
        raise ModelError(RANDOM)
    if not hasattr(aval, "dtype"):  # a token
        raise ModelError(_NO_ORDER)
    if not kernel_types.is_written(aval.dtype):
        advice = "; convert it to float32" if aval.dtype == np.float64 else ""
        raise ModelError(f"{aval.dtype} is not supported{advice}")
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is not None and not mesh.empty and any(part is not None for part in aval.sharding.spec):
        raise ModelError(f"it is sharded over the axes of an explicit mesh, {aval.sharding.spec}; {_DEVICES}")
