// Many rows of A times weights of few bits.
//
// The weights of a tile's columns, and of some of their rows, are converted to floats in the nearest cache, and multiplied
// by all rows of A of the part.
#pragma once

#include "block_weights.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int64_t kConvertedRows = 256;
// Between copied rows of A, of as many elements: another cache line, so that the rows of a tile lie in different sets.
constexpr int64_t kRowStride = kConvertedRows + 16;

// Converts `count` rows of integers, of one block and of a vector of columns. The weights of a row are `kTileColumns` apart
// from those of the row before.
template <class Source, bool kHasMinimum>
void convert(const char* vectors, int64_t stride, int64_t count, const Scaling& scaling, float* weights) {
  const Factors<kHasMinimum> factors(scaling, 0);
  for (; count >= Source::kRows; count -= Source::kRows) {
#pragma GCC unroll 16
    for (int row = 0; row < Source::kRows; ++row)
      store(weights + row * kTileColumns, factors.weight(Source::row(vectors, stride, row)));
    vectors += stride;
    weights += Source::kRows * kTileColumns;
  }
  for (int64_t row = 0; row < count; ++row)
    store(weights + row * kTileColumns, factors.weight(Source::row(vectors, stride, row)));
}

typedef void (*Convert)(const char*, int64_t, int64_t, const Scaling&, float*);

inline Convert converter(const WeightOnlyProduct& product) {
  typedef Integers<Halves, 4> Nibbles;
  typedef Integers<SmallInts, 8> Bytes;
  switch (product.layout) {
    case WeightOnlyProduct::Layout::kWords:
      return product.minimum ? convert<Nibbles, true> : convert<Nibbles, false>;
    case WeightOnlyProduct::Layout::kBytes:
      return product.minimum ? convert<Bytes, true> : convert<Bytes, false>;
    default:
      return product.bits == 2   ? convert<Integers<Words, 2>, false>
             : product.bits == 4 ? convert<Integers<Words, 4>, false>
                                 : convert<Integers<Words, 8>, false>;
  }
}

// The memory for what weights are made of: the arrays of the blocks that a conversion touches, and copies of integers.
struct ConversionMemory {
  int64_t blocks;
  float *scale, *offset, *minimum, *by_column;
  char* integers;

  ConversionMemory(const WeightOnlyProduct& product, float* scratch)
      : blocks(rounded_up(smaller(kConvertedRows / product.block_size + 2, product.blocks), kLanes)),
        scale(scratch),
        offset(scale + blocks * kLanes),
        minimum(offset + blocks * kLanes),
        by_column(minimum + blocks * kLanes),
        integers(reinterpret_cast<char*>(by_column + blocks * kLanes)) {}

  // In floats. `pack_panel` writes whole squares of words, each of which has at least four integers.
  int64_t size() const { return 4 * blocks * kLanes + rounded_up(kConvertedRows / 4, kLanes) * kLanes; }
};

// Reads an array by block, a vector of columns for each of `count` blocks from `first` on.
inline void read_blocks(const WeightOnlyProduct& product, const ByBlock& array, float added, int64_t column, int64_t columns,
                        int64_t first, int64_t count, float* by_column, float* target) {
  if (!product.is_depth_minor()) {
    for (int64_t i = 0; i < count; ++i)
      read_floats(product, array, (first + i) * product.columns + column, columns, added, target + i * kLanes);
    return;
  }
  const int64_t stride = rounded_up(count, kLanes);
  for (int64_t i = 0; i < kLanes; ++i) {
    const int64_t index = (column + smaller(i, columns - 1)) * product.blocks + first;
    read_floats(product, array, index, count, added, by_column + i * stride);
  }
  for (int64_t block = 0; block < count; block += kLanes) {
    Words square[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) square[i] = load<Words>(by_column + i * stride + block);
    transpose(square);
    for (int64_t i = 0; i < kLanes; ++i) store(target + (block + i) * kLanes, square[i]);
  }
}

// Converts the rows [first, end) of up to a vector of columns.
inline void convert_columns(const WeightOnlyProduct& product, Convert convert, int64_t column, int64_t columns,
                            int64_t first, int64_t end, const ConversionMemory& memory, float* weights) {
  const int64_t first_block = first / product.block_size, end_block = (end + product.block_size - 1) / product.block_size;
  const auto read = [&](const ByBlock& array, float added, float* target) {
    read_blocks(product, array, added, column, columns, first_block, end_block - first_block, memory.by_column, target);
  };
  read(product.scale, 0, memory.scale);
  if (product.zero_point) read(product.zero_point, product.offset, memory.offset);
  if (product.minimum) read(product.minimum, 0, memory.minimum);

  const int64_t element_bytes = bytes_of_element(product), rows_of_vector = 8 * element_bytes / product.bits;
  int64_t stride = kLanes * element_bytes;
  const char* vectors = memory.integers;
  const char* source = static_cast<const char*>(product.weights);
  if (product.is_depth_minor()) {
    const int64_t bytes = (end - first + rows_of_vector - 1) / rows_of_vector * kWord,
                  bytes_of_column = column_bytes(product);
    source += column * bytes_of_column + first * product.bits / 8;
    for (int64_t i = kLanes; i < 2 * kLanes; ++i) prefetch(source + i * bytes_of_column, bytes);
    pack_panel(source, bytes_of_column, columns, bytes, 0, memory.integers);
  } else {
    source += (first / rows_of_vector * product.columns + column) * element_bytes;
    if (columns < kLanes) {
      copy_vectors(source, product.columns * element_bytes, (end - first + rows_of_vector - 1) / rows_of_vector,
                   columns * element_bytes, stride, memory.integers);
    } else {
      vectors = source;
      stride = product.columns * element_bytes;
    }
  }
  for (int64_t block = first_block, row = first; block < end_block; ++block) {
    const int64_t place = (block - first_block) * kLanes, next = smaller((block + 1) * product.block_size, end);
    convert(vectors + (row - first) / rows_of_vector * stride, stride, next - row,
            {memory.scale + place, memory.offset + place, memory.minimum + place}, weights + (row - first) * kTileColumns);
    row = next;
  }
}

