// Rows of bytes, read as vectors of words of four.
#pragma once

#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }

// The bytes [start, start + kBytes) of a row of `depth` bytes, with their sign bits flipped, followed by zeros.
JQUANT_INLINE Words bytes_of_row(const char* row, int64_t start, int64_t depth, uint32_t flip) {
  if (start + kBytes <= depth) return load<Words>(row + start) ^ flip;
  Words words = splat_word(flip);
  __builtin_memcpy(&words, row + start, depth - start);
  return words ^ flip;
}

// Packs up to `kTileRows` rows: the words of all rows at the same place of K are adjacent. `words_of_row(row, word)` are a
// vector of words of a row, from `word` on. As each store writes a whole vector, `packed` needs room for one more.
template <class WordsOfRow>
JQUANT_INLINE void pack_words_of_rows(int row_count, int64_t word_count, char* packed, WordsOfRow words_of_row) {
  for (int64_t word = 0; word < word_count; word += kLanes) {
    Words squares[kRowVectors][kLanes];
    for (int group = 0; group < kRowVectors; ++group) {
      for (int i = 0; i < kLanes; ++i) {
        const int row = group * kLanes + i;
        squares[group][i] = row < row_count ? words_of_row(row, word) : Words{};
      }
      transpose(squares[group]);
    }
    // In order, because what a store writes beyond the last row belongs to the next word.
    for (int64_t i = 0; i < smaller(kLanes, word_count - word); ++i, packed += row_count * kWord) {
      for (int group = 0; group < kRowVectors; ++group)
        if (group * kLanes < row_count) store(packed + group * kBytes, squares[group][i]);
    }
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
