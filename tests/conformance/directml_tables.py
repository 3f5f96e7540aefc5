"""The "Tensor support" tables of DirectML's documentation, transcribed, and a parser of the transcription.

They come from the documents, not from the code: the level of introduction, the tensor constraints, and the rows under each
level. Where a document leaves its only table without a heading (QUANTIZED_LINEAR_ADD, CLIP1, CLIP_GRAD, CLIP_GRAD1), the
level of introduction heads it. Level 6_3 has what DML_QUANTIZE and DML_DEQUANTIZE add to the element-wise operators, 4-bit
integers, and EXTENDED what ONNX adds to DirectML.
"""

import re
from typing import NamedTuple

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
    # Input and Scale also have the same data type, except for INT32 inputs: operators/test_quantize_linear.py tests that.
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
    # The document has one data type for A and B, and 16- and 32-bit types; DEVIATIONS has jquant's.
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
    # Its table has no column of sizes: these are the sizes in the description of each member.
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
    # The number of filters is that of the output's channels; DEVIATIONS expresses the counts by the filter.
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
    # Its tables have no sizes: these are in the descriptions of the tensors, and written here as in CONVOLUTION_INTEGER.
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
# What the descriptors have instead of a text in the tables.
DEVIATIONS = {
    "dequantize_linear": {
        "Same DataType: OutputTensor, ScaleTensor": "",  # the operator checks it, because they may differ at EXTENDED
    },
    "convolution_integer": {"1 or OutputChannelCount": "1 or FilterBatchCount"},
    "quantized_linear_convolution": {
        "1 or OutputChannelCount": "1 or FilterBatchCount",
        "{ 1, OutputChannelCount, ": "{ 1, FilterBatchCount, ",
    },
    "matmul_integer_to_float": {
        "INT32, INT16, INT8, UINT32, UINT16, UINT8": "INT8, UINT8",  # the types of integer matrix units
        "Same DataType: ATensor, AZeroPointTensor, BTensor, BZeroPointTensor": (
            "Same DataType: ATensor, AZeroPointTensor\nSame DataType: BTensor, BZeroPointTensor"  # any signs
        ),
        # The operator checks the data type of the output, because it may differ at EXTENDED.
        "Same DataType: AScaleTensor, BiasTensor, BScaleTensor, OutputTensor": (
            "Same DataType: AScaleTensor, BScaleTensor\nSame DataType: AScaleTensor, BiasTensor"
        ),
    },
}


class Row(NamedTuple):
    """A row of a table: a tensor."""

    name: str
    kind: str
    ranks: tuple[int, int]
    data_types: frozenset[str]
    sizes: tuple[str, ...] | None


def parse_row(line: str) -> Row:
    name, kind, *sizes, ranks, data_types = line.split(" | ")
    first, *last = ranks.split(" to ")
    return Row(
        name=name,
        kind=kind,
        ranks=(int(first), int(*last or [first])),
        data_types=frozenset(data_types.split(", ")),
        sizes=tuple(sizes[0].strip("{ }").split(", ")) if sizes else None,
    )


def lines(operator: str) -> list[str]:
    """The lines about an operator, with the deviations of the descriptor."""
    text = DOCUMENTS[operator]
    for theirs, ours in DEVIATIONS.get(operator, {}).items():
        assert theirs in text
        text = text.replace(theirs, ours)
    return [line.strip() for line in text.splitlines() if line.strip()]


def values(operator: str, key: str) -> list[list[str]]:
    """The tensors in each line that begins with `key`."""
    return [line.split(": ")[1].split(", ") for line in lines(operator) if line.startswith(key)]


def tables(operator: str) -> dict[str, list[Row]]:
    """The rows of an operator's tables, by the level that heads each table."""
    rows: dict[str, list[Row]] = {}
    for line in lines(operator):
        if heading := re.fullmatch(r"(?:DML_FEATURE_LEVEL_)?(\w+) and above", line):
            table = rows.setdefault(heading[1], [])
        elif " | " in line:
            table.append(parse_row(line))
    return rows
