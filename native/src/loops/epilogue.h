// The epilogue, applied to a tile of sums while it is in the nearest cache.
//
// Each function is a template over a vector and the scalar that takes its place in the last columns, so that both compute
// the same. The compiler contracts no operations (-ffp-contract=off), so that each result is rounded by itself.
#pragma once

#include "../product.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

template <class Element>
struct VectorOf;
template <>
struct VectorOf<int32_t> {
  typedef Ints Type;
};
template <>
struct VectorOf<float> {
  typedef Floats Type;
};

// The types that correspond to a vector, or to a single element.
template <bool kIsVector>
struct Lane {
  template <class Element>
  using Of = typename VectorOf<Element>::Type;
  typedef Ints Integer;
  typedef Words Word;
  typedef Floats Float;
  typedef SmallInts Byte;
  typedef Halves Half;
};
template <>
struct Lane<false> {
  template <class Element>
  using Of = Element;
  typedef int32_t Integer;
  typedef uint32_t Word;
  typedef float Float;
  typedef int8_t Byte;
  typedef uint16_t Half;
};

template <class To, class From>
JQUANT_INLINE To converted(From from) {
  if constexpr (sizeof(From) <= 4 && sizeof(To) <= 4) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, To);
  }
}

// `a` where the mask has all bits set, `b` where it has none.
template <class Vector, class Mask>
JQUANT_INLINE Vector select(Mask mask, Vector a, Vector b) {
  if constexpr (sizeof(Vector) <= 4) {
    return mask ? a : b;
  } else {
    return (Vector)(((Mask)a & mask) | ((Mask)b & ~mask));
  }
}

// Float32 to float16 or bfloat16, to nearest, ties to even; in integers, because instruction sets differ.
template <class L>
JQUANT_INLINE typename L::Half to_bfloat16(typename L::Float x) {
  typedef typename L::Word Word;
  const Word bits = bits_as<Word>(x), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto is_nan = (bits & 0x7fffffff) > (Word{} + 0x7f800000);
  return converted<typename L::Half>(select(is_nan, (bits >> 16) | 0x40, rounded));
}

