// The product of two matrices of bytes, one part of the output at a time.
//
// With many rows, the weights of a part are packed into panels, as the BLAS libraries do, so that each vector of them is
// used for all rows of a tile. With few rows, that would take longer than the product: weights that lie in the order of
// the sum are multiplied where they are.
#pragma once

#include "../product.h"
#include "epilogue.h"
#include "tile.h"
#include "words.h"
#include "zero_points.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kColumnUnit = 16;  // columns that are packed at once, at least
constexpr int64_t kPartUnit = kTileColumns > kColumnUnit ? kTileColumns : kColumnUnit;
static_assert(kColumnUnit % kLanes == 0, "columns are packed into whole panels");

// The bytes from one row of copied activations to the next: in whole vectors, and not in multiples of the distance at which
// the nearest cache has only a few places.
inline int64_t activation_stride(const Product& product) { return rounded_up(product.depth, kBytes) + kBytes; }

// Copies bytes with their sign bits flipped, followed by zeros up to a whole number of vectors. The lanes of the result add
// up to their sum.
JQUANT_INLINE Ints copy_flipped(const char* source, int64_t count, uint32_t flip, char* copy) {
  const Weights ones = weights_of(splat_word(0x01010101));
  Ints sum = {};
  for (int64_t k = 0; k < count; k += kBytes) {
    const Words words = bytes_of_row(source, k, count, flip);
    store(copy + k, words);
    sum = dot4(sum, ones, activations_of(words));
  }
  return sum;
}

// Copies up to `kLanes` rows of A with their sign bits flipped, followed by zeros. Writes the sum of each.
template <class NextRow>
JQUANT_INLINE void copy_rows(const Product& product, int rows, char* copies, int32_t* row_sums, NextRow& next_row) {
  const uint32_t flip = flip_of_activations(product.a_is_unsigned);
  Ints sums[kLanes] = {};
  for (int row = 0; row < rows; ++row) sums[row] = next_row(flip, copies + row * activation_stride(product));
  const Ints totals = sums_of_lanes(sums);
  for (int row = 0; row < rows; ++row) row_sums[row] = totals[row];
}

template <class NextRow>
JQUANT_INLINE void copy_activations(const Product& product, int rows, char* copies, int32_t* row_sums, NextRow& next_row) {
  for (int row = 0; row < rows; row += kLanes)
    copy_rows(product, static_cast<int>(smaller(rows - row, kLanes)), copies + row * activation_stride(product),
              row_sums + row, next_row);
}

// The rows of A, one after another, where they are.
class StoredRows {
 public:
  StoredRows(const Product& product, int64_t first_row)
      : row_(static_cast<const char*>(product.a) + first_row * product.depth), stride_(product.depth) {}

  JQUANT_INLINE Ints operator()(uint32_t flip, char* copy) {
    const char* const row = row_;
    row_ += stride_;
    return copy_flipped(row, stride_, flip, copy);
  }

 private:
  const char* row_;
  int64_t stride_;
};

// Packs columns of B that lie in the order of the sum into a panel.
JQUANT_INLINE void pack_panel(const char* columns, int64_t stride, int64_t column_count, int64_t depth, uint32_t flip,
                              char* panel) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    Words square[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      square[i] = i < column_count ? bytes_of_row(columns + i * stride, k, depth, flip) : Words{};
      prefetch(columns + (kLanes + i) * stride + k, kBytes);  // of the next panel
    }
    transpose(square);
    for (int i = 0; i < kLanes; ++i) store(panel + i * kBytes, square[i]);
    panel += kLanes * kBytes;
  }
}

typedef const char* RowsOfWord[kWord];  // four rows of B, null beyond its last

