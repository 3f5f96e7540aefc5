// The product of two matrices of bytes, one part of the output at a time.
//
// With many rows, the weights of a part are packed into panels, as the BLAS libraries do, so that each vector of them is
// used for all rows of a tile. With few rows, that would take longer than the product: weights that lie in the order of
// the sum are multiplied where they are.
#pragma once

#include "../product.h"
#include "epilogue.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kColumnUnit = 16;  // columns that are packed at once; tiles divide it or are a multiple
constexpr int64_t kPartUnit = kTileColumns > kColumnUnit ? kTileColumns : kColumnUnit;
constexpr int kGroups = (kTileRows + kLanes - 1) / kLanes;  // vectors of rows in a tile
constexpr int kTileLanes = kGroups * kLanes;                // the rows of a tile, rounded up to vectors

constexpr int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The bytes [start, start + kBytes) of a row of `depth` bytes, with their sign bits flipped, followed by zeros.
JQUANT_INLINE Words bytes_of_row(const char* row, int64_t start, int64_t depth, uint32_t flip) {
  if (start + kBytes <= depth) return load<Words>(row + start) ^ flip;
  Words words = splat_word(flip);
  __builtin_memcpy(&words, row + start, depth - start);
  return words ^ flip;
}

// Packs up to `kTileRows` rows of A: the bytes of each word of K, for all rows, are adjacent.
//
// `packed` has `rows` words for each word of K; as each store writes a whole vector, it needs a vector more.
JQUANT_INLINE void pack_activations(const char* const* rows, int row_count, int64_t depth, uint32_t flip, char* packed) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    Words squares[kGroups][kLanes];
    for (int group = 0; group < kGroups; ++group) {
      for (int i = 0; i < kLanes; ++i) {
        const int row = group * kLanes + i;
        squares[group][i] = row < row_count ? bytes_of_row(rows[row], k, depth, flip) : Words{};
      }
      transpose(squares[group]);
    }
    for (int i = 0; i < kLanes; ++i)
      for (int group = 0; group < kGroups; ++group)
        if (group * kLanes < row_count) store(packed + (i * row_count + group * kLanes) * kWord, squares[group][i]);
    packed += kLanes * row_count * kWord;
  }
}

// The sums of the rows of packed activations over some words of K, of a vector of rows from `group * kLanes` on.
JQUANT_INLINE Ints row_sums(const char* packed, int row_count, int64_t words, int group) {
  const Weights ones = weights_of(splat_word(0x01010101));
  Ints sum = {};
  for (int64_t word = 0; word < words; ++word)
    sum = dot4(sum, ones, activations_of(load<Words>(packed + (word * row_count + group * kLanes) * kWord)));
  return sum;
}

// Packs columns of B that lie in the order of the sum into a panel.
JQUANT_INLINE void pack_panel(const char* columns, int64_t stride, int64_t column_count, int64_t depth, uint32_t flip,
                              char* panel) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    Words square[kLanes];
    for (int i = 0; i < kLanes; ++i)
      square[i] = i < column_count ? bytes_of_row(columns + i * stride, k, depth, flip) : Words{};
    transpose(square);
    for (int i = 0; i < kLanes; ++i) store(panel + i * kBytes, square[i]);
    panel += kLanes * kBytes;
  }
}

// Packs `kColumnUnit` columns of B, whose rows are `stride` apart, into one or more panels.
JQUANT_INLINE void pack_panels_of_rows(const char* rows, int64_t stride, int64_t column_count, int64_t depth, uint32_t flip,
                                       char* panels, int64_t panel_bytes) {
  typedef uint8_t Bytes __attribute__((vector_size(kColumnUnit)));
  typedef uint16_t Pairs __attribute__((vector_size(kColumnUnit)));
  constexpr int kPanels = kColumnUnit / kLanes, kVectors = 4;
  for (int64_t k = 0; k < depth; k += kWord) {
    Bytes bytes[kWord];
    for (int i = 0; i < kWord; ++i) {
      bytes[i] = Bytes{};
      if (k + i >= depth) continue;
      const char* row = rows + (k + i) * stride;
      if (column_count >= kColumnUnit) {
        bytes[i] = load<Bytes>(row);
      } else {
        __builtin_memcpy(&bytes[i], row, column_count);
      }
    }
    const Pairs low[2] = {(Pairs)interleaved<Bytes, 0>(bytes[0], bytes[1]), (Pairs)interleaved<Bytes, 1>(bytes[0], bytes[1])};
    const Pairs high[2] = {(Pairs)interleaved<Bytes, 0>(bytes[2], bytes[3]),
                           (Pairs)interleaved<Bytes, 1>(bytes[2], bytes[3])};
    Bytes words[kVectors];  // each of four columns
    for (int i = 0; i < 2; ++i) {
      words[2 * i] = (Bytes)interleaved<Pairs, 0>(low[i], high[i]) ^ (uint8_t)flip;
      words[2 * i + 1] = (Bytes)interleaved<Pairs, 1>(low[i], high[i]) ^ (uint8_t)flip;
    }
    for (int i = 0; i < kVectors; ++i)
      store(panels + i / (kVectors / kPanels) * panel_bytes + i % (kVectors / kPanels) * kColumnUnit, words[i]);
    panels += kBytes;
  }
}

