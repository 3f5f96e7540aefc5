// Weights of few bits, and how they become floats: integers of adjacent columns in the lanes of a vector, and what their
// blocks have in common.
#pragma once

#include "../weight_only.h"
#include "floats.h"
#include "product.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kFewRows = 4;  // of A, for which weights stay in registers

// Integers of adjacent columns: an element of a vector holds those of one or more rows of a column.
template <class Vector, int kBits>
struct Integers {
  static constexpr int kBytesOfVector = sizeof(Vector);
  static constexpr int kRows = 8 * kBytesOfVector / kLanes / kBits;

  // A row, counted from the first one of the vector at `vectors`; the vectors of the rows below are `stride` bytes apart.
  JQUANT_INLINE static Floats row(const char* vectors, int64_t stride, int64_t row) {
    const Vector vector = load<Vector>(vectors + row / kRows * stride);
    if constexpr (kRows == 1) {
      return from_integers(vector);
    } else {
      return floats_of_low_bits<kBits>(widened(vector) >> static_cast<uint32_t>(row % kRows * kBits));
    }
  }
};

// What makes weights of the integers of a block, for each of some columns.
struct Scaling {
  const float *scale, *offset, *minimum;
};

// The same for a vector of columns.
template <bool kHasMinimum>
struct Factors {
  Floats scale, offset, minimum;

  Factors() = default;
  JQUANT_INLINE Factors(const Scaling& scaling, int64_t column)
      : scale(load<Floats>(scaling.scale + column)), offset(load<Floats>(scaling.offset + column)), minimum{} {
    if constexpr (kHasMinimum) minimum = load<Floats>(scaling.minimum + column);
  }

  JQUANT_INLINE Floats weight(Floats integer) const {
    const Floats product = (integer - offset) * scale;
    return kHasMinimum ? product + minimum : product;
  }
};

template <Type kType>
void read_floats_as(const void* data, int64_t index, int64_t count, int64_t size, float added, float* target) {
  for (int64_t i = 0; i < count; i += kLanes)
    store(target + i, load_floats<kType>(data, index + i, size - index - i) + added);
}

// Writes `count` elements of an array from `index` on, plus `added`, as floats; and others, up to whole vectors.
inline void read_floats(const WeightOnlyProduct& product, const ByBlock& array, int64_t index, int64_t count, float added,
                        float* target) {
  typedef void (*Read)(const void*, int64_t, int64_t, int64_t, float, float*);
  const Read read = array.type == Type::kInt8       ? read_floats_as<Type::kInt8>
                    : array.type == Type::kUint8    ? read_floats_as<Type::kUint8>
                    : array.type == Type::kFloat16  ? read_floats_as<Type::kFloat16>
                    : array.type == Type::kBfloat16 ? read_floats_as<Type::kBfloat16>
                                                    : read_floats_as<Type::kFloat32>;
  read(array.data, index, count, product.blocks * product.columns, added, target);
}

// What is subtracted from `count` stored integers.
inline void read_offsets(const WeightOnlyProduct& product, int64_t index, int64_t count, float* target) {
  if (product.zero_point) return read_floats(product, product.zero_point, index, count, product.offset, target);
  for (int64_t i = 0; i < count; i += kLanes) store(target + i, splat(product.offset));
}

// The bytes that hold the integers of a column in one or more rows.
inline int64_t bytes_of_element(const WeightOnlyProduct& product) {
  switch (product.layout) {
    case WeightOnlyProduct::Layout::kWords:
      return 2;
    case WeightOnlyProduct::Layout::kBytes:
      return 1;
    default:
      return kWord;
  }
}

// The bytes of a column of weights that lie in the order of the sum.
inline int64_t column_bytes(const WeightOnlyProduct& product) {
  return product.blocks * product.block_size * product.bits / 8;
}

// Copies `count` rows of up to a vector of columns, of `bytes` each, which become `bytes_of_vector`.
inline void copy_vectors(const char* source, int64_t stride, int64_t count, int64_t bytes, int64_t bytes_of_vector,
                         char* target) {
  for (int64_t i = 0; i < count; ++i) {
    __builtin_memset(target, 0, bytes_of_vector);
    __builtin_memcpy(target, source, bytes);
    source += stride;
    target += bytes_of_vector;
  }
}

// Packs up to `kTileRows` rows of A, as `pack_words_of_rows` does.
inline void pack_rows(const float* a, int64_t stride, int rows, int64_t depth, float* packed) {
  pack_words_of_rows(rows, depth, reinterpret_cast<char*>(packed), [=](int row, int64_t k) {
    return load_at_most<Words>(a + row * stride + k, smaller(kLanes, depth - k));
  });
}

// The floats that packed rows take.
inline int64_t packed_size(int64_t rows, int64_t depth) { return rounded_up(rows * depth + kRowVectors * kLanes, kLanes); }

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