// Packs four bytes of K of up to `kColumnUnit` columns of B, into one or more panels.
JQUANT_INLINE void pack_some_columns(const RowsOfWord& rows, int64_t first, int64_t columns, uint32_t flip, char* panels,
                                     int64_t panel_bytes) {
  typedef uint8_t Unit __attribute__((vector_size(kColumnUnit)));
  typedef uint16_t Pairs __attribute__((vector_size(kColumnUnit)));
  constexpr int kPanels = kColumnUnit / kLanes, kVectors = 4, kVectorsOfPanel = kVectors / kPanels;
  Unit bytes[kWord];
  for (int i = 0; i < kWord; ++i) {
    bytes[i] = Unit{} + static_cast<uint8_t>(flip);  // which is stored as 0
    if (rows[i] == nullptr) continue;
    if (columns >= kColumnUnit) {
      bytes[i] = load<Unit>(rows[i] + first);
    } else {
      __builtin_memcpy(&bytes[i], rows[i] + first, columns);
    }
  }
  const Pairs low[2] = {(Pairs)interleaved<Unit, 0>(bytes[0], bytes[1]), (Pairs)interleaved<Unit, 1>(bytes[0], bytes[1])};
  const Pairs high[2] = {(Pairs)interleaved<Unit, 0>(bytes[2], bytes[3]), (Pairs)interleaved<Unit, 1>(bytes[2], bytes[3])};
  Unit words[kVectors];  // each of four columns
  for (int i = 0; i < 2; ++i) {
    words[2 * i] = (Unit)interleaved<Pairs, 0>(low[i], high[i]) ^ static_cast<uint8_t>(flip);
    words[2 * i + 1] = (Unit)interleaved<Pairs, 1>(low[i], high[i]) ^ static_cast<uint8_t>(flip);
  }
  for (int i = 0; i < kVectors; ++i)
    store(panels + i / kVectorsOfPanel * panel_bytes + i % kVectorsOfPanel * kColumnUnit, words[i]);
}

// Packs four bytes of K of so many columns of B. Rows have `readable` bytes, of which those beyond the columns are packed as
// they are.
JQUANT_INLINE void pack_word(const RowsOfWord& rows, int64_t columns, int64_t readable, uint32_t flip, char* panels,
                             int64_t panel_bytes) {
  int64_t column = 0;
  for (; column + kBytes / 2 < columns && column + kBytes <= readable; column += kBytes) {
    Words bytes[kWord], words[kWord];
#pragma GCC unroll 4
    for (int i = 0; i < kWord; ++i) bytes[i] = rows[i] == nullptr ? splat_word(flip) : load<Words>(rows[i] + column);
    words_of_columns(bytes, words);
#pragma GCC unroll 4
    for (int i = 0; i < kWord; ++i) store(panels + (column / kLanes + i) * panel_bytes, words[i] ^ flip);
  }
  for (; column < columns; column += kColumnUnit)
    pack_some_columns(rows, column, readable - column, flip, panels + column / kLanes * panel_bytes, panel_bytes);
}

// The sums of the columns of a panel, as signed bytes.
JQUANT_INLINE Ints sums_of_panel(const char* panel, int64_t depth) {
  const Activations ones = activations_of(splat_word(0x01010101));
  Ints sums = Ints{} - static_cast<int32_t>(kWeightOffset * depth);
  for (int64_t k = 0; k < depth; k += kWord) sums = dot4(sums, weights_of(load<Words>(panel + k * kLanes)), ones);
  return sums;
}

typedef void (*MultiplyTile)(const char*, int64_t, const char*, int64_t, int64_t, const int32_t*, int32_t*);

template <int kPanels, int... kRows>
constexpr MultiplyTile tile_with(int rows) {
  MultiplyTile functions[] = {multiply_tile<kRows, kPanels>...};
  return functions[rows - 1];
}

template <int kPanels>
JQUANT_INLINE MultiplyTile tile_with_rows(int rows) {
  if constexpr (kRowUnit > 1) return tile_with<kPanels, kRowUnit, kCopiedRows>((rows + kRowUnit - 1) / kRowUnit);
  if constexpr (kTileRows == 12) return tile_with<kPanels, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(rows);
  if constexpr (kTileRows == 8) return tile_with<kPanels, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
  if constexpr (kTileRows == 4) return tile_with<kPanels, 1, 2, 3, 4>(rows);
}

// Columns beyond the last whole panel, if they are so few that dots along K take less time than a panel of which they fill
// little: a fourth of it at most.
constexpr int kMostLeft = kLanes / 4;

JQUANT_INLINE int64_t columns_left(int64_t columns) {
  const int64_t left = columns % kLanes;
  return left <= kMostLeft ? left : 0;
}