// The sums of a tile: `rows` of packed activations times `kTilePanels` panels.
template <int kRows>
void multiply_tile(const char* activations, const char* panels, int64_t words, int64_t panel_bytes, const int32_t* start,
                   int32_t* sums) {
  Ints totals[kRows][kTilePanels];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
    for (int panel = 0; panel < kTilePanels; ++panel) totals[row][panel] = Ints{} + start[row];
  for (int64_t word = 0; word < words; ++word) {
    Weights weights[kTilePanels];
    for (int panel = 0; panel < kTilePanels; ++panel) weights[panel] = weights_of(load<Words>(panels + panel * panel_bytes));
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      uint32_t bytes;
      __builtin_memcpy(&bytes, activations + row * kWord, kWord);
      const Activations activation = activations_of(splat_word(bytes));
      for (int panel = 0; panel < kTilePanels; ++panel)
        totals[row][panel] = dot4(totals[row][panel], weights[panel], activation);
    }
    activations += kRows * kWord;
    panels += kBytes;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
    for (int panel = 0; panel < kTilePanels; ++panel)
      store(sums + row * kTileColumns + panel * kLanes, totals[row][panel]);
}

typedef void (*MultiplyTile)(const char*, const char*, int64_t, int64_t, const int32_t*, int32_t*);

template <int... kRows>
constexpr MultiplyTile tile_with(int rows) {
  MultiplyTile functions[] = {multiply_tile<kRows>...};
  return functions[rows - 1];
}

JQUANT_INLINE MultiplyTile tile_with_rows(int rows) {
  if constexpr (kTileRows == 12) return tile_with<1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(rows);
  if constexpr (kTileRows == 8) return tile_with<1, 2, 3, 4, 5, 6, 7, 8>(rows);
  if constexpr (kTileRows == 4) return tile_with<1, 2, 3, 4>(rows);
}

inline int64_t panel_bytes_of(const Product& product) { return rounded_up(product.depth, kBytes) * kLanes; }

// The memory that `multiply_in_panels` works in: the weights of the part, and the activations of a tile.
inline int64_t scratch_of_panels(const Product& product, const Part& part) {
  const int64_t columns = rounded_up(part.end_column - part.first_column, kPartUnit);
  return panel_bytes_of(product) * (columns / kLanes) + rounded_up(product.depth, kBytes) * kTileRows + kTileLanes * kWord;
}

// A part of the product. `scratch` is aligned to a vector.
inline void multiply_in_panels(const Product& product, const Part& part, char* scratch) {
  const int64_t depth = product.depth, words = (depth + kWord - 1) / kWord, panel_bytes = panel_bytes_of(product);
  const char *a = static_cast<const char*>(product.a), *b = static_cast<const char*>(product.b);
  const uint32_t a_flip = flip_of_activations(product.a_is_unsigned), b_flip = flip_of_weights(product.b_is_unsigned);
  char* panels = scratch;
  const int64_t unit = product.is_depth_minor ? kLanes : kColumnUnit;
  for (int64_t column = part.first_column; column < part.end_column; column += unit) {
    char* target = panels + (column - part.first_column) / kLanes * panel_bytes;
    const int64_t count = smaller(part.end_column - column, unit);
    if (product.is_depth_minor) {
      pack_panel(b + column * depth, depth, count, depth, b_flip, target);
    } else {
      pack_panels_of_rows(b + column, product.columns, count, depth, b_flip, target, panel_bytes);
    }
  }
  char* activations = panels + panel_bytes * (rounded_up(part.end_column - part.first_column, kPartUnit) / kLanes);

  const int64_t row_count = part.end_row - part.first_row, tiles = (row_count + kTileRows - 1) / kTileRows;
  const int64_t rows_per_tile = (row_count + tiles - 1) / tiles;
  for (int64_t row = part.first_row; row < part.end_row; row += rows_per_tile) {
    const int rows = static_cast<int>(smaller(rows_per_tile, part.end_row - row));
    const char* row_data[kTileRows];
    for (int i = 0; i < rows; ++i) row_data[i] = a + (row + i) * depth;
    pack_activations(row_data, rows, depth, a_flip, activations);
    int32_t start[kTileLanes] = {};
    for (int group = 0; kWeightOffset && group < kGroups; ++group)
      store(start + group * kLanes, row_sums(activations, rows, words, group) * -kWeightOffset);
    const MultiplyTile multiply = tile_with_rows(rows);
    for (int64_t column = part.first_column; column < part.end_column; column += kTileColumns) {
      alignas(kBytes) int32_t sums[kTileRows * kTileColumns];
      const char* tile_panels = panels + (column - part.first_column) / kLanes * panel_bytes;
      multiply(activations, tile_panels, words, panel_bytes, start, sums);
      const Part tile{row, row + rows, column, smaller(column + kTileColumns, part.end_column)};
      apply(product.epilogue, sums, kTileColumns, product.output, product.columns, tile);
    }
  }
}

