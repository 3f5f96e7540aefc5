"""The operators of `jquant.onnx.fusing.qdq_patterns`, each with a call and the function that it has to equal."""

import numpy as np

import jquant

from .qdq_models import EXTENDED, ZERO_POINTS

# Operators of one operand: the call, the shape of x, and the operator of jquant on the operand x and the output y.
UNARY = {
    "Sigmoid": ("Sigmoid(xd)", (4, 40), lambda x, y: jquant.quantized_linear_sigmoid(*x, np.float32(1 / 256), y[1])),
    "Softmax": (
        "Softmax <axis = 1> (xd)",
        (3, 9, 2),
        lambda x, y: jquant.quantized_linear_softmax(*x, np.float32(1 / 256), y[1], axis=1),
    ),
    "LeakyRelu": (
        "LeakyRelu <alpha = 0.2> (xd)",
        (4, 40),
        lambda x, y: jquant.quantized_linear_leaky_relu(*x, *y, alpha=np.float32(0.2)),
    ),
    "GlobalAveragePool": (
        "GlobalAveragePool(xd)",
        (9, 3, 4),
        lambda x, y: jquant.quantized_linear_global_average_pool(*x, *y),
    ),
    "AveragePool": (
        "AveragePool <kernel_shape = [2, 3], strides = [1, 2], pads = [1, 0, 0, 1], count_include_pad = 1> (xd)",
        (2, 3, 5, 8),
        lambda x, y: jquant.quantized_linear_average_pool(
            *x, *y, window_sizes=(2, 3), strides=(1, 2), padding=((1, 0), (0, 1)), include_padding=True
        ),
    ),
}
# Operators of two operands: the call, the shapes of x and z, and the operator of jquant with options.
BINARY = {
    "Add": ("Add(xd, zd)", (3, 5), (4, 3, 1), jquant.quantized_linear_add, {"feature_level": EXTENDED}),
    "Mul": ("Mul(xd, zd)", (3, 5), (4, 3, 1), jquant.quantized_linear_multiply, {}),
    "MatMul": ("MatMul(xd, zd)", (2, 4, 7), (7, 5), jquant.quantized_linear_matmul, {"feature_level": EXTENDED}),
}

INDICES, PADS = np.array([2, 0, 2], np.int64), np.array([0, 0, 1, 1, 0, 0, 0, 2], np.int64)
# Operators that integers pass through: the call, its initializers, and the same function of NumPy.
PASSED_THROUGH = {
    "Concat": ("Concat <axis = 1> (xd, xd)", {}, lambda x: np.concatenate([x, x], 1)),
    "DepthToSpace": (
        "DepthToSpace <blocksize = 2> (xd)",
        {},
        lambda x: x.reshape(2, 2, 2, 1, 6, 8).transpose(0, 3, 4, 1, 5, 2).reshape(2, 1, 12, 16),
    ),
    "Expand": ("Expand(xd, a)", {"a": np.array([3, 1, 1, 1, 1])}, lambda x: np.broadcast_to(x, (3, *x.shape))),
    "Flatten": ("Flatten <axis = 2> (xd)", {}, lambda x: x.reshape(8, 48)),
    "Gather": ("Gather <axis = 2> (xd, a)", {"a": INDICES}, lambda x: np.take(x, INDICES, 2)),
    "GatherElements": (
        "GatherElements <axis = 1> (xd, a)",
        {"a": INDICES.reshape(1, 3, 1, 1)},
        lambda x: np.take_along_axis(x[:1, :, :1, :1], INDICES.reshape(1, 3, 1, 1), 1),
    ),
    "GatherND": ("GatherND(xd, a)", {"a": np.array([[1, 2], [0, 3]])}, lambda x: x[[1, 0], [2, 3]]),
    "Identity": ("Identity(xd)", {}, lambda x: x),
    "Max": ("Max(xd, xd)", {}, lambda x: x),
    "MaxPool": (
        "MaxPool <kernel_shape = [2, 3], strides = [2, 3], pads = [0, 1, 0, 0]> (xd)",
        {},
        lambda x: np.pad(x, [(0, 0)] * 3 + [(1, 0)]).reshape(2, 4, 3, 2, 3, 3).max((3, 5)),
    ),
    "Min": ("Min(xd, xd)", {}, lambda x: x),
    "Pad": (
        "Pad(xd, a)",
        {"a": PADS},
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 0), (1, 2)], constant_values=ZERO_POINTS["x"]),
    ),
    "ReduceMax": ("ReduceMax <keepdims = 0> (xd, a)", {"a": np.array([1, 3])}, lambda x: x.max((1, 3))),
    "ReduceMin": ("ReduceMin(xd, a)", {"a": np.array([2])}, lambda x: x.min(2, keepdims=True)),
    "Reshape": ("Reshape(xd, a)", {"a": np.array([0, -1])}, lambda x: x.reshape(2, -1)),
    "Resize": (
        'Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (xd, , a)',
        {"a": np.array([1, 1, 2, 2], np.float32)},
        lambda x: x.repeat(2, 2).repeat(2, 3),
    ),
    "ReverseSequence": (
        "ReverseSequence <batch_axis = 0, time_axis = 1> (xd, a)",
        {"a": np.array([4, 1])},
        lambda x: np.stack([x[0, ::-1], x[1]]),
    ),
    "Slice": ("Slice(xd, a, b, c)", {"a": [1], "b": [9], "c": [3]}, lambda x: x[..., 1:]),
    "SpaceToDepth": (
        "SpaceToDepth <blocksize = 2> (xd)",
        {},
        lambda x: x.reshape(2, 4, 3, 2, 4, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 16, 3, 4),
    ),
    "Split": ("Split <axis = 3> (xd, a)", {"a": [3, 5]}, lambda x: x[..., :3]),
    "Squeeze": ("Squeeze(xd, a)", {"a": np.zeros(0, np.int64)}, lambda x: x),
    "Tile": ("Tile(xd, a)", {"a": np.array([1, 2, 1, 1])}, lambda x: np.tile(x, (1, 2, 1, 1))),
    "Transpose": ("Transpose <perm = [2, 0, 3, 1]> (xd)", {}, lambda x: x.transpose(2, 0, 3, 1)),
    "Unsqueeze": ("Unsqueeze(xd, a)", {"a": np.array([1])}, lambda x: x[:, None]),
    "Where": ("Where(a, xd, xd)", {"a": np.array([True, False] * 4)}, lambda x: x),
}
