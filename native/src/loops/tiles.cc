// The loops that multiply tiles of bytes by instructions of their own. All others are those of an instruction set without.
#include "loops.h"
#include "loops/convolution.h"
#include "loops/product.h"

namespace jquant {

extern const TileLoops JQUANT_LOOPS = {
    JQUANT_NAME,
    JQUANT_NAMESPACE::kCopiedRows,
    {JQUANT_NAMESPACE::multiply_stored, JQUANT_NAMESPACE::scratch_of_panels},
    {JQUANT_NAMESPACE::multiply_window_rows, JQUANT_NAMESPACE::scratch_of_window_rows},
    {JQUANT_NAMESPACE::multiply_window_columns, JQUANT_NAMESPACE::scratch_of_window_columns},
};

}  // namespace jquant
