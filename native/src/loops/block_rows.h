// The rows of A in a product with block scales: where they lie in the memory of a part, packed tile by tile, with their sums
// over each block.
#pragma once

#include "../block_product.h"
#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kTileLanes = kRowVectors * kLanes;

// Where the intermediate results of a part lie in its memory, in bytes.
struct BlockScratch {
  int64_t block_words;  // words of K in a block, of which the last may have padding
  int64_t row_bytes;    // of packed rows, in whole words and vectors
  int64_t tiles, rows_per_tile;
  int64_t strip_columns;  // whose sums are kept at a time
  int64_t padded_rows, activations, row_sums, starts, a_zero_points, panel, column_sums, partial_sums, totals;
  int64_t bytes = 0;

  BlockScratch(const BlockProduct& product, const Part& part, int64_t strip_columns, int64_t panel_words)
      : strip_columns(strip_columns) {
    constexpr int64_t kElement = 4;
    const int64_t rows = part.end_row - part.first_row;
    block_words = (product.block_size + kWord - 1) / kWord;
    row_bytes = rounded_up(product.blocks * block_words * kWord, kBytes);
    tiles = (rows + kTileRows - 1) / kTileRows;
    rows_per_tile = (rows + tiles - 1) / tiles;
    padded_rows = reserve(product.block_size % kWord ? kTileRows * row_bytes : 0);
    activations = reserve(rows * row_bytes + kTileLanes * kWord);
    row_sums = reserve(tiles * product.blocks * kTileLanes * kElement);
    starts = reserve(tiles * product.blocks * kTileLanes * kElement);
    a_zero_points = reserve(tiles * kTileLanes * kElement);
    panel = reserve(panel_words * strip_columns * kWord);
    column_sums = reserve(strip_columns * kElement);
    partial_sums = reserve(rows * strip_columns * kElement);
    totals = reserve(rows * strip_columns * kElement);
  }

 private:
  int64_t reserve(int64_t size) {
    const int64_t start = bytes;
    bytes += rounded_up(size, kBytes);
    return start;
  }
};

// A row of A in blocks of whole words, of which the padding is flipped to 0.
JQUANT_INLINE void pad_blocks(const BlockProduct& product, const char* row, int64_t block_words, uint32_t flip,
                              char* padded) {
  for (int64_t block = 0; block < product.blocks; ++block) {
    for (int64_t i = product.block_size; i < block_words * kWord; ++i) padded[i] = static_cast<char>(flip);
    __builtin_memcpy(padded, row, product.block_size);
    row += product.block_size;
    padded += block_words * kWord;
  }
}

// Packs up to `kTileRows` rows of A, as `pack_words_of_rows` does, up to a whole vector of K.
JQUANT_INLINE void pack_bytes_of_rows(const char* const* rows, int row_count, int64_t depth, uint32_t flip, char* packed) {
  if (row_count == 1) {
    for (int64_t k = 0; k < depth; k += kBytes) store(packed + k, bytes_of_row(rows[0], k, depth, flip));
    return;
  }
  pack_words_of_rows(row_count, rounded_up(depth, kBytes) / kWord, packed,
                     [=](int row, int64_t word) { return bytes_of_row(rows[row], word * kWord, depth, flip); });
}

// The sums of a vector of packed rows, from row `first` on, over some words of K.
JQUANT_INLINE Ints sums_of_rows(const char* packed, int row_count, int first, int64_t words) {
  const Weights ones = weights_of(splat_word(0x01010101));
  Ints sum = {};
  for (int64_t word = 0; word < words; ++word)
    sum = dot4(sum, ones, activations_of(load<Words>(packed + (word * row_count + first) * kWord)));
  return sum;
}

// Packs the rows of a part, and computes what corrects the sums of each block: of products with weights that are larger by
// `offset` than the integers that they stand for.
inline void prepare_rows(const BlockProduct& product, const Part& part, const BlockScratch& places, int32_t offset,
                         char* scratch) {
  const int64_t depth = product.depth();
  const uint32_t flip = flip_of_activations(product.a_is_unsigned);
  int32_t* row_sums = reinterpret_cast<int32_t*>(scratch + places.row_sums);
  int32_t* starts = reinterpret_cast<int32_t*>(scratch + places.starts);
  int32_t* a_zero_points = reinterpret_cast<int32_t*>(scratch + places.a_zero_points);
  for (int64_t first = part.first_row; first < part.end_row; first += places.rows_per_tile) {
    const int rows = static_cast<int>(smaller(places.rows_per_tile, part.end_row - first));
    const char* row_data[kTileRows];
    for (int i = 0; i < rows; ++i) {
      row_data[i] = static_cast<const char*>(product.a) + (first + i) * depth;
      if (product.block_size % kWord == 0) continue;
      char* padded = scratch + places.padded_rows + i * places.row_bytes;
      pad_blocks(product, row_data[i], places.block_words, flip, padded);
      row_data[i] = padded;
    }
    char* packed = scratch + places.activations + (first - part.first_row) * places.row_bytes;
    pack_bytes_of_rows(row_data, rows, product.blocks * places.block_words * kWord, flip, packed);
    for (int i = 0; i < kTileLanes; ++i) {
      const Broadcast<uint8_t>& array = product.a_zero_point;
      const uint8_t zero_point = array && i < rows ? array.data[(first + i) * array.row_stride] : 0;
      const int32_t bits = zero_point ^ static_cast<int32_t>(flip & 0xff);
      a_zero_points[i] = bits < 128 ? bits : bits - 256;
    }
    for (int64_t block = 0; block < product.blocks; ++block) {
      for (int lane = 0; lane < kTileLanes; lane += kLanes) {
        const Ints zero_points = load<Ints>(a_zero_points + lane) * static_cast<int32_t>(product.block_size);
        const Ints sum = sums_of_rows(packed, rows, lane, places.block_words) - zero_points;
        store(row_sums + lane, sum);
        store(starts + lane, sum * -offset);
      }
      packed += places.block_words * rows * kWord;
      row_sums += kTileLanes;
      starts += kTileLanes;
    }
    a_zero_points += kTileLanes;
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
