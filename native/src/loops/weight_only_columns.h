// A few rows of A times weights that lie in the order of the sum.
//
// A vector has adjacent integers of a column: each lane has a word of them. So A is arranged such that a vector has the
// elements for all integers in one place of their words, and the lanes of a total are added when its column is done.
#pragma once

#include "block_weights.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kColumnsAtOnce = kLanes == 16 ? 4 : 2;  // whose totals fit into registers

// Columns of W from some row on, and what makes weights of their integers: a float for each block, as `stride` apart.
struct Columns {
  const char* words[kColumnsAtOnce];
  int64_t bytes;  // of a column
  const float *scale, *offset;
  int64_t stride;
};

// The block of the first word of a vector, and how many more blocks lie before each word.
struct Blocks {
  Ints places;
  int64_t first;
};

// Multiplies a vector of each column, from the byte `start` on, by its elements of A. Integers from the place `left` on are
// padding, which must not count.
template <int kBits, int kRows, bool kHasPadding>
JQUANT_INLINE void multiply_vectors(const float* a, const Columns& columns, int64_t start, const Blocks& blocks,
                                    int64_t left, Floats (&totals)[kRows][kColumnsAtOnce]) {
  constexpr int kIntegers = 32 / kBits;  // of a word
  Words words[kColumnsAtOnce];
  Floats scale[kColumnsAtOnce], offset[kColumnsAtOnce];
#pragma GCC unroll 4
  for (int i = 0; i < kColumnsAtOnce; ++i) {
    words[i] = bytes_of_row(columns.words[i], start, columns.bytes, 0);
    scale[i] = selected(columns.scale + i * columns.stride + blocks.first, blocks.places);
    offset[i] = selected(columns.offset + i * columns.stride + blocks.first, blocks.places);
  }
#pragma GCC unroll 16
  for (int place = 0; place < kIntegers; ++place) {
    Floats weights[kColumnsAtOnce];
#pragma GCC unroll 4
    for (int i = 0; i < kColumnsAtOnce; ++i) {
      const Floats integer = floats_of_low_bits<kBits>(words[i] >> static_cast<uint32_t>(place * kBits));
      weights[i] = (integer - offset[i]) * scale[i];
      if constexpr (kHasPadding) {
        for (int lane = 0; lane < kLanes; ++lane)
          if (lane * kIntegers + place >= left) weights[i][lane] = 0;
      }
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Floats element = load<Floats>(a + (place * kRows + row) * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kColumnsAtOnce; ++i) totals[row][i] = multiply_add(element, weights[i], totals[row][i]);
    }
  }
}

// The products of whole columns: a vector of each row and column, whose lanes are to be added.
template <int kBits, int kRows>
void multiply_columns(const float* a, const Columns& columns, int64_t depth, const Blocks* blocks, Floats* products,
                      int64_t stride) {
  constexpr int64_t kDepth = kLanes * 32 / kBits;  // of a vector
  Floats totals[kRows][kColumnsAtOnce] = {};
  int64_t k = 0, start = 0;
  for (; k + kDepth <= depth; k += kDepth, start += kBytes, ++blocks)
    multiply_vectors<kBits, kRows, false>(a + k * kRows, columns, start, *blocks, depth - k, totals);
  if (k < depth) multiply_vectors<kBits, kRows, true>(a + k * kRows, columns, start, *blocks, depth - k, totals);
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kColumnsAtOnce; ++i) products[row * stride + i] = totals[row][i];
}

typedef void (*MultiplyColumns)(const float*, const Columns&, int64_t, const Blocks*, Floats*, int64_t);

template <int kBits>
MultiplyColumns multiply_columns_of_rows(int64_t rows) {
  constexpr MultiplyColumns functions[kFewRows] = {multiply_columns<kBits, 1>, multiply_columns<kBits, 2>,
                                                   multiply_columns<kBits, 3>, multiply_columns<kBits, 4>};
  return functions[rows - 1];
}

