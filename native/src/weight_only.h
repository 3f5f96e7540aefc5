// What a product of floats and weights of few bits computes: its operands, as the inner loops see them. The handler fills
// these in and checks every size; the loops rely on it.
#pragma once

#include <cstdint>

#include "product.h"

namespace jquant {

// An array with an element for each block and column of the weights.
struct ByBlock {
  const void* data = nullptr;
  Type type = Type::kFloat32;  // any but kInt32

  explicit operator bool() const { return data != nullptr; }
};

// A @ W in float32, where W is fl(fl(q - zero_point) * scale), or with a minimum fl(fl(q * scale) + minimum): q is the
// stored integer less `offset`, and the arrays have an element for each `block_size` rows of a column.
struct WeightOnlyProduct {
  enum class Layout {
    kColumns,  // (columns, blocks, bytes of a block): unsigned integers of `bits`, the first of a byte in its lowest bits
    kWords,    // (rows of W / 4, columns), uint16: four unsigned 4-bit integers each, the first in the lowest bits
    kBytes,    // (rows of W, columns), int8
  };

  const float* a = nullptr;  // (rows, depth)
  const void* weights = nullptr;
  float* output = nullptr;  // (rows, columns)
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t block_size = 1, blocks = 0;  // the last block has whatever is left of `depth`
  Layout layout = Layout::kColumns;
  int bits = 4;                        // 2, 4 or 8 in kColumns, 4 in kWords, 8 in kBytes
  float offset = 0;                    // a small integer
  ByBlock scale, zero_point, minimum;  // (columns, blocks) for kColumns, (blocks, columns) otherwise

  bool is_depth_minor() const { return layout == Layout::kColumns; }
};

}  // namespace jquant
