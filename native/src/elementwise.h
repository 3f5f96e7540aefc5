// What sums and products of two arrays of quantized numbers compute, as the inner loops see them. The handler fills this in
// and checks every size; the loops rely on it.
//
// Subnormal numbers, be they scales or results of an operation, count as 0: so XLA sets the processor for its threads, and
// so its own loops have them. A quotient that is NaN becomes 0, whatever the zero point is.
#pragma once

#include <cstdint>

namespace jquant {

// An array of bytes: the integer x stands for fl((x - zero_point) * scale).
struct QuantizedBytes {
  float scale = 1;
  int32_t zero_point = 0;
  bool is_signed = false;
};

// sat(rne(fl(x / output.scale)) + output.zero_point), where x is
//   a sum      fl(fl((a - a.zero_point) * a.scale) + fl((b - b.zero_point) * b.scale))
//   a product  fl((a - a.zero_point) * (b - b.zero_point) * fl(a.scale * b.scale)): the product of integers is exact
struct Elementwise {
  bool is_product = false;
  QuantizedBytes a, b, output;
};

// A run of adjacent results, and what they are computed from: adjacent elements, or one element for all.
struct Elements {
  const uint8_t *a = nullptr, *b = nullptr;
  bool is_one_a = false, is_one_b = false;
  uint8_t* output = nullptr;
  int64_t count = 0;
};

}  // namespace jquant
