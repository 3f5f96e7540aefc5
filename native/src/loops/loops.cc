// Compiled once for each instruction set, with JQUANT_NAMESPACE, JQUANT_LOOPS, JQUANT_NAME and the macro that vectors.h
// asks for.
#include "loops.h"

#include "loops/blocks.h"
#include "loops/convolution.h"
#include "loops/depthwise.h"
#include "loops/dynamic_quantization.h"
#include "loops/elementwise.h"
#include "loops/product.h"
#include "loops/weight_only.h"

namespace jquant {

extern const Loops JQUANT_LOOPS = {
    JQUANT_NAME,
    JQUANT_NAMESPACE::kPartUnit,
    JQUANT_NAMESPACE::kCopiedRows,
    {JQUANT_NAMESPACE::multiply_stored, JQUANT_NAMESPACE::scratch_of_panels},
    {JQUANT_NAMESPACE::multiply_few_rows, JQUANT_NAMESPACE::scratch_of_few_rows},
    {JQUANT_NAMESPACE::multiply_window_rows, JQUANT_NAMESPACE::scratch_of_window_rows},
    {JQUANT_NAMESPACE::multiply_window_columns, JQUANT_NAMESPACE::scratch_of_window_columns},
    {JQUANT_NAMESPACE::convolve_depthwise_rows, JQUANT_NAMESPACE::scratch_of_depthwise_rows},
    {JQUANT_NAMESPACE::convolve_depthwise_planes, JQUANT_NAMESPACE::scratch_of_depthwise_planes},
    {JQUANT_NAMESPACE::multiply_blocks, JQUANT_NAMESPACE::scratch_of_blocks},
    {JQUANT_NAMESPACE::multiply_weight_only, JQUANT_NAMESPACE::scratch_of_weight_only},
    JQUANT_NAMESPACE::find_extremes,
    JQUANT_NAMESPACE::quantize,
    JQUANT_NAMESPACE::combine_elements,
};

}  // namespace jquant
