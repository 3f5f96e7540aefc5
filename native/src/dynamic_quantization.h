// What the quantization of slices by the ranges of their own values computes: its operands, as the inner loops see them. The
// handler fills these in and checks every size; the loops rely on it.
#pragma once

#include <cstdint>

#include "product.h"

namespace jquant {

// Floats to 8 bits, sat(rne(fl(x / scale)) + zero_point), of slices that follow each other.
struct DynamicQuantization {
  const void* x = nullptr;     // (slices, length)
  Type type = Type::kFloat32;  // of x: a type of floats
  uint8_t* output = nullptr;   // (slices, length)
  int64_t slices = 0, length = 0;
  int32_t lowest = 0;  // of the integers: 0 or -128
};

// The bits of the largest value above 0, and of the largest magnitude below: they have the order of the floats, with NaN,
// which is on both sides, above all.
struct Extremes {
  int32_t above = 0, below = 0;
};

}  // namespace jquant
