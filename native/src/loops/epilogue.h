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
template <>
struct VectorOf<int8_t> {
  typedef SmallInts Type;
};
template <>
struct VectorOf<uint8_t> {
  typedef SmallWords Type;
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

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

template <class To, class From>
JQUANT_INLINE To converted(From from) {
  if constexpr (sizeof(From) <= 4 && sizeof(To) <= 4) {
    return static_cast<To>(from);
  } else if constexpr (is_same<To, SmallInts> && is_same<From, Ints>) {
    return lowest_bytes(from);
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

// Calls `body(lane, column)` for vectors of columns that make up those below `count`, the last of which may have columns of
// the one before; or for every single column, if there is not a vector of them. What it writes must not be what it reads.
template <class Body>
JQUANT_INLINE void for_columns(int64_t count, Body body) {
  if (count < kLanes) {
    for (int64_t column = 0; column < count; ++column) body(Lane<false>{}, column);
    return;
  }
  for (int64_t column = 0; column + kLanes < count; column += kLanes) body(Lane<true>{}, column);
  body(Lane<true>{}, count - kLanes);
}

// A row of an array that broadcasts against the sums: its element for a column, or those for a vector of columns.
template <class Element>
struct Row {
  const Element* elements;
  int64_t step;  // 0 where all columns have the same element, of which `elements` are copies

  template <class L>
  JQUANT_INLINE typename L::template Of<Element> operator()(L, int64_t column) const {
    return load<typename L::template Of<Element>>(elements + column * step);
  }
};

constexpr float kNoBias = -0.0f;  // whose sum with any number is that number, as the sum of 0 and -0 is not

// A row from `first_column` on; `absent` everywhere if there is no array. `copies` lasts as long as the row is read.
template <class Element>
JQUANT_INLINE Row<Element> row_of(const Broadcast<Element>& array, int64_t row, int64_t first_column, Element absent,
                                  Element (&copies)[kLanes]) {
  const Element* elements = array ? array.data + row * array.row_stride : &absent;
  if (array.column_stride) return {elements + first_column, 1};
  for (Element& copy : copies) copy = *elements;
  return {copies, 0};
}

constexpr int64_t size_of(Type type) {
  return type == Type::kInt8 || type == Type::kUint8 ? 1 : type == Type::kInt32 || type == Type::kFloat32 ? 4 : 2;
}

// Writes the float32 `value(lane, column)` of each column, rounded to a type of floats.
template <class Value>
JQUANT_INLINE void write_floats(Type type, int64_t columns, void* output, Value value) {
  const auto floats = static_cast<float*>(output);
  const auto halves = static_cast<uint16_t*>(output);
  if (type == Type::kFloat32) {
    for_columns(columns, [=](auto lane, int64_t column) { store(floats + column, value(lane, column)); });
  } else if (type == Type::kBfloat16) {
    for_columns(columns, [=](auto lane, int64_t column) {
      store(halves + column, to_bfloat16<decltype(lane)>(value(lane, column)));
    });
  } else {
    for_columns(columns,
                [=](auto lane, int64_t column) { store(halves + column, to_float16<decltype(lane)>(value(lane, column))); });
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
  int32_t rows[kMost][kCopiedRows];  // of the tile
  const int32_t* columns[kMost];     // from the first of the tile on
};

// The row of a tile whose epilogue is being applied.
struct TileRow {
  const int32_t* sums;
  int64_t index;  // in the output
  int64_t first_column, columns;
  void* output;
};

template <class Sum>
JQUANT_INLINE void requantize(const Epilogue& epilogue, const TileRow& row, Sum sum) {
  const Broadcast<int32_t>& zero_points = epilogue.zero_point;
  const int32_t zero_point = zero_points ? zero_points.data[row.index * zero_points.row_stride] : 0;
  const int32_t lowest = epilogue.output_type == Type::kUint8 ? 0 : -128;
  float copies[kLanes];
  const auto multiplier = row_of(epilogue.column_scale, row.index, row.first_column, 1.0f, copies);
  const auto output = static_cast<int8_t*>(row.output);
  for_columns(row.columns, [=](auto lane, int64_t column) {
    typedef decltype(lane) L;
    const auto value = converted<typename L::Float>(sum(lane, column)) * multiplier(lane, column);
    store(output + column, converted<typename L::Byte>(nearest_integer<L>(value, zero_point, lowest)));
  });
}

template <class Sum>
JQUANT_INLINE void dequantize(const Epilogue& epilogue, const TileRow& row, Sum sum) {
  float scales[kLanes], biases[kLanes];
  const float row_scale = epilogue.row_scale.data[row.index * epilogue.row_scale.row_stride];
  const auto column_scale = row_of(epilogue.column_scale, row.index, row.first_column, 1.0f, scales);
  const auto bias = row_of(epilogue.bias, row.index, row.first_column, kNoBias, biases);
  write_floats(epilogue.output_type, row.columns, row.output, [=](auto lane, int64_t column) {
    const auto multiplier = column_scale(lane, column) * row_scale;
    return converted<typename decltype(lane)::Float>(sum(lane, column)) * multiplier + bias(lane, column);
  });
}

// The epilogue of a row with `kTerms` terms, of which this is row `number` of the tile: in one pass.
template <int kTerms>
void write_row(const Epilogue& epilogue, const Terms& terms, int64_t number, const TileRow& row) {
  int32_t copies[kLanes], factors[Terms::kMost] = {};
  const int32_t* columns[Terms::kMost] = {};
  for (int i = 0; i < kTerms; ++i) {
    factors[i] = terms.rows[i][number];
    columns[i] = terms.columns[i];
  }
  const int32_t* const sums = row.sums;
  const auto bias = row_of(epilogue.integer_bias, row.index, row.first_column, 0, copies);
  const auto sum = [=](auto lane, int64_t column) {
    typedef typename decltype(lane)::Integer Integer;
    Integer result = load<Integer>(sums + column) + bias(lane, column);
    for (int i = 0; i < kTerms; ++i) result -= load<Integer>(columns[i] + column) * factors[i];
    return result;
  };
  switch (epilogue.scaling) {
    case Epilogue::Scaling::kNone: {
      const auto output = static_cast<int32_t*>(row.output);
      for_columns(row.columns, [=](auto lane, int64_t column) { store(output + column, sum(lane, column)); });
      break;
    }
    case Epilogue::Scaling::kDequantize:
      dequantize(epilogue, row, sum);
      break;
    case Epilogue::Scaling::kRequantize:
      requantize(epilogue, row, sum);
      break;
  }
}

// Subtracts the terms from the sums of a tile, whose rows are `stride` apart, applies the epilogue, and writes that part of
// the output, whose rows are `output_stride` elements apart.
inline void apply(const Epilogue& epilogue, const Terms& terms, const int32_t* sums, int64_t stride, void* output,
                  int64_t output_stride, const Part& tile) {
  constexpr decltype(&write_row<0>) functions[] = {write_row<0>, write_row<1>, write_row<2>};
  const int64_t count = tile.end_column - tile.first_column, size = size_of(epilogue.output_type);
  for (int64_t row = tile.first_row; row < tile.end_row; ++row, sums += stride) {
    char* output_row = static_cast<char*>(output) + (row * output_stride + tile.first_column) * size;
    functions[terms.count](epilogue, terms, row - tile.first_row, {sums, row, tile.first_column, count, output_row});
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
