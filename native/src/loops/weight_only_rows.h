// A few rows of A times weights that lie in the order of rows.
//
// Weights are read along their rows, a run of rows of a block at a time, and each integer is multiplied by its element of
// every row of A while it is in a register. The totals of all columns stay in the nearest cache.
#pragma once

#include "block_weights.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int64_t kRunRows = 32;  // rows of W, at most, of a run

// Vectors of columns that are multiplied at once, whose sums fit into registers for all rows of A. With AVX-512, they fill
// lines of the caches, whose sets the rows of a run often share.
constexpr int kRunVectors = kLanes == 8 ? 2 : 4;
constexpr int64_t kRunColumns = kRunVectors * kLanes;

// Multiplies a row of a group of columns by its `kRows` elements of A. Without a minimum, the products are still to be
// scaled.
template <class Source, int kRows, bool kHasMinimum>
JQUANT_INLINE void multiply_row(const float* a, const char* vectors, int64_t stride, int64_t row,
                                const Factors<kHasMinimum> (&factors)[kRunVectors], Floats (&sums)[kRows][kRunVectors]) {
  Floats weights[kRunVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kRunVectors; ++i) {
    const Floats integer = Source::row(vectors + i * Source::kBytesOfVector, stride, row);
    weights[i] = kHasMinimum ? factors[i].weight(integer) : integer - factors[i].offset;
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
    const Floats element = splat(a[row * kRows + i]);
#pragma GCC unroll 4
    for (int j = 0; j < kRunVectors; ++j) sums[i][j] = multiply_add(element, weights[j], sums[i][j]);
  }
}

// Where the integers of a run are: those of each row are adjacent, and the rows `stride` bytes apart.
struct Strip {
  const char* vectors;
  int64_t stride, groups;
};

// Adds the products of a run of `row_count` rows of W to the totals of each row of A and each column. The elements of A lie
// as `pack_rows` packs them.
//
// Without a minimum, the sum of a run is multiplied by the scale. With one it cannot be: where the terms of a weight nearly
// cancel, the sums of these terms would not.
template <class Source, int kRows, bool kHasMinimum>
void add_run(const float* a, int64_t row_count, const Strip& strip, const Scaling& scaling, float* totals,
             int64_t total_stride) {
  constexpr int kStep = 4;
  for (int64_t group = 0; group < strip.groups; ++group) {
    Factors<kHasMinimum> factors[kRunVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kRunVectors; ++i) factors[i] = {scaling, group * kRunColumns + i * kLanes};
    const char* vectors = strip.vectors + group * kRunVectors * Source::kBytesOfVector;
    const float* elements = a;
    Floats sums[kRows][kRunVectors] = {};
    int64_t left = row_count;
    // The next run is that of the same columns, some rows below.
    for (int64_t i = row_count / Source::kRows; i < 2 * row_count / Source::kRows; ++i)
      prefetch(vectors + i * strip.stride, kRunVectors * Source::kBytesOfVector);
    for (; left >= kStep; left -= kStep) {
#pragma GCC unroll 4
      for (int row = 0; row < kStep; ++row) multiply_row<Source>(elements, vectors, strip.stride, row, factors, sums);
      vectors += kStep / Source::kRows * strip.stride;
      elements += kStep * kRows;
    }
    for (int64_t row = 0; row < left; ++row) multiply_row<Source>(elements, vectors, strip.stride, row, factors, sums);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int i = 0; i < kRunVectors; ++i) {
        float* total = totals + row * total_stride + group * kRunColumns + i * kLanes;
        const Floats before = load<Floats>(total);
        store(total, kHasMinimum ? before + sums[row][i] : multiply_add(sums[row][i], factors[i].scale, before));
      }
    }
  }
}

typedef void (*AddRun)(const float*, int64_t, const Strip&, const Scaling&, float*, int64_t);

template <class Source, bool kHasMinimum>
AddRun add_run_of_rows(int64_t rows) {
  constexpr AddRun functions[kFewRows] = {add_run<Source, 1, kHasMinimum>, add_run<Source, 2, kHasMinimum>,
                                          add_run<Source, 3, kHasMinimum>, add_run<Source, 4, kHasMinimum>};
  return functions[rows - 1];
}

inline AddRun add_run_for(const WeightOnlyProduct& product) {
  typedef Integers<Halves, 4> Nibbles;
  typedef Integers<SmallInts, 8> Bytes;
  const int64_t rows = product.rows;
  if (product.layout == WeightOnlyProduct::Layout::kWords)
    return product.minimum ? add_run_of_rows<Nibbles, true>(rows) : add_run_of_rows<Nibbles, false>(rows);
  return product.minimum ? add_run_of_rows<Bytes, true>(rows) : add_run_of_rows<Bytes, false>(rows);
}

// The floats that `multiply_by_rows` works in: of each column of the part, and A.
inline int64_t scratch_of_rows(const WeightOnlyProduct& product, const Part& part) {
  const int64_t columns = rounded_up(part.end_column - part.first_column, kRunColumns);
  return (3 + product.rows) * columns + packed_size(product.rows, product.depth);
}

inline void multiply_by_rows(const WeightOnlyProduct& product, const Part& part, float* scratch) {
  const AddRun add = add_run_for(product);
  const int64_t columns = part.end_column - part.first_column, stride = rounded_up(columns, kRunColumns);
  float *scale = scratch, *offset = scale + stride, *minimum = offset + stride, *totals = minimum + stride;
  float* packed = totals + product.rows * stride;
  if (product.rows > 1) pack_rows(product.a, product.depth, product.rows, product.depth, packed);
  const float* a = product.rows > 1 ? packed : product.a;
  __builtin_memset(totals, 0, product.rows * stride * sizeof(float));

  const int64_t element_bytes = bytes_of_element(product), bytes_of_group = kRunColumns * element_bytes;
  const int64_t rows_of_vector = 8 * element_bytes / product.bits, row_bytes = product.columns * element_bytes;
  const int64_t whole = columns / kRunColumns, rest = columns % kRunColumns;  // which are copied
  for (int64_t block = 0; block < product.blocks; ++block) {
    const int64_t index = block * product.columns + part.first_column;
    read_floats(product, product.scale, index, columns, 0, scale);
    if (product.zero_point || block == 0) read_offsets(product, index, columns, offset);
    if (product.minimum) read_floats(product, product.minimum, index, columns, 0, minimum);
    const int64_t end = smaller((block + 1) * product.block_size, product.depth);
    for (int64_t row = block * product.block_size; row < end; row += kRunRows) {
      const int64_t row_count = smaller(kRunRows, end - row);
      const char* vectors =
          static_cast<const char*>(product.weights) + row / rows_of_vector * row_bytes + part.first_column * element_bytes;
      add(a + row * product.rows, row_count, {vectors, row_bytes, whole}, {scale, offset, minimum}, totals, stride);
      if (rest > 0) {
        char copy[kRunRows * kRunColumns];
        const int64_t column = whole * kRunColumns, count = (row_count + rows_of_vector - 1) / rows_of_vector;
        copy_vectors(vectors + column * element_bytes, row_bytes, count, rest * element_bytes, bytes_of_group, copy);
        add(a + row * product.rows, row_count, {copy, bytes_of_group, 1},
            {scale + column, offset + column, minimum + column}, totals + column, stride);
      }
    }
  }
  for (int64_t row = 0; row < product.rows; ++row)
    __builtin_memcpy(product.output + row * product.columns + part.first_column, totals + row * stride,
                     columns * sizeof(float));
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