// The sums of some rows and one column, each multiplied along K. Sums are `stride` apart.
inline void multiply_column(const char* activations, int64_t activation_stride, int rows, const char* column, int64_t depth,
                            const int32_t* starts, int32_t* sums, int64_t stride) {
  for (int first = 0; first < rows; first += kLanes) {
    Ints totals[kLanes] = {};
    const int count = static_cast<int>(smaller(rows - first, kLanes));
    for (int i = 0; i < count; ++i) {
      const char* row = activations + (first + i) * activation_stride;
      Ints total = {};
      for (int64_t k = 0; k < depth; k += kBytes)
        total = dot4(total, weights_of(load<Words>(column + k)), activations_of(load<Words>(row + k)));
      totals[i] = total;
    }
    const Ints result = sums_of_lanes(totals);
    for (int i = 0; i < count; ++i) sums[(first + i) * stride] = result[i] + starts[first + i];
  }
}

// The words of one column of a panel, side by side.
inline void unpack_column(const char* panel, int64_t column, int64_t bytes, char* target) {
  for (int64_t k = 0; k < bytes; k += kWord) store(target + k, load<uint32_t>(panel + k * kLanes + column * kWord));
}

// From one panel to the next: not in multiples of the distance at which the nearest cache has only a few places.
inline int64_t panel_bytes_of(const Product& product) { return rounded_up(product.depth, kBytes) * kLanes + kBytes; }

// Those that there is room for: a whole number of vectors of bytes.
inline int64_t packed_columns(const Part& part) { return rounded_up(part.end_column - part.first_column, kBytes); }

// The memory that `multiply_in_panels` works in: the weights of the part, the activations of a tile, and zero points.
inline int64_t scratch_of_panels(const Product& product, const Part& part) {
  const int64_t columns = packed_columns(part);
  return panel_bytes_of(product) * (columns / kLanes) + activation_stride(product) * (kCopiedRows + kMostLeft) +
         ZeroPoints::scratch_bytes(columns);
}

constexpr int kRowsAhead = 16;  // of B, which are prefetched

// Packs the columns of a part of B, reading it in the order in which it lies in memory.
JQUANT_INLINE void pack_weights(const Product& product, const Part& part, char* panels) {
  const int64_t depth = product.depth, panel_bytes = panel_bytes_of(product);
  const char* b = static_cast<const char*>(product.b);
  const uint32_t flip = flip_of_weights(product.b_is_unsigned);
  if (product.is_depth_minor) {
    for (int64_t column = part.first_column; column < part.end_column; column += kLanes)
      pack_panel(b + column * depth, depth, smaller(part.end_column - column, kLanes), depth, flip,
                 panels + (column - part.first_column) / kLanes * panel_bytes);
    return;
  }
  const int64_t columns = part.end_column - part.first_column;
  for (int64_t k = 0; k < depth; k += kWord) {
    RowsOfWord rows;
    for (int i = 0; i < kWord; ++i) {
      const char* row = b + (k + i) * product.b_stride + part.first_column;
      rows[i] = k + i < depth ? row : nullptr;
      prefetch(row + kRowsAhead * product.b_stride, columns);
    }
    pack_word(rows, columns, columns, flip, panels + k * kLanes, panel_bytes);
  }
}

