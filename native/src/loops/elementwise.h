// Sums and products of quantized numbers, element by element.
#pragma once

#include "../elementwise.h"
#include "epilogue.h"
#include "floats.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// Bytes in 32-bit integers.
template <class L, class Bytes>
JQUANT_INLINE typename L::Integer integers(Bytes bytes) {
  if constexpr (sizeof(Bytes) == 1) {
    return bytes;
  } else {
    return widened(bytes);
  }
}

// Adjacent elements, or copies of the one for all.
template <class Byte>
JQUANT_INLINE Row<Byte> row_of_bytes(const uint8_t* bytes, bool is_one, Byte (&copies)[kLanes]) {
  return row_of(Broadcast<Byte>{reinterpret_cast<const Byte*>(bytes), 0, is_one ? 0 : 1}, 0, 0, Byte{}, copies);
}

template <bool kIsProduct, class A, class B>
void combine(const Elementwise& operation, const Elements& elements) {
  const Elementwise o = operation;  // which no store changes
  A a_copies[kLanes];
  B b_copies[kLanes];
  const auto a = row_of_bytes(elements.a, elements.is_one_a, a_copies);
  const auto b = row_of_bytes(elements.b, elements.is_one_b, b_copies);
  const float a_scale = o.a.scale, b_scale = o.b.scale, scale = a_scale * b_scale, divisor = o.output.scale;
  const int32_t lowest = o.output.is_signed ? -128 : 0;
  const auto output = reinterpret_cast<int8_t*>(elements.output);
  for_columns(elements.count, [=](auto lane, int64_t index) {
    typedef decltype(lane) L;
    typedef typename L::Float Float;
    const auto x = integers<L>(a(lane, index)) - o.a.zero_point, y = integers<L>(b(lane, index)) - o.b.zero_point;
    Float value;
    if constexpr (kIsProduct) {
      value = converted<Float>(x * y) * scale;
    } else {
      value = converted<Float>(x) * a_scale + converted<Float>(y) * b_scale;
    }
    const Float quotient = value / divisor;
    store(output + index, converted<typename L::Byte>(nearest_integer<L>(quotient, o.output.zero_point, lowest)));
  });
}

template <bool kIsProduct>
void combine_signs(const Elementwise& operation, const Elements& elements) {
  if (operation.a.is_signed) {
    if (operation.b.is_signed) return combine<kIsProduct, int8_t, int8_t>(operation, elements);
    return combine<kIsProduct, int8_t, uint8_t>(operation, elements);
  }
  if (operation.b.is_signed) return combine<kIsProduct, uint8_t, int8_t>(operation, elements);
  return combine<kIsProduct, uint8_t, uint8_t>(operation, elements);
}

inline void combine_elements(const Elementwise& operation, const Elements& elements) {
  return operation.is_product ? combine_signs<true>(operation, elements) : combine_signs<false>(operation, elements);
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
