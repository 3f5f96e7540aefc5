"""The descriptors in the code, cell by cell, against the documents' "Tensor support" tables.

The tables below were transcribed from the documents, not from the code: the level of introduction, the tensor
constraints, and the rows under each level. Where a document leaves its one table without a heading
(QUANTIZED_LINEAR_ADD, CLIP1, CLIP_GRAD, CLIP_GRAD1), the level of introduction heads it. Level 6_3 has what DML_QUANTIZE and
DML_DEQUANTIZE have beyond the element-wise operators, integers of 4 bits, and EXTENDED what ONNX has beyond DirectML.
"""

import importlib
import re
from typing import NamedTuple

import pytest

from jquant.modes import FeatureLevel

DOCUMENTS = {
    "dequantize_linear": """
        DML_ELEMENT_WISE_DEQUANTIZE_LINEAR
        Introduced in DML_FEATURE_LEVEL_1_0

        Same DimensionCount and Sizes: InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor
        Same DataType: InputTensor, ZeroPointTensor
        Same DataType: OutputTensor, ScaleTensor

        EXTENDED and above
        InputTensor | Input | 1 to 8 | INT32, INT16, INT8, INT4, INT2, UINT32, UINT16, UINT8, UINT4, UINT2, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16, FLOAT8E8M0
        ZeroPointTensor | Optional input | 1 to 8 | INT32, INT16, INT8, INT4, INT2, UINT32, UINT16, UINT8, UINT4, UINT2, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16

        DML_FEATURE_LEVEL_6_3 and above
        InputTensor | Input | 1 to 8 | INT32, INT16, INT8, INT4, UINT32, UINT16, UINT8, UINT4
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Optional input | 1 to 8 | INT32, INT16, INT8, INT4, UINT32, UINT16, UINT8, UINT4
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16

        DML_FEATURE_LEVEL_6_2 and above
        InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Optional input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16

        DML_FEATURE_LEVEL_6_0 and above
        InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16

        DML_FEATURE_LEVEL_3_0 and above
        InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        ScaleTensor | Input | 1 to 8 | FLOAT32
        ZeroPointTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32

        DML_FEATURE_LEVEL_2_1 and above
        InputTensor | Input | 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        ScaleTensor | Input | 4 | FLOAT32
        ZeroPointTensor | Input | 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 4 | FLOAT32

        DML_FEATURE_LEVEL_1_0 and above
        InputTensor | Input | 4 | UINT8
        ScaleTensor | Input | 4 | FLOAT32
        ZeroPointTensor | Input | 4 | UINT8
        OutputTensor | Output | 4 | FLOAT32
    """,  # noqa: E501
    # Input and Scale have the same data type too, but for INT32: operators/test_quantize_linear.py has that.
    "quantize_linear": """
        DML_ELEMENT_WISE_QUANTIZE_LINEAR
        Introduced in DML_FEATURE_LEVEL_1_0

        Same DimensionCount and Sizes: InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor
        Same DataType: OutputTensor, ZeroPointTensor

        EXTENDED and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16, FLOAT8E8M0
        ZeroPointTensor | Optional input | 1 to 8 | INT16, INT8, INT4, INT2, UINT16, UINT8, UINT4, UINT2, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1
        OutputTensor | Output | 1 to 8 | INT16, INT8, INT4, INT2, UINT16, UINT8, UINT4, UINT2, FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ, FLOAT4E2M1

        DML_FEATURE_LEVEL_6_3 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Optional input | 1 to 8 | INT8, INT4, UINT8, UINT4
        OutputTensor | Output | 1 to 8 | INT8, INT4, UINT8, UINT4

        DML_FEATURE_LEVEL_6_2 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
        OutputTensor | Output | 1 to 8 | INT8, UINT8

        DML_FEATURE_LEVEL_6_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
        ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        ZeroPointTensor | Input | 1 to 8 | INT8, UINT8
        OutputTensor | Output | 1 to 8 | INT8, UINT8

        DML_FEATURE_LEVEL_3_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, INT32
        ScaleTensor | Input | 1 to 8 | FLOAT32
        ZeroPointTensor | Input | 1 to 8 | INT8, UINT8
        OutputTensor | Output | 1 to 8 | INT8, UINT8

        DML_FEATURE_LEVEL_2_1 and above
        InputTensor | Input | 4 | FLOAT32, INT32
        ScaleTensor | Input | 4 | FLOAT32
        ZeroPointTensor | Input | 4 | INT8, UINT8
        OutputTensor | Output | 4 | INT8, UINT8

        DML_FEATURE_LEVEL_1_0 and above
        InputTensor | Input | 4 | FLOAT32
        ScaleTensor | Input | 4 | FLOAT32
        ZeroPointTensor | Input | 4 | UINT8
        OutputTensor | Output | 4 | UINT8
    """,  # noqa: E501
    "dynamic_quantize_linear": """
        DML_DYNAMIC_QUANTIZE_LINEAR
        Introduced in DML_FEATURE_LEVEL_4_0

        One element: OutputScaleTensor
        One element: OutputZeroPointTensor
        Same DimensionCount: InputTensor, OutputScaleTensor, OutputTensor, OutputZeroPointTensor
        Same DataType: OutputTensor, OutputZeroPointTensor

        DML_FEATURE_LEVEL_4_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16
        OutputTensor | Output | 1 to 8 | INT8, UINT8
        OutputScaleTensor | Output | 1 to 8 | FLOAT32
        OutputZeroPointTensor | Output | 1 to 8 | INT8, UINT8
    """,
    "matmul_integer": """
        DML_MATRIX_MULTIPLY_INTEGER
        Introduced in DML_FEATURE_LEVEL_2_1

        AZeroPointCount: 1 or M
        BZeroPointCount: 1 or N
        Same DimensionCount: ATensor, BTensor, OutputTensor
        Same DataType: BTensor, BZeroPointTensor
        Same DataType: ATensor, AZeroPointTensor

        DML_FEATURE_LEVEL_5_2 and above
        ATensor | Input | { [BatchCount], [ChannelCount], M, K } | 2 to 4 | INT8, UINT8
        AZeroPointTensor | Optional input | { [1], [1], AZeroPointCount, [1] } | 1 to 4 | INT8, UINT8
        BTensor | Input | { [BatchCount], [ChannelCount], K, N } | 2 to 4 | INT8, UINT8
        BZeroPointTensor | Optional input | { [1], [1], [1], BZeroPointCount } | 1 to 4 | INT8, UINT8
        OutputTensor | Output | { [BatchCount], [ChannelCount], M, N } | 2 to 4 | INT32

        DML_FEATURE_LEVEL_4_0 and above
        ATensor | Input | { [BatchCount], [ChannelCount], M, K } | 2 to 4 | INT8, UINT8
        AZeroPointTensor | Optional input | { [1], [1], AZeroPointCount, [1] } | 1 to 4 | INT8, UINT8
        BTensor | Input | { [BatchCount], [ChannelCount], K, N } | 2 to 4 | INT8, UINT8
        BZeroPointTensor | Optional input | { [1], [1], 1, BZeroPointCount } | 2 to 4 | INT8, UINT8
        OutputTensor | Output | { [BatchCount], [ChannelCount], M, N } | 2 to 4 | INT32

        DML_FEATURE_LEVEL_2_1 and above
        ATensor | Input | { BatchCount, ChannelCount, M, K } | 4 | INT8, UINT8
        AZeroPointTensor | Optional input | { 1, 1, AZeroPointCount, 1 } | 4 | INT8, UINT8
        BTensor | Input | { BatchCount, ChannelCount, K, N } | 4 | INT8, UINT8
        BZeroPointTensor | Optional input | { 1, 1, 1, BZeroPointCount } | 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, ChannelCount, M, N } | 4 | INT32
    """,
    "clip": """
        DML_ELEMENT_WISE_CLIP
        Introduced in DML_FEATURE_LEVEL_1_0

        Same DimensionCount and Sizes: InputTensor, OutputTensor
        Same DataType: InputTensor, OutputTensor

        DML_FEATURE_LEVEL_5_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8

        DML_FEATURE_LEVEL_3_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8

        DML_FEATURE_LEVEL_2_1 and above
        InputTensor | Input | 4 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputTensor | Output | 4 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8

        DML_FEATURE_LEVEL_1_0 and above
        InputTensor | Input | 4 | FLOAT32, FLOAT16
        OutputTensor | Output | 4 | FLOAT32, FLOAT16
    """,
    "clip1": """
        DML_ELEMENT_WISE_CLIP1
        Introduced in DML_FEATURE_LEVEL_5_0

        Same DimensionCount and Sizes: InputTensor, OutputTensor
        Same DataType: InputTensor, OutputTensor

        DML_FEATURE_LEVEL_5_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
        OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
    """,
    "clip_gradient": """
        DML_ELEMENT_WISE_CLIP_GRAD
        Introduced in DML_FEATURE_LEVEL_3_1

        Same DimensionCount and Sizes: InputGradientTensor, InputTensor, OutputGradientTensor
        Same DataType: InputGradientTensor, InputTensor, OutputGradientTensor

        DML_FEATURE_LEVEL_3_1 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8
        InputGradientTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8
        OutputGradientTensor | Output | 1 to 8 | FLOAT32, FLOAT16, INT32, INT16, INT8, UINT32, UINT16, UINT8
    """,
    "clip_gradient1": """
        DML_ELEMENT_WISE_CLIP_GRAD1
        Introduced in DML_FEATURE_LEVEL_5_0

        Same DimensionCount and Sizes: InputGradientTensor, InputTensor, OutputGradientTensor
        Same DataType: InputGradientTensor, InputTensor, OutputGradientTensor

        DML_FEATURE_LEVEL_5_0 and above
        InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
        InputGradientTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
        OutputGradientTensor | Output | 1 to 8 | FLOAT32, FLOAT16, INT64, INT32, INT16, INT8, UINT64, UINT32, UINT16, UINT8
    """,
    "quantized_linear_add": """
        DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD
        Introduced in DML_FEATURE_LEVEL_4_0

        One element: AScaleTensor, AZeroPointTensor
        One element: BScaleTensor, BZeroPointTensor
        One element: OutputScaleTensor, OutputZeroPointTensor
        Same DimensionCount: AScaleTensor, ATensor, AZeroPointTensor
        Same DimensionCount: AScaleTensor, BScaleTensor, BTensor, BZeroPointTensor
        Same DimensionCount: AScaleTensor, OutputScaleTensor, OutputTensor, OutputZeroPointTensor
        Same DataType: BTensor, BZeroPointTensor
        Same DataType: OutputTensor, OutputZeroPointTensor
        Same DataType: ATensor, AZeroPointTensor

        DML_FEATURE_LEVEL_4_0 and above
        ATensor | Input | 1 to 8 | INT8, UINT8
        AScaleTensor | Input | 1 to 8 | FLOAT32
        AZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
        BTensor | Input | 1 to 8 | INT8, UINT8
        BScaleTensor | Input | 1 to 8 | FLOAT32
        BZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
        OutputScaleTensor | Input | 1 to 8 | FLOAT32
        OutputZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
        OutputTensor | Output | 1 to 8 | INT8, UINT8
    """,
    # One data type for A and B, and those of 16 and 32 bits, are the document's: DEVIATIONS has what is ours.
    "matmul_integer_to_float": """
        DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT
        Introduced in DML_FEATURE_LEVEL_6_2

        Same DimensionCount: AScaleTensor, AZeroPointTensor, BScaleTensor, BZeroPointTensor
        Same DimensionCount: ATensor, BTensor, OutputTensor
        Same DimensionCount and Sizes: BiasTensor, OutputTensor
        Same DataType: ATensor, AZeroPointTensor, BTensor, BZeroPointTensor
        Same DataType: AScaleTensor, BiasTensor, BScaleTensor, OutputTensor
        AScaleCount: 1 or M
        AZeroPointCount: 1 or M
        BScaleCount: 1 or N
        BZeroPointCount: 1 or N

        DML_FEATURE_LEVEL_6_2 and above
        ATensor | Input | { [BatchCount], [ChannelCount], M, K } | 2 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        AScaleTensor | Input | { [1], [1], AScaleCount, [1] } | 1 to 4 | FLOAT32, FLOAT16
        AZeroPointTensor | Optional input | { [1], [1], AZeroPointCount, [1] } | 1 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        BTensor | Input | { [BatchCount], [ChannelCount], K, N } | 2 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        BScaleTensor | Input | { [1], [1], [1], BScaleCount } | 1 to 4 | FLOAT32, FLOAT16
        BZeroPointTensor | Optional input | { [1], [1], [1], BZeroPointCount } | 1 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
        BiasTensor | Optional input | 2 to 4 | FLOAT32, FLOAT16
        OutputTensor | Output | { [BatchCount], [ChannelCount], M, N } | 2 to 4 | FLOAT32, FLOAT16
    """,  # noqa: E501
    "quantized_linear_matmul": """
        DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY
        Introduced in DML_FEATURE_LEVEL_2_1

        Same DataType: ATensor, AZeroPointTensor
        Same DimensionCount: ATensor, BTensor, OutputTensor
        Same DataType: BTensor, BZeroPointTensor
        Same DataType: OutputTensor, OutputZeroPointTensor
        Same DimensionCount: AScaleTensor, AZeroPointTensor, BScaleTensor, BZeroPointTensor, OutputScaleTensor, OutputZeroPointTensor
        AScaleCount: 1 or M
        AZeroPointCount: 1 or M
        BScaleCount: 1 or N
        BZeroPointCount: 1 or N
        OutputScaleCount: 1 or M
        OutputZeroPointCount: 1 or M

        EXTENDED and above
        ATensor | Input | { [Batch1], [Batch2], [Batch3], [Batch4], [BatchCount], [ChannelCount], M, K } | 2 to 8 | INT8, UINT8
        AScaleTensor | Input | { [1], [1], [1], [1], [1], [1], AScaleCount, [1] } | 1 to 8 | FLOAT32, FLOAT16
        AZeroPointTensor | Optional input | { [1], [1], [1], [1], [1], [1], AZeroPointCount, [1] } | 1 to 8 | INT8, UINT8
        BTensor | Input | { [Batch1], [Batch2], [Batch3], [Batch4], [BatchCount], [ChannelCount], K, N } | 2 to 8 | INT8, UINT8
        BScaleTensor | Input | { [1], [1], [1], [1], [1], [1], [1], BScaleCount } | 1 to 8 | FLOAT32, FLOAT16
        BZeroPointTensor | Optional input | { [1], [1], [1], [1], [1], [1], [1], BZeroPointCount } | 1 to 8 | INT8, UINT8
        OutputScaleTensor | Input | { [1], [1], [1], [1], [1], [1], OutputScaleCount, [1] } | 1 to 8 | FLOAT32, FLOAT16
        OutputZeroPointTensor | Optional input | { [1], [1], [1], [1], [1], [1], OutputZeroPointCount, [1] } | 1 to 8 | INT8, UINT8
        OutputTensor | Output | { [Batch1], [Batch2], [Batch3], [Batch4], [BatchCount], [ChannelCount], M, N } | 2 to 8 | INT8, UINT8

        DML_FEATURE_LEVEL_4_0 and above
        ATensor | Input | { [BatchCount], [ChannelCount], M, K } | 2 to 4 | INT8, UINT8
        AScaleTensor | Input | { [1], [1], AScaleCount, [1] } | 1 to 4 | FLOAT32
        AZeroPointTensor | Optional input | { [1], [1], AZeroPointCount, [1] } | 1 to 4 | INT8, UINT8
        BTensor | Input | { [BatchCount], [ChannelCount], K, N } | 2 to 4 | INT8, UINT8
        BScaleTensor | Input | { [1], [1], [1], BScaleCount } | 1 to 4 | FLOAT32
        BZeroPointTensor | Optional input | { [1], [1], [1], BZeroPointCount } | 1 to 4 | INT8, UINT8
        OutputScaleTensor | Input | { [1], [1], OutputScaleCount, [1] } | 1 to 4 | FLOAT32
        OutputZeroPointTensor | Optional input | { [1], [1], OutputZeroPointCount, [1] } | 1 to 4 | INT8, UINT8
        OutputTensor | Output | { [BatchCount], [ChannelCount], M, N } | 2 to 4 | INT8, UINT8

        DML_FEATURE_LEVEL_2_1 and above
        ATensor | Input | { BatchCount, ChannelCount, M, K } | 4 | INT8, UINT8
        AScaleTensor | Input | { 1, 1, AScaleCount, 1 } | 4 | FLOAT32
        AZeroPointTensor | Optional input | { 1, 1, AZeroPointCount, 1 } | 4 | INT8, UINT8
        BTensor | Input | { BatchCount, ChannelCount, K, N } | 4 | INT8, UINT8
        BScaleTensor | Input | { 1, 1, 1, BScaleCount } | 4 | FLOAT32
        BZeroPointTensor | Optional input | { 1, 1, 1, BZeroPointCount } | 4 | INT8, UINT8
        OutputScaleTensor | Input | { 1, 1, OutputScaleCount, 1 } | 4 | FLOAT32
        OutputZeroPointTensor | Optional input | { 1, 1, OutputZeroPointCount, 1 } | 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, ChannelCount, M, N } | 4 | INT8, UINT8
    """,  # noqa: E501
    # Its table has no column of sizes: they are those that the document gives for each member.
    "quantized_linear_average_pool": """
        DML_QUANTIZED_LINEAR_AVERAGE_POOLING
        Introduced in DML_FEATURE_LEVEL_6_2

        Same DimensionCount: InputTensor, OutputTensor
        Same DataType: InputTensor, InputZeroPointTensor
        Same DataType: OutputTensor, OutputZeroPointTensor
        Per channel: InputScaleTensor, InputZeroPointTensor, OutputScaleTensor, OutputZeroPointTensor

        DML_FEATURE_LEVEL_6_2 and above
        InputTensor | Input | { BatchCount, ChannelCount, [Depth], Height, Width } | 4 to 5 | INT8, UINT8
        InputScaleTensor | Input | 1 to 5 | FLOAT32
        InputZeroPointTensor | Optional input | 1 to 5 | INT8, UINT8
        OutputScaleTensor | Input | 1 to 5 | FLOAT32
        OutputZeroPointTensor | Optional input | 1 to 5 | INT8, UINT8
        OutputTensor | Output | 4 to 5 | INT8, UINT8
    """,
    # The number of filters is that of the output's channels: DEVIATIONS names the counts after the filter.
    "convolution_integer": """
        DML_CONVOLUTION_INTEGER
        Introduced in DML_FEATURE_LEVEL_2_1

        Same DataType: InputTensor, InputZeroPointTensor
        Same DataType: FilterTensor, FilterZeroPointTensor
        Same DimensionCount: FilterZeroPointTensor, InputZeroPointTensor
        Same DimensionCount: FilterTensor, InputTensor, OutputTensor
        FilterZeroPointChannelCount: 1 or OutputChannelCount

        DML_FEATURE_LEVEL_4_0 and above
        InputTensor | Input | { BatchCount, InputChannelCount, [InputHeight], InputWidth } | 3 to 4 | INT8, UINT8
        InputZeroPointTensor | Optional input | { [1], [1], [1], 1 } | 1 to 4 | INT8, UINT8
        FilterTensor | Input | { FilterBatchCount, FilterChannelCount, [FilterHeight], FilterWidth } | 3 to 4 | INT8, UINT8
        FilterZeroPointTensor | Optional input | { [1], FilterZeroPointChannelCount, [1], [1] } | 1 to 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, OutputChannelCount, [OutputHeight], OutputWidth } | 3 to 4 | INT32

        DML_FEATURE_LEVEL_2_1 and above
        InputTensor | Input | { BatchCount, InputChannelCount, InputHeight, InputWidth } | 4 | INT8, UINT8
        InputZeroPointTensor | Optional input | { 1, 1, 1, 1 } | 4 | INT8, UINT8
        FilterTensor | Input | { FilterBatchCount, FilterChannelCount, FilterHeight, FilterWidth } | 4 | INT8, UINT8
        FilterZeroPointTensor | Optional input | { 1, FilterZeroPointChannelCount, 1, 1 } | 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, OutputChannelCount, OutputHeight, OutputWidth } | 4 | INT32
    """,
    # Its tables have no sizes: they are in the descriptions of the tensors, and here as CONVOLUTION_INTEGER has them.
    "quantized_linear_convolution": """
        DML_QUANTIZED_LINEAR_CONVOLUTION
        Introduced in DML_FEATURE_LEVEL_2_1

        Same DimensionCount: BiasTensor, FilterTensor, InputTensor, OutputTensor
        Same DataType: OutputTensor, OutputZeroPointTensor
        Same DataType: InputTensor, InputZeroPointTensor
        Same DataType: FilterTensor, FilterZeroPointTensor
        FilterScaleChannelCount: 1 or OutputChannelCount
        FilterZeroPointChannelCount: 1 or OutputChannelCount

        DML_FEATURE_LEVEL_5_2 and above
        InputTensor | Input | { BatchCount, InputChannelCount, [InputHeight], InputWidth } | 3 to 4 | INT8, UINT8
        InputScaleTensor | Input | { [1], [1], [1], 1 } | 1 to 4 | FLOAT32
        InputZeroPointTensor | Optional input | { [1], [1], [1], 1 } | 1 to 4 | INT8, UINT8
        FilterTensor | Input | { FilterBatchCount, FilterChannelCount, [FilterHeight], FilterWidth } | 3 to 4 | INT8, UINT8
        FilterScaleTensor | Input | { [1], FilterScaleChannelCount, [1], [1] } | 1 to 4 | FLOAT32
        FilterZeroPointTensor | Optional input | { [1], FilterZeroPointChannelCount, [1], [1] } | 1 to 4 | INT8, UINT8
        BiasTensor | Optional input | { 1, OutputChannelCount, [1], 1 } | 3 to 4 | INT32
        OutputScaleTensor | Input | { [1], [1], [1], 1 } | 1 to 4 | FLOAT32
        OutputZeroPointTensor | Optional input | { [1], [1], [1], 1 } | 1 to 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, OutputChannelCount, [OutputHeight], OutputWidth } | 3 to 4 | INT8, UINT8

        DML_FEATURE_LEVEL_4_0 and above
        InputTensor | Input | { BatchCount, InputChannelCount, [InputHeight], InputWidth } | 3 to 4 | INT8, UINT8
        InputScaleTensor | Input | { [1], [1], [1], 1 } | 1 to 4 | FLOAT32
        InputZeroPointTensor | Optional input | { [1], [1], [1], 1 } | 1 to 4 | INT8, UINT8
        FilterTensor | Input | { FilterBatchCount, FilterChannelCount, [FilterHeight], FilterWidth } | 3 to 4 | INT8, UINT8
        FilterScaleTensor | Input | { [1], FilterScaleChannelCount, [1], [1] } | 3 to 4 | FLOAT32
        FilterZeroPointTensor | Optional input | { [1], FilterZeroPointChannelCount, [1], [1] } | 1 to 4 | INT8, UINT8
        BiasTensor | Optional input | { 1, OutputChannelCount, [1], 1 } | 3 to 4 | INT32
        OutputScaleTensor | Input | { [1], [1], [1], 1 } | 1 to 4 | FLOAT32
        OutputZeroPointTensor | Optional input | { [1], [1], [1], 1 } | 1 to 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, OutputChannelCount, [OutputHeight], OutputWidth } | 3 to 4 | INT8, UINT8

        DML_FEATURE_LEVEL_2_1 and above
        InputTensor | Input | { BatchCount, InputChannelCount, InputHeight, InputWidth } | 4 | INT8, UINT8
        InputScaleTensor | Input | { 1, 1, 1, 1 } | 4 | FLOAT32
        InputZeroPointTensor | Optional input | { 1, 1, 1, 1 } | 4 | INT8, UINT8
        FilterTensor | Input | { FilterBatchCount, FilterChannelCount, FilterHeight, FilterWidth } | 4 | INT8, UINT8
        FilterScaleTensor | Input | { 1, FilterScaleChannelCount, 1, 1 } | 4 | FLOAT32
        FilterZeroPointTensor | Optional input | { 1, FilterZeroPointChannelCount, 1, 1 } | 4 | INT8, UINT8
        BiasTensor | Optional input | { 1, OutputChannelCount, 1, 1 } | 4 | INT32
        OutputScaleTensor | Input | { 1, 1, 1, 1 } | 4 | FLOAT32
        OutputZeroPointTensor | Optional input | { 1, 1, 1, 1 } | 4 | INT8, UINT8
        OutputTensor | Output | { BatchCount, OutputChannelCount, OutputHeight, OutputWidth } | 4 | INT8, UINT8
    """,
}
# What the descriptors have in the place of a line above.
DEVIATIONS = {
    "dequantize_linear": {
        "Same DataType: OutputTensor, ScaleTensor": "",  # the operator compares them: free at jquant's own level
    },
    "convolution_integer": {"1 or OutputChannelCount": "1 or FilterBatchCount"},
    "quantized_linear_convolution": {
        "1 or OutputChannelCount": "1 or FilterBatchCount",
        "{ 1, OutputChannelCount, ": "{ 1, FilterBatchCount, ",
    },
    "matmul_integer_to_float": {
        "INT32, INT16, INT8, UINT32, UINT16, UINT8": "INT8, UINT8",  # the integer unit's
        "Same DataType: ATensor, AZeroPointTensor, BTensor, BZeroPointTensor": (
            "Same DataType: ATensor, AZeroPointTensor\nSame DataType: BTensor, BZeroPointTensor"  # every sign
        ),
        # The output's is compared by the operator: it is free at jquant's own level.
        "Same DataType: AScaleTensor, BiasTensor, BScaleTensor, OutputTensor": (
            "Same DataType: AScaleTensor, BScaleTensor\nSame DataType: AScaleTensor, BiasTensor"
        ),
    },
}


