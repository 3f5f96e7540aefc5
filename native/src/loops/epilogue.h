// The epilogue, applied to a tile of sums while it is in the nearest cache.
//
// Each function is a template over a vector and the scalar that takes its place in the last columns, so that both compute
// the same. The compiler contracts no operations (-ffp-contract=off), so that each result is rounded by itself.
#pragma once

#include "../product.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// The types that correspond to a vector, or to a single element.
template <bool kIsVector>
struct Lane {
  typedef Ints Integer;
  typedef Words Word;
  typedef Floats Float;
  typedef SmallInts Byte;
  typedef Halves Half;
  static constexpr int kCount = kLanes;
};
template <>
struct Lane<false> {
  typedef int32_t Integer;
  typedef uint32_t Word;
  typedef float Float;
  typedef int8_t Byte;
  typedef uint16_t Half;
  static constexpr int kCount = 1;
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

// One row of a `Broadcast`, from which each column, or each vector of columns, is read.
template <class Element, class Vector>
struct Row {
  const Element* columns;  // null if all columns share `element`
  Element element;

  JQUANT_INLINE Row(const Broadcast<Element>& array, int64_t row)
      : columns(array.column_stride && array.data ? array.data + row * array.row_stride : nullptr),
        element(array.data && !array.column_stride ? array.data[row * array.row_stride] : Element{}) {}

  template <class L, class V>
  JQUANT_INLINE V at(int64_t column) const {
    return columns ? load<V>(columns + column) : V{} + element;
  }
};

struct RowOfEpilogue {
  Row<int32_t, Ints> terms[Epilogue::kMostTerms][Epilogue::kMostFactors];
  Row<int32_t, Ints> integer_bias;
  Row<float, Floats> row_scale, column_scale, bias;
  Row<int32_t, Ints> zero_point;

  JQUANT_INLINE RowOfEpilogue(const Epilogue& epilogue, int64_t row)
      : terms{{{epilogue.terms[0][0], row}, {epilogue.terms[0][1], row}},
              {{epilogue.terms[1][0], row}, {epilogue.terms[1][1], row}}},
        integer_bias(epilogue.integer_bias, row),
        row_scale(epilogue.row_scale, row),
        column_scale(epilogue.column_scale, row),
        bias(epilogue.bias, row),
        zero_point(epilogue.zero_point, row) {}
};

template <class L>
JQUANT_INLINE void store_floats(typename L::Float value, Type type, void* row, int64_t column) {
  if (type == Type::kFloat32) {
    store(static_cast<float*>(row) + column, value);
  } else if (type == Type::kBfloat16) {
    store(static_cast<uint16_t*>(row) + column, to_bfloat16<L>(value));
  } else {
    store(static_cast<uint16_t*>(row) + column, to_float16<L>(value));
  }
}

// sat(rne(x) + zero_point): x is limited before it is rounded, because the limits are integers; NaN becomes 0.
template <class L>
JQUANT_INLINE typename L::Integer nearest_integer(typename L::Float x, typename L::Integer zero_point, bool is_unsigned) {
  typedef typename L::Integer Integer;
  typedef typename L::Float Float;
  constexpr float kShift = 12582912;  // 1.5 * 2**23: the last bit of the sum has the value 1
  const int32_t lowest = is_unsigned ? 0 : -128;
  const Float low = converted<Float>(lowest - zero_point), high = converted<Float>(lowest + 255 - zero_point);
  x = select(x == x, x, converted<Float>(0 - zero_point));
  x = select(x > low, x, low);
  x = select(x < high, x, high);
  return bits_as<Integer>(x + kShift) - bits_as<int32_t>(kShift) + zero_point;
}

template <class L, bool kHasTerms, Epilogue::Scaling kScaling>
JQUANT_INLINE void apply_at(const Epilogue& epilogue, const RowOfEpilogue& arrays, const int32_t* sums, void* output,
                            int64_t column) {
  typedef typename L::Integer Integer;
  typedef typename L::Float Float;
  Integer sum = load<Integer>(sums);
  if constexpr (kHasTerms) {
    for (int i = 0; i < Epilogue::kMostTerms; ++i) {
      if (!epilogue.terms[i][0]) break;
      Integer term = arrays.terms[i][0].at<L, Integer>(column);
      if (epilogue.terms[i][1]) term *= arrays.terms[i][1].at<L, Integer>(column);
      sum -= term;
    }
    if (epilogue.integer_bias) sum += arrays.integer_bias.at<L, Integer>(column);
  }
  if constexpr (kScaling == Epilogue::Scaling::kNone) {
    store(static_cast<int32_t*>(output) + column, sum);
  } else if constexpr (kScaling == Epilogue::Scaling::kDequantize) {
    const Float multiplier = arrays.row_scale.at<L, Float>(column) * arrays.column_scale.at<L, Float>(column);
    Float value = converted<Float>(sum) * multiplier;
    if (epilogue.bias) value = value + arrays.bias.at<L, Float>(column);
    store_floats<L>(value, epilogue.output_type, output, column);
  } else {
    const Float value = converted<Float>(sum) * arrays.column_scale.at<L, Float>(column);
    const Integer zero_point = arrays.zero_point.at<L, Integer>(column);
    const Integer result = nearest_integer<L>(value, zero_point, epilogue.output_type == Type::kUint8);
    store(static_cast<int8_t*>(output) + column, converted<typename L::Byte>(result));
  }
}

constexpr int64_t size_of(Type type) {
  return type == Type::kInt8 || type == Type::kUint8 ? 1 : type == Type::kInt32 || type == Type::kFloat32 ? 4 : 2;
}

template <bool kHasTerms, Epilogue::Scaling kScaling>
void apply_to_tile(const Epilogue& epilogue, const int32_t* sums, int64_t stride, char* output, int64_t output_stride,
                   const Part& part) {
  for (int64_t row = part.first_row; row < part.end_row; ++row) {
    const RowOfEpilogue arrays(epilogue, row);
    char* output_row = output + row * output_stride;
    int64_t column = part.first_column;
    for (; column + kLanes <= part.end_column; column += kLanes)
      apply_at<Lane<true>, kHasTerms, kScaling>(epilogue, arrays, sums + (column - part.first_column), output_row, column);
    for (; column < part.end_column; ++column)
      apply_at<Lane<false>, kHasTerms, kScaling>(epilogue, arrays, sums + (column - part.first_column), output_row, column);
    sums += stride;
  }
}

// Applies the epilogue to the sums of `part`, whose rows are `stride` apart, and writes that part of the output.
JQUANT_INLINE void apply(const Epilogue& epilogue, const int32_t* sums, int64_t stride, void* output, int64_t columns,
                         const Part& part) {
  typedef Epilogue::Scaling Scaling;
  const bool has_terms = epilogue.terms[0][0] || epilogue.integer_bias;
  const auto function = epilogue.scaling == Scaling::kNone         ? has_terms ? apply_to_tile<true, Scaling::kNone>
                                                                               : apply_to_tile<false, Scaling::kNone>
                        : epilogue.scaling == Scaling::kDequantize ? has_terms ? apply_to_tile<true, Scaling::kDequantize>
                                                                               : apply_to_tile<false, Scaling::kDequantize>
                        : has_terms                                ? apply_to_tile<true, Scaling::kRequantize>
                                                                   : apply_to_tile<false, Scaling::kRequantize>;
  function(epilogue, sums, stride, static_cast<char*>(output), columns * size_of(epilogue.output_type), part);
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