// A part of a product whose columns `pack_columns(panels)` packs, and each of whose rows `next_row(flip, copy, sum)` copies
// as `copy_flipped` does, in their order. `scratch` is aligned to a vector.
template <class PackColumns, class NextRow>
JQUANT_INLINE void multiply_in_panels(const Product& product, const Part& part, char* scratch, PackColumns pack_columns,
                                      NextRow next_row) {
  const int64_t depth = product.depth, panel_bytes = panel_bytes_of(product);
  const int64_t column_count = part.end_column - part.first_column, padded_columns = packed_columns(part);
  char* panels = scratch;
  char* activations = panels + panel_bytes * (padded_columns / kLanes);
  char* left_columns = activations + activation_stride(product) * kCopiedRows;
  const ZeroPoints zero_points(product, part, left_columns + activation_stride(product) * kMostLeft);
  const int64_t left = columns_left(column_count), in_panels = column_count - left;
  if (!part.are_columns_prepared) {
    pack_columns(panels);
    if (int32_t* column_sums = zero_points.unknown_column_sums())
      for (int64_t column = 0; column < column_count; column += kLanes)
        store(column_sums + column, sums_of_panel(panels + column / kLanes * panel_bytes, depth));
    for (int64_t i = 0; i < left; ++i)
      unpack_column(panels + in_panels / kLanes * panel_bytes, i, rounded_up(depth, kBytes),
                    left_columns + i * activation_stride(product));
  }

  const int64_t words = (depth + kWord - 1) / kWord;
  const int64_t row_count = part.end_row - part.first_row, tiles = (row_count + kCopiedRows - 1) / kCopiedRows;
  const int64_t rows_per_tile = rounded_up((row_count + tiles - 1) / tiles, kRowUnit);
  const TileRegisters registers;
  for (int64_t row = part.first_row; row < part.end_row; row += rows_per_tile) {
    const int rows = static_cast<int>(smaller(rows_per_tile, part.end_row - row));
    int32_t row_sums[kCopiedRows], starts[kCopiedRows] = {};
    copy_activations(product, rows, activations, row_sums, next_row);
    const Terms terms = zero_points.terms(row, rows, row_sums, starts);
    const MultiplyTile multiply = tile_with_rows<kTilePanels>(rows), multiply_last = tile_with_rows<1>(rows);
    for (int64_t first = 0; first < column_count; first += kStripColumns) {
      alignas(kBytes) int32_t sums[kCopiedRows * kStripColumns];
      const int64_t end = smaller(first + kStripColumns, column_count), panels_end = smaller(end, in_panels);
      for (int64_t column = first; column < panels_end; column += kTileColumns) {
        const MultiplyTile multiply_columns = panels_end - column <= kLanes ? multiply_last : multiply;
        multiply_columns(activations, activation_stride(product), panels + column / kLanes * panel_bytes, words, panel_bytes,
                         starts, sums + (column - first));
      }
      for (int64_t column = larger(first, in_panels); column < end; ++column)
        multiply_column(activations, activation_stride(product), rows,
                        left_columns + (column - in_panels) * activation_stride(product), depth, starts,
                        sums + (column - first), kStripColumns);
      apply(product.epilogue, beginning_at(terms, first), sums, kStripColumns, product.output, product.output_stride,
            {row, row + rows, part.first_column + first, part.first_column + end});
    }
  }
}

inline void multiply_stored(const Product& product, const Part& part, char* scratch) {
  const auto pack_columns = [&](char* panels) { pack_weights(product, part, panels); };
  multiply_in_panels(product, part, scratch, pack_columns, StoredRows(product, part.first_row));
}

// Few rows: up to `kDotRows` rows of A times `kDotColumns` columns of B at a time, along the sum.
constexpr int kDotRows = 4;
constexpr int kDotColumns = 4;
constexpr int kDotStripColumns = 64;  // whose sums an epilogue completes at once

// Adds, in each lane, the products of every kLanes-th word of `kRows` rows and `kDotColumns` columns.
template <int kRows>
JQUANT_INLINE void add_dots(const char* activations, int64_t activation_stride, const char* const (&columns)[kDotColumns],
                            int64_t depth, uint32_t flip, Ints (&totals)[kRows][kDotColumns]) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    Weights weights[kDotColumns];
#pragma GCC unroll 4
    for (int i = 0; i < kDotColumns; ++i) {
      prefetch(columns[i] + k + kDotColumns * depth, kBytes);  // of the next columns
      weights[i] = weights_of(bytes_of_row(columns[i], k, depth, flip));
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Activations activation = activations_of(load<Words>(activations + row * activation_stride + k));
#pragma GCC unroll 4
      for (int i = 0; i < kDotColumns; ++i) totals[row][i] = dot4(totals[row][i], weights[i], activation);
    }
  }
}

