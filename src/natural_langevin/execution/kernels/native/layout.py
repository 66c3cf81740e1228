"""What the library is handed, as its headers have it: every field is eight bytes wide."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

from torch import Tensor

PAIR, POINTERS = c_int64 * 2, c_void_p * 2  # of a weight and its bias

#: Numbers of a tensor's prior, one row per chain.
PRIOR_NUMBERS = 4

KINDS = ("linear", "convolution", "max_pool", "average_pool", "append")
ACTIVATIONS = (
    "identity", "relu", "leaky_relu", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu", "softplus",
    "elu", "selu", "mish", "hardtanh",
)  # fmt: skip
#: Those with numbers of their own.
NUMBERED = ("leaky_relu", "softplus", "elu", "hardtanh")
METRICS = ("euclidean", "rmsprop", "diagonal", "quasi-diagonal", "unit")
PRIORS = (
    "flat", "gaussian", "normal_inverse_gamma", "student_t", "laplace", "two_gaussians", "positive",
)  # fmt: skip
LIKELIHOODS = (
    "categorical", "bernoulli", "gaussian", "heteroscedastic", "poisson", "negative_binomial",
    "ordinal", "student_t", "hurdle",
)  # fmt: skip


def pointer(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; NULL for None."""
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "the library reads memory as it lies"
    return tensor.data_ptr()


class Layer(ctypes.Structure):
    """One layer and the activation behind it (layout.h)."""

    _fields_ = [
        ("kind", c_int64),
        ("unit_inputs", c_int64),
        ("units", c_int64),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("positions", c_int64),
        ("table", c_void_p),
        ("share", c_double),
        ("activation", c_int64),
        ("parameter", c_double * 2),
        ("theta", POINTERS),
        ("trainable", PAIR),
        ("mean", POINTERS),
        ("momentum", POINTERS),
        ("second", POINTERS),
        ("cross", c_void_p),
        ("blocks", c_void_p),
        ("start", PAIR),
        ("prior", PAIR),
        ("prior_numbers", POINTERS),
        ("centre", POINTERS),
        ("damping", POINTERS),
    ]


class Run(ctypes.Structure):
    """The steps of one call (layout.h)."""

    _fields_ = [
        ("chains", c_int64),
        ("layers", c_int64),
        ("batch", c_int64),
        ("threads", c_int64),
        ("start", c_int64),
        ("count", c_int64),
        ("num_rows", c_int64),
        ("shuffled", c_int64),
        ("x", c_void_p),
        ("classes", c_void_p),
        ("y", c_void_p),
        ("targets", c_int64),
        ("offset", c_void_p),
        ("weight", c_void_p),
        ("rows", c_void_p),
        ("orders", c_void_p),
        ("epochs", c_void_p),
        ("data_origin", c_void_p),
        ("noise_origin", c_void_p),
        ("label_origin", c_void_p),
        ("step_size", c_void_p),
        ("decay", c_void_p),
        ("mean_rate", c_void_p),
        ("step_stride", c_int64),
        ("temperature", c_void_p),
        ("friction", c_void_p),
        ("dropout", c_void_p),
        ("mask_origin", c_void_p),
        ("baoab", c_int64),
        ("num_data", c_void_p),
        ("likelihood", c_int64),
        ("variance", c_double),
        ("own", c_int64),
        ("df", c_double),
        ("per_scale", c_void_p),
        ("learned_variance", c_void_p),
        ("metric", c_int64),
        ("fresh", c_int64),
        ("model_targets", c_int64),
        ("diverged", c_void_p),
        ("wrong_row", c_void_p),
        ("loss", c_void_p),
        ("workspace", c_void_p),
    ]


class LinearUpdate(ctypes.Structure):
    """The update of one weight and its bias (linear.h)."""

    _fields_ = (
        [(n, c_int64) for n in ("chains", "out", "in")]
        + [("start", PAIR)]
        + [(n, c_int64) for n in ("metric", "adapts", "fresh", "baoab")]
        + [("share", c_double)]
        + [(n, c_void_p) for n in ("gradient", "squares", "products")]
        + [(n, c_void_p) for n in ("bias_gradient", "bias_square")]
        + [("batch", c_int64), ("scale", c_double)]
        + [(n, c_void_p) for n in ("a", "delta", "fisher")]
        + [(n, POINTERS) for n in ("theta", "mean", "momentum", "second")]
        + [(n, c_void_p) for n in ("cross", "prior", "damping", "numbers", "keys")]
    )


class SampleSums(ctypes.Structure):
    """Sums over samples of one map's gradients (sums.h)."""

    _fields_ = (
        [(n, c_int64) for n in ("chains", "batch", "out", "in", "inputs", "positions", "apart")]
        + [(n, c_void_p) for n in ("a", "delta", "bias", "table")]
        + [("sums", c_void_p * 3)]
    )