// Copies rows of A, of `depth` elements each.
inline void copy_rows(const float* a, int64_t stride, int64_t rows, int64_t depth, float* copy) {
  for (int64_t row = 0; row < rows; ++row)
    __builtin_memcpy(copy + row * kRowStride, a + row * stride, depth * sizeof(float));
}

// Writes the product of `kRows` copied rows of A and `depth` rows of weights, or adds it to the output.
template <int kRows>
void multiply_float_tile(const float* a, const float* weights, int64_t depth, bool is_first, float* output, int64_t stride) {
  Floats totals[kRows][kTilePanels] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Floats weight[kTilePanels];
    for (int panel = 0; panel < kTilePanels; ++panel) weight[panel] = load<Floats>(weights + panel * kLanes);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const Floats element = splat(a[row * kRowStride]);
      for (int panel = 0; panel < kTilePanels; ++panel)
        totals[row][panel] = multiply_add(element, weight[panel], totals[row][panel]);
    }
    ++a;
    weights += kTileColumns;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kTilePanels; ++panel) {
      float* target = output + row * stride + panel * kLanes;
      store(target, is_first ? totals[row][panel] : load<Floats>(target) + totals[row][panel]);
    }
  }
}

typedef void (*MultiplyFloatTile)(const float*, const float*, int64_t, bool, float*, int64_t);

template <int kRows = 1>
MultiplyFloatTile float_tile_with_rows(int rows) {
  if constexpr (kRows < kTileRows) {
    if (rows > kRows) return float_tile_with_rows<kRows + 1>(rows);
  }
  return multiply_float_tile<kRows>;
}

// The floats that `multiply_in_tiles` works in: copied rows of A, weights, and what these are made of.
inline int64_t scratch_of_tiles(const WeightOnlyProduct& product, const Part& part) {
  return (part.end_row - part.first_row) * kRowStride + kConvertedRows * kTileColumns +
         ConversionMemory(product, nullptr).size();
}

inline void multiply_in_tiles(const WeightOnlyProduct& product, const Part& part, float* scratch) {
  const Convert convert = converter(product);
  const int64_t row_count = part.end_row - part.first_row, tiles = (row_count + kTileRows - 1) / kTileRows;
  const int64_t rows_per_tile = (row_count + tiles - 1) / tiles;
  float *copy = scratch, *weights = copy + row_count * kRowStride;
  const ConversionMemory memory(product, weights + kConvertedRows * kTileColumns);
  if (!product.zero_point) read_offsets(product, 0, memory.blocks * kLanes, memory.offset);
  for (int64_t first = 0; first < product.depth; first += kConvertedRows) {
    const int64_t end = smaller(first + kConvertedRows, product.depth), depth = end - first;
    copy_rows(product.a + part.first_row * product.depth + first, product.depth, row_count, depth, copy);
    for (int64_t column = part.first_column; column < part.end_column; column += kTileColumns) {
      const int64_t columns = smaller(kTileColumns, part.end_column - column);
      for (int64_t i = 0; i < columns; i += kLanes)
        convert_columns(product, convert, column + i, smaller(kLanes, columns - i), first, end, memory, weights + i);
      for (int64_t row = part.first_row; row < part.end_row; row += rows_per_tile) {
        const int rows = static_cast<int>(smaller(rows_per_tile, part.end_row - row));
        const MultiplyFloatTile multiply = float_tile_with_rows(rows);
        const float* a = copy + (row - part.first_row) * kRowStride;
        float* output = product.output + row * product.columns + column;
        if (columns == kTileColumns) {
          multiply(a, weights, depth, first == 0, output, product.columns);
          continue;
        }
        alignas(kBytes) float tile[kTileRows * kTileColumns] = {};
        for (int i = 0; i < rows; ++i)
          __builtin_memcpy(tile + i * kTileColumns, output + i * product.columns, columns * sizeof(float));
        multiply(a, weights, depth, first == 0, tile, kTileColumns);
        for (int i = 0; i < rows; ++i)
          __builtin_memcpy(output + i * product.columns, tile + i * kTileColumns, columns * sizeof(float));
      }
    }
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
