// The range of floats, and their quantization by a scale and a zero point.
#pragma once

#include "../dynamic_quantization.h"
#include "epilogue.h"
#include "floats.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

JQUANT_INLINE Ints larger(Ints a, Ints b) { return select(a > b, a, b); }

template <Type kType>
Extremes extremes_of(const void* x, int64_t first, int64_t end) {
  constexpr int kUnrolled = 4;
  Ints above[kUnrolled] = {}, below[kUnrolled] = {};
  const auto add = [&](int i, Floats floats) {
    const Ints magnitude = bits_as<Ints>(floats) & 0x7fffffff;
    above[i] = larger(above[i], ~(floats <= Floats{}) & magnitude);
    below[i] = larger(below[i], ~(floats >= Floats{}) & magnitude);
  };
  int64_t index = first;
  for (; index + kUnrolled * kLanes <= end; index += kUnrolled * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < kUnrolled; ++i) add(i, load_floats<kType>(x, index + i * kLanes, kLanes));
  }
  for (; index < end; index += kLanes) add(0, load_floats<kType>(x, index, end - index));  // and zeros
  for (int i = 1; i < kUnrolled; ++i) {
    above[0] = larger(above[0], above[i]);
    below[0] = larger(below[0], below[i]);
  }
  Extremes result;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (above[0][lane] > result.above) result.above = above[0][lane];
    if (below[0][lane] > result.below) result.below = below[0][lane];
  }
  return result;
}

template <Type kType>
void quantize_elements(const DynamicQuantization& quantization, int64_t first, int64_t end, float scale,
                       int32_t zero_point) {
  const Floats divisor = splat(scale);
  const auto quantized = [&](int64_t index, int64_t count) {
    const Floats quotient = load_floats<kType>(quantization.x, index, count) / divisor;
    return converted<SmallInts>(nearest_integer<Lane<true>>(quotient, zero_point, quantization.lowest));
  };
  int64_t index = first;
  for (; index + kLanes <= end; index += kLanes) store(quantization.output + index, quantized(index, kLanes));
  if (index < end) {
    const SmallInts last = quantized(index, end - index);
    __builtin_memcpy(quantization.output + index, &last, end - index);
  }
}

// Of the elements [first, end) of all slices.
inline Extremes find_extremes(const DynamicQuantization& quantization, int64_t first, int64_t end) {
  switch (quantization.type) {
    case Type::kFloat16:
      return extremes_of<Type::kFloat16>(quantization.x, first, end);
    case Type::kBfloat16:
      return extremes_of<Type::kBfloat16>(quantization.x, first, end);
    default:
      return extremes_of<Type::kFloat32>(quantization.x, first, end);
  }
}

inline void quantize(const DynamicQuantization& quantization, int64_t first, int64_t end, float scale, int32_t zero_point) {
  switch (quantization.type) {
    case Type::kFloat16:
      return quantize_elements<Type::kFloat16>(quantization, first, end, scale, zero_point);
    case Type::kBfloat16:
      return quantize_elements<Type::kBfloat16>(quantization, first, end, scale, zero_point);
    default:
      return quantize_elements<Type::kFloat32>(quantization, first, end, scale, zero_point);
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