class Row(NamedTuple):
    name: str
    kind: str
    ranks: tuple[int, int]
    data_types: frozenset[str]
    sizes: tuple[str, ...] | None


def row(line: str) -> Row:
    name, kind, *sizes, ranks, data_types = line.split(" | ")
    first, *last = ranks.split(" to ")
    return Row(
        name,
        kind,
        (int(first), int(*last or [first])),
        frozenset(data_types.split(", ")),
        tuple(sizes[0].strip("{ }").split(", ")) if sizes else None,
    )


def lines(operator: str) -> list[str]:
    text = DOCUMENTS[operator]
    for theirs, ours in DEVIATIONS.get(operator, {}).items():
        assert theirs in text
        text = text.replace(theirs, ours)
    return [line.strip() for line in text.splitlines() if line.strip()]


def values(operator: str, key: str) -> list[list[str]]:
    return [line.split(": ")[1].split(", ") for line in lines(operator) if line.startswith(key)]


def tables(operator: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for line in lines(operator):
        if heading := re.fullmatch(r"(?:DML_FEATURE_LEVEL_)?(\w+) and above", line):
            table = found.setdefault(heading[1], [])
        elif " | " in line:
            table.append(row(line))
    return found


def descriptor(operator: str):
    return importlib.import_module(f"jquant.operators.{operator}")._DESCRIPTOR


operators = pytest.mark.parametrize("operator", DOCUMENTS)


@operators
def test_name(operator):
    assert descriptor(operator).operator == lines(operator)[0]


@operators
def test_introduction(operator):
    assert lines(operator)[1] == f"Introduced in DML_FEATURE_LEVEL_{min(descriptor(operator).levels)}"


@operators
def test_levels(operator):
    """`FeatureLevel.EXTENDED` is transcribed where another document says what it adds."""
    of_directml = descriptor(operator).levels.keys() - {FeatureLevel.EXTENDED}
    assert of_directml == {FeatureLevel(level) for level in tables(operator)} - {FeatureLevel.EXTENDED}


@pytest.mark.parametrize(("operator", "level"), [(operator, level) for operator in DOCUMENTS for level in tables(operator)])
def test_rows(operator, level):
    rows = descriptor(operator).levels[FeatureLevel(level)]
    given = [
        Row(
            tensor.name,
            tensor.kind,
            tensor.ranks,
            frozenset(tensor.data_types.split()),
            None if tensor.sizes is None else tuple(tensor.sizes.split()),
        )
        for tensor in rows
    ]
    assert given == tables(operator)[level]


@operators
def test_same_data_type(operator):
    pairs = map(set, descriptor(operator).same_data_type)
    assert joined(pairs) == joined(map(set, values(operator, "Same DataType")))


@operators
def test_same_dimension_count(operator):
    # Tensors whose sizes the table does not give have the output's dimension count: `Descriptor` says so.
    latest = max(descriptor(operator).levels.items())[1]
    per_channel = set(descriptor(operator).per_channel)  # these have 1 element, or the output's dimension count
    like_output = [{tensor.name for tensor in latest if tensor.sizes is None or tensor.kind == "Output"} - per_channel]
    groups = [set(group) for group in descriptor(operator).same_rank] + [group for group in like_output if len(group) > 1]
    assert joined(groups) == joined(map(set, values(operator, "Same DimensionCount")))


def joined(groups):
    """The groups, those with a common member as one."""
    found: list[set[str]] = []
    for group in groups:
        apart = [other for other in found if not other & group]
        found = [*apart, set.union(group, *(other for other in found if other & group))]
    return sorted(map(sorted, found))


@operators
def test_one_element(operator):
    assert set(descriptor(operator).one_element) == {name for names in values(operator, "One element") for name in names}


@operators
def test_per_channel(operator):
    assert set(descriptor(operator).per_channel) == {name for names in values(operator, "Per channel") for name in names}


@operators
def test_counts(operator):
    counts = {f"{count}: 1 or {size}" for count, size in descriptor(operator).counts.items()}
    assert counts == {line for line in lines(operator) if re.match(r"\w+Count: ", line)}


@pytest.mark.parametrize("operator", ["matmul_integer", "matmul_integer_to_float", "quantized_linear_matmul"])
def test_batch(operator):
    # "BatchCount * ChannelCount independent matrix multiplications"; four sizes more at jquant's own level
    assert descriptor(operator).batch == ("Batch1", "Batch2", "Batch3", "Batch4", "BatchCount", "ChannelCount")