// Arranges A: for each vector of words, the vectors of all rows for the first integers of the words, then for the second.
// Elements after the last are 0.
inline void arrange_rows(const WeightOnlyProduct& product, float* arranged) {
  const int64_t integers = 32 / product.bits, depth = kLanes * integers;
  for (int64_t k = 0; k < product.depth; k += depth, arranged += depth * product.rows) {
    for (int64_t row = 0; row < product.rows; ++row) {
      for (int64_t place = 0; place < integers; place += kLanes) {
        Words square[kLanes];
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t first = k + lane * integers + place;
          square[lane] = load_at_most<Words>(product.a + row * product.depth + first, product.depth - first);
        }
        transpose(square);
        for (int64_t i = 0; i < smaller(integers - place, kLanes); ++i)
          store(arranged + ((place + i) * product.rows + row) * kLanes, square[i]);
      }
    }
  }
}

// The floats that `multiply_by_columns` works in: arranged rows of A, blocks, and the scales and offsets of some columns.
struct ColumnScratch {
  int64_t vectors, arranged, blocks, stride;

  explicit ColumnScratch(const WeightOnlyProduct& product) {
    const int64_t depth = kLanes * 32 / product.bits;
    vectors = (product.depth + depth - 1) / depth;
    arranged = vectors * depth * product.rows;
    blocks = vectors * static_cast<int64_t>(sizeof(Blocks) / sizeof(float));
    stride = rounded_up(product.blocks, kLanes) + kLanes;  // `selected` reads a vector
  }

  int64_t size() const { return arranged + blocks + 2 * kColumnsAtOnce * stride; }
};

inline int64_t scratch_of_columns(const WeightOnlyProduct& product, const Part&) { return ColumnScratch(product).size(); }

inline void multiply_by_columns(const WeightOnlyProduct& product, const Part& part, float* scratch) {
  const ColumnScratch sizes(product);
  Blocks* blocks = reinterpret_cast<Blocks*>(scratch);
  float *a = scratch + sizes.blocks, *scale = a + sizes.arranged, *offset = scale + kColumnsAtOnce * sizes.stride;
  arrange_rows(product, a);
  const int64_t integers = 32 / product.bits;
  for (int64_t i = 0; i < sizes.vectors; ++i) {
    blocks[i].first = i * kLanes * integers / product.block_size;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t block = smaller((i * kLanes + lane) * integers / product.block_size, product.blocks - 1);
      blocks[i].places[lane] = static_cast<int32_t>(block - blocks[i].first);
    }
  }
  if (!product.zero_point)
    for (int64_t i = 0; i < kColumnsAtOnce; ++i) read_offsets(product, 0, sizes.stride, offset + i * sizes.stride);

  const MultiplyColumns multiply = product.bits == 2   ? multiply_columns_of_rows<2>(product.rows)
                                   : product.bits == 4 ? multiply_columns_of_rows<4>(product.rows)
                                                       : multiply_columns_of_rows<8>(product.rows);
  for (int64_t column = part.first_column; column < part.end_column; column += kLanes) {
    const int64_t count = smaller(kLanes, part.end_column - column);
    Floats products[kFewRows][kLanes] = {};
    for (int64_t i = 0; i < count; i += kColumnsAtOnce) {
      Columns columns{{}, column_bytes(product), scale, offset, sizes.stride};
      for (int64_t j = 0; j < kColumnsAtOnce; ++j) {
        const int64_t its_column = smaller(column + i + j, part.end_column - 1), index = its_column * product.blocks;
        columns.words[j] = static_cast<const char*>(product.weights) + its_column * columns.bytes;
        read_floats(product, product.scale, index, product.blocks, 0, scale + j * sizes.stride);
        if (product.zero_point) read_offsets(product, index, product.blocks, offset + j * sizes.stride);
      }
      multiply(a, columns, product.depth, blocks, &products[0][i], kLanes);
    }
    for (int64_t row = 0; row < product.rows; ++row) {
      const Floats sums = sums_of_lanes(products[row]);
      __builtin_memcpy(product.output + row * product.columns + column, &sums, count * sizeof(float));
    }
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
