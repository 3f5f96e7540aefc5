// The product of floats and weights of few bits, one part of the output at a time.
#pragma once

#include "weight_only_columns.h"
#include "weight_only_rows.h"
#include "weight_only_tiles.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// A part of the product. All rows of a product of few are in each part.
inline void multiply_weight_only(const WeightOnlyProduct& product, const Part& part, char* scratch) {
  float* floats = reinterpret_cast<float*>(scratch);
  if (product.rows > kFewRows) {
    multiply_in_tiles(product, part, floats);
  } else if (product.is_depth_minor()) {
    multiply_by_columns(product, part, floats);
  } else {
    multiply_by_rows(product, part, floats);
  }
}

inline int64_t scratch_of_weight_only(const WeightOnlyProduct& product, const Part& part) {
  const int64_t floats = product.rows > kFewRows    ? scratch_of_tiles(product, part)
                         : product.is_depth_minor() ? scratch_of_columns(product, part)
                                                    : scratch_of_rows(product, part);
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