// The sums of `kRows` rows and `kLanes` columns, of which the last may stand for several; in rows of `kDotStripColumns`.
template <int kRows>
void multiply_by_dots(const char* activations, int64_t stride, const int32_t* start, const char* columns,
                      int64_t column_count, int64_t depth, uint32_t flip, int32_t* sums) {
  Ints totals[kRows][kLanes];
  for (int column = 0; column < kLanes; column += kDotColumns) {
    const char* some_columns[kDotColumns];
    for (int i = 0; i < kDotColumns; ++i) some_columns[i] = columns + smaller(column + i, column_count - 1) * depth;
    Ints dots[kRows][kDotColumns] = {};
    add_dots<kRows>(activations, stride, some_columns, depth, flip, dots);
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kDotColumns; ++i) totals[row][column + i] = dots[row][i];
  }
  for (int row = 0; row < kRows; ++row) store(sums + row * kDotStripColumns, sums_of_lanes(totals[row]) + start[row]);
}

// The memory that `multiply_few_rows` works in: the activations, one more row, and zero points.
inline int64_t scratch_of_few_rows(const Product& product, const Part& part) {
  const int64_t rows = part.end_row - part.first_row, columns = part.end_column - part.first_column;
  return (rows + 1) * activation_stride(product) + ZeroPoints::scratch_bytes(columns);
}

// A part of a product with few rows, whose weights lie in the order of the sum. The sums of columns, unless they are known,
// are one more row of the product: that of a row of ones.
inline void multiply_few_rows(const Product& product, const Part& part, char* scratch) {
  const int64_t depth = product.depth, stride = activation_stride(product);
  const int rows = static_cast<int>(part.end_row - part.first_row);
  const uint32_t flip = flip_of_weights(product.b_is_unsigned);
  char* activations = scratch;
  const ZeroPoints zero_points(product, part, activations + (rows + 1) * stride);
  int32_t* const column_sums = zero_points.unknown_column_sums();
  const int rows_with_ones = rows + (column_sums != nullptr);
  int32_t row_sums[kMostFewRows];
  StoredRows stored_rows(product, part.first_row);
  copy_activations(product, rows, activations, row_sums, stored_rows);
  if (column_sums != nullptr) {
    __builtin_memset(activations + rows * stride, 1, depth);
    __builtin_memset(activations + rows * stride + depth, 0, rounded_up(depth, kBytes) - depth);
  }
  typedef void (*Multiply)(const char*, int64_t, const int32_t*, const char*, int64_t, int64_t, uint32_t, int32_t*);
  constexpr Multiply functions[] = {multiply_by_dots<1>, multiply_by_dots<2>, multiply_by_dots<3>, multiply_by_dots<4>};
  for (int64_t first = part.first_column; first < part.end_column; first += kDotStripColumns) {
    const int64_t end = smaller(first + kDotStripColumns, part.end_column);
    alignas(kBytes) int32_t sums[(kMostFewRows + 1) * kDotStripColumns];
    Terms terms[kMostFewRows / kDotRows];
    int32_t starts[kMostFewRows + 1];
    starts[rows] = -kWeightOffset * static_cast<int32_t>(depth);
    for (int row = 0; row < rows; row += kDotRows) {
      const int count = static_cast<int>(smaller(kDotRows, rows - row));
      terms[row / kDotRows] = zero_points.terms(part.first_row + row, count, row_sums + row, starts + row);
    }
    for (int64_t column = first; column < end; column += kLanes) {
      const char* columns = static_cast<const char*>(product.b) + column * depth;
      for (int64_t row = 0; row < rows_with_ones; row += kDotRows)
        functions[smaller(kDotRows, rows_with_ones - row) - 1](activations + row * stride, stride, starts + row, columns,
                                                               end - column, depth, flip,
                                                               sums + row * kDotStripColumns + (column - first));
    }
    if (column_sums != nullptr)
      __builtin_memcpy(column_sums + (first - part.first_column), sums + rows * kDotStripColumns,
                       (end - first) * int64_t{sizeof(int32_t)});
    for (int64_t row = 0; row < rows; row += kDotRows) {
      const int64_t first_row = part.first_row + row, end_row = smaller(first_row + kDotRows, part.end_row);
      apply(product.epilogue, beginning_at(terms[row / kDotRows], first - part.first_column), sums + row * kDotStripColumns,
            kDotStripColumns, product.output, product.output_stride, {first_row, end_row, first, end});
    }
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