// Few rows: up to `kDotRows` rows of A times `kDotColumns` columns of B at a time, along the sum.
constexpr int kDotRows = 4;
constexpr int kDotColumns = 4;

// Adds, in each lane, the products of every kLanes-th word of `kRows` rows and `kDotColumns` columns.
template <int kRows>
JQUANT_INLINE void add_dots(const char* activations, int64_t padded_depth, const char* const (&columns)[kDotColumns],
                            int64_t depth, uint32_t flip, Ints (&totals)[kRows][kDotColumns]) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    Weights weights[kDotColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kDotColumns; ++i) weights[i] = weights_of(bytes_of_row(columns[i], k, depth, flip));
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Activations activation = activations_of(load<Words>(activations + row * padded_depth + k));
#pragma GCC unroll 4
      for (int i = 0; i < kDotColumns; ++i) totals[row][i] = dot4(totals[row][i], weights[i], activation);
    }
  }
}

// The sums of `kRows` rows and `kLanes` columns, of which the last may stand for several.
template <int kRows>
void multiply_by_dots(const char* activations, const int32_t* start, const char* columns, int64_t column_count, int64_t depth,
                      uint32_t flip, int32_t* sums) {
  const int64_t padded_depth = rounded_up(depth, kBytes);
  Ints totals[kRows][kLanes];
  for (int column = 0; column < kLanes; column += kDotColumns) {
    const char* some_columns[kDotColumns];
    for (int i = 0; i < kDotColumns; ++i) some_columns[i] = columns + smaller(column + i, column_count - 1) * depth;
    Ints dots[kRows][kDotColumns] = {};
    add_dots<kRows>(activations, padded_depth, some_columns, depth, flip, dots);
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kDotColumns; ++i) totals[row][column + i] = dots[row][i];
  }
  for (int row = 0; row < kRows; ++row) store(sums + row * kLanes, sums_of_lanes(totals[row]) + start[row]);
}

// The memory that `multiply_few_rows` works in: the activations, and the starts of their sums.
inline int64_t scratch_of_few_rows(const Product& product, const Part& part) {
  const int64_t rows = part.end_row - part.first_row;
  return rows * (rounded_up(product.depth, kBytes) + static_cast<int64_t>(sizeof(int32_t)));
}

// A part of a product with few rows, whose weights lie in the order of the sum.
inline void multiply_few_rows(const Product& product, const Part& part, char* scratch) {
  const int64_t depth = product.depth, padded_depth = rounded_up(depth, kBytes), rows = part.end_row - part.first_row;
  const uint32_t a_flip = flip_of_activations(product.a_is_unsigned), b_flip = flip_of_weights(product.b_is_unsigned);
  char* activations = scratch;
  int32_t* starts = reinterpret_cast<int32_t*>(scratch + rows * padded_depth);
  const Weights ones = weights_of(splat_word(0x01010101));
  for (int64_t row = 0; row < rows; ++row) {
    const char* source = static_cast<const char*>(product.a) + (part.first_row + row) * depth;
    Ints sum = {};
    for (int64_t k = 0; k < depth; k += kBytes) {
      const Words words = bytes_of_row(source, k, depth, a_flip);
      store(activations + row * padded_depth + k, words);
      sum = dot4(sum, ones, activations_of(words));
    }
    starts[row] = 0;
    for (int lane = 0; lane < kLanes; ++lane) starts[row] -= kWeightOffset * sum[lane];
  }
  for (int64_t column = part.first_column; column < part.end_column; column += kLanes) {
    const int64_t end_column = smaller(column + kLanes, part.end_column);
    const char* columns = static_cast<const char*>(product.b) + column * depth;
    for (int64_t row = 0; row < rows; row += kDotRows) {
      typedef void (*Multiply)(const char*, const int32_t*, const char*, int64_t, int64_t, uint32_t, int32_t*);
      constexpr Multiply functions[] = {multiply_by_dots<1>, multiply_by_dots<2>, multiply_by_dots<3>, multiply_by_dots<4>};
      const int64_t count = smaller(kDotRows, rows - row), first_row = part.first_row + row;
      alignas(kBytes) int32_t sums[kDotRows * kLanes];
      functions[count - 1](activations + row * padded_depth, starts + row, columns, end_column - column, depth, b_flip, sums);
      apply(product.epilogue, sums, kLanes, product.output, product.columns,
            {first_row, first_row + count, column, end_column});
    }
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