template <class L>
JQUANT_INLINE typename L::Half to_float16(typename L::Float x) {
  typedef typename L::Word Word;
  typedef typename L::Float Float;
  constexpr uint32_t kInfinity = 0x7f800000, kSmallestNormal = 113 << 23, kBeyond = 143 << 23;
  constexpr float kHalf = 0.5f;  // its last bit is that of the subnormal numbers
  const Word bits = bits_as<Word>(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  const Word normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Word subnormal = bits_as<Word>(bits_as<Float>(magnitude) + kHalf) - bits_as<uint32_t>(kHalf);
  Word result = select(magnitude < (Word{} + kSmallestNormal), subnormal, normal);
  result = select(magnitude >= (Word{} + kBeyond), Word{} + 0x7c00, result);
  result = select(magnitude > (Word{} + kInfinity), Word{} + 0x7e00, result);
  return converted<typename L::Half>(result | sign);
}

// Calls `body(lane, column)` for every vector of columns below `count`, and for every single column after the last of them.
template <class Body>
JQUANT_INLINE void for_columns(int64_t count, Body body) {
  int64_t column = 0;
  for (; column + kLanes <= count; column += kLanes) body(Lane<true>{}, column);
  for (; column < count; ++column) body(Lane<false>{}, column);
}

// Calls `body(read)`, where `read(lane, column)` is an element of a row of an array, or those of a vector of columns.
template <class Element, class Body>
JQUANT_INLINE void with_row(const Broadcast<Element>& array, int64_t row, int64_t first_column, Body body) {
  const Element* elements = array.data + row * array.row_stride;
  if (array.column_stride) {
    elements += first_column;
    body([=](auto lane, int64_t column) {
      typedef decltype(lane) L;
      typedef typename L::template Of<Element> Vector;
      return load<Vector>(elements + column);
    });
  } else {
    const Element element = *elements;
    body([=](auto lane, int64_t) {
      typedef decltype(lane) L;
      typedef typename L::template Of<Element> Vector;
      return element - Vector{};  // which is -0 for -0, as the sum with 0 is not
    });
  }
}

// sat(rne(x) + zero_point): x is limited before it is rounded, because the limits are integers; NaN becomes 0.
template <class L>
JQUANT_INLINE typename L::Integer nearest_integer(typename L::Float x, int32_t zero_point, int32_t lowest) {
  typedef typename L::Integer Integer;
  typedef typename L::Float Float;
  constexpr float kShift = 12582912;  // 1.5 * 2**23: the last bit of the sum has the value 1
  const Float low = Float{} + static_cast<float>(lowest - zero_point);
  const Float high = Float{} + static_cast<float>(lowest + 255 - zero_point);
  x = select(x == x, x, Float{} + static_cast<float>(-zero_point));
  x = select(x > low, x, low);
  x = select(x < high, x, high);
  return bits_as<Integer>(x + kShift) + (zero_point - bits_as<int32_t>(kShift));
}

// Products of an integer for each row and one for each column, which are subtracted from the sums of a tile.
struct Terms {
  static constexpr int kMost = 2;

  int count = 0;
  int32_t rows[kMost][kTileRows];  // of the tile
  const int32_t* columns[kMost];   // from the first of the tile on
};

// One row of a tile, a step at a time: each is a short loop over numbers in the nearest cache.
JQUANT_INLINE void subtract(int32_t* sums, int64_t count, const int32_t* columns, int32_t row) {
  for_columns(count, [=](auto lane, int64_t column) {
    typedef typename decltype(lane)::Integer Integer;
    store(sums + column, load<Integer>(sums + column) - load<Integer>(columns + column) * row);
  });
}

JQUANT_INLINE void add_integer_bias(const Epilogue& epilogue, int32_t* sums, int64_t row, int64_t first_column,
                                    int64_t count) {
  with_row(epilogue.integer_bias, row, first_column, [=](auto bias) {
    for_columns(count, [=](auto lane, int64_t column) {
      store(sums + column, load<typename decltype(lane)::Integer>(sums + column) + bias(lane, column));
    });
  });
}

JQUANT_INLINE void requantize(const Epilogue& epilogue, const int32_t* sums, int64_t row, int64_t first_column,
                              int64_t count, void* output) {
  const Broadcast<int32_t>& zero_points = epilogue.zero_point;
  const int32_t zero_point = zero_points ? zero_points.data[row * zero_points.row_stride] : 0;
  const int32_t lowest = epilogue.output_type == Type::kUint8 ? 0 : -128;
  with_row(epilogue.column_scale, row, first_column, [=](auto multiplier) {
    for_columns(count, [=](auto lane, int64_t column) {
      typedef decltype(lane) L;
      const auto value = converted<typename L::Float>(load<typename L::Integer>(sums + column)) * multiplier(lane, column);
      store(static_cast<int8_t*>(output) + column,
            converted<typename L::Byte>(nearest_integer<L>(value, zero_point, lowest)));
    });
  });
}

// Writes float32 as numbers of 16 bits.
JQUANT_INLINE void narrow(const float* values, int64_t count, Type type, void* output) {
  const bool is_bfloat16 = type == Type::kBfloat16;
  for_columns(count, [=](auto lane, int64_t column) {
    typedef decltype(lane) L;
    const auto value = load<typename L::Float>(values + column);
    store(static_cast<uint16_t*>(output) + column, is_bfloat16 ? to_bfloat16<L>(value) : to_float16<L>(value));
  });
}

JQUANT_INLINE void dequantize(const Epilogue& epilogue, int32_t* sums, int64_t row, int64_t first_column, int64_t count,
                              void* output) {
  const bool is_float32 = epilogue.output_type == Type::kFloat32;
  float* const values = reinterpret_cast<float*>(sums);
  float* const scaled = is_float32 && !epilogue.bias ? static_cast<float*>(output) : values;
  const float row_scale = epilogue.row_scale.data[row * epilogue.row_scale.row_stride];
  with_row(epilogue.column_scale, row, first_column, [=](auto column_scale) {
    for_columns(count, [=](auto lane, int64_t column) {
      typedef decltype(lane) L;
      const auto multiplier = column_scale(lane, column) * row_scale;
      store(scaled + column, converted<typename L::Float>(load<typename L::Integer>(sums + column)) * multiplier);
    });
  });
  if (epilogue.bias) {
    float* const shifted = is_float32 ? static_cast<float*>(output) : values;
    with_row(epilogue.bias, row, first_column, [=](auto bias) {
      for_columns(count, [=](auto lane, int64_t column) {
        store(shifted + column, load<typename decltype(lane)::Float>(values + column) + bias(lane, column));
      });
    });
  }
  if (!is_float32) narrow(values, count, epilogue.output_type, output);
}

constexpr int64_t size_of(Type type) {
  return type == Type::kInt8 || type == Type::kUint8 ? 1 : type == Type::kInt32 || type == Type::kFloat32 ? 4 : 2;
}

// Subtracts the terms from the sums of a tile, whose rows are `stride` apart, applies the epilogue, and writes that part of
// the output, which has `columns` columns. The sums are overwritten.
inline void apply(const Epilogue& epilogue, const Terms& terms, int32_t* sums, int64_t stride, void* output, int64_t columns,
                  const Part& tile) {
  const int64_t count = tile.end_column - tile.first_column, size = size_of(epilogue.output_type);
  for (int64_t row = tile.first_row; row < tile.end_row; ++row, sums += stride) {
    char* output_row = static_cast<char*>(output) + (row * columns + tile.first_column) * size;
    for (int i = 0; i < terms.count; ++i) subtract(sums, count, terms.columns[i], terms.rows[i][row - tile.first_row]);
    if (epilogue.integer_bias) add_integer_bias(epilogue, sums, row, tile.first_column, count);
    if (epilogue.scaling == Epilogue::Scaling::kNone) __builtin_memcpy(output_row, sums, count * size);
    if (epilogue.scaling == Epilogue::Scaling::kRequantize)
      requantize(epilogue, sums, row, tile.first_column, count, output_row);
    if (epilogue.scaling == Epilogue::Scaling::kDequantize)
      dequantize(epilogue, sums, row, tile.first_column, count, output_row);
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
