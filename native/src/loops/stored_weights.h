// Weights of 4 and 8 bits where they are in B, and expanded: words of four bytes, one for each column of a vector.
#pragma once

#include "floats.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// How the bytes of B are to be flipped for `dot4`, which adds `kWeightOffset` to them.
constexpr uint32_t kFlipOfBytes = kWeightOffset ? kSignBits : 0;

constexpr int64_t kGroupColumns = kWord * kLanes;  // columns whose weights are expanded at once

// The doubled floats of the 16 codes of float4_e2m1fn, plus 12: from 0 to 24, as `dot4_of_nibbles` takes them.
constexpr int32_t kCodesOffset = 12;
constexpr ByteTable kDoubledFloats({12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0});

// uint16, (rows / 4, columns), of four 4-bit integers each, the first in the lowest bits: or with `kAreCodes`, of the codes
// of floats, of which each is half of an integer.
template <bool kAreCodes>
struct FourBits {
  typedef uint16_t Element;
  static constexpr bool kAreNibbles = true;
  static constexpr bool kHasOneWord = false;  // whether a step has one word of K
  static constexpr int64_t kRowsPerElement = kWord;
  static constexpr int64_t kRowsAhead = 16;                         // of elements, that are prefetched
  static constexpr int kLeastVectors = 1;                           // that are read at once
  static constexpr int32_t kOffset = kAreCodes ? kCodesOffset : 0;  // how much more the bytes are than the stored integers
  const Element* data;
  int64_t columns;

  // The words of K of adjacent vectors of columns.
  template <int kCount>
  JQUANT_INLINE void read(int64_t word, int64_t column, Words (&words)[kCount]) const {
    const Element* source = data + word * columns + column;
    prefetch(source + kRowsAhead * columns, kCount * kLanes * sizeof(Element));
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) words[i] = expanded(load<Halves>(source + i * kLanes));
  }

  // The same where `left` elements are left in B; zeros take the place of the others.
  JQUANT_INLINE void read_at_end(int64_t word, int64_t column, int64_t, int64_t left, Words (&words)[kWord]) const {
    const int64_t start = word * columns + column;
    for (int i = 0; i < kWord; ++i) {
      const int64_t index = start + i * kLanes;
      words[i] = expanded(load_at_most<Halves>(data + index, left - index));
    }
  }

 private:
  JQUANT_INLINE static Words expanded(Halves elements) {
    Words words = widened(elements);
    words = (words | words << 8) & 0x00ff00ff;
    words = (words | words << 4) & 0x0f0f0f0f;
    return kAreCodes ? looked_up(kDoubledFloats, words) : words;
  }
};
typedef FourBits<false> Nibbles;
typedef FourBits<true> Codes;

// int8, (rows, columns).
struct Int8s {
  typedef int8_t Element;
  static constexpr bool kAreNibbles = false;
  static constexpr bool kHasOneWord = true;
  static constexpr int64_t kRowsPerElement = 1;
  static constexpr int64_t kRowsAhead = 8;
  static constexpr int kLeastVectors = kWord;
  static constexpr int32_t kOffset = kWeightOffset;
  const Element* data;
  int64_t columns;

  JQUANT_INLINE void read(int64_t word, int64_t column, Words (&words)[kWord]) const {
    const Element* source = data + word * kWord * columns + column;
    Words rows[kWord];
#pragma GCC unroll 4
    for (int i = 0; i < kWord; ++i) {
      prefetch(source + (i + kRowsAhead) * columns, kBytes);
      rows[i] = load<Words>(source + i * columns) ^ kFlipOfBytes;
    }
    words_of_columns(rows, words);
  }

  // The same where `row_count` rows are left, too.
  JQUANT_INLINE void read_at_end(int64_t word, int64_t column, int64_t row_count, int64_t left,
                                 Words (&words)[kWord]) const {
    Words rows[kWord] = {};
    for (int64_t i = 0; i < kWord && word * kWord + i < row_count; ++i) {
      const int64_t index = (word * kWord + i) * columns + column;
      rows[i] = load_at_most<Words>(data + index, left - index) ^ kFlipOfBytes;
    }
    words_of_columns(rows, words);
  }
};

// Weights that have been expanded: of `words` words of K, for groups of `kGroupColumns`.
template <class Stored>
struct Panel {
  static constexpr bool kAreNibbles = Stored::kAreNibbles;
  static constexpr bool kHasOneWord = false;
  static constexpr int kLeastVectors = 1;
  char* data;
  int64_t words;

  template <int kCount>
  JQUANT_INLINE void read(int64_t word, int64_t column, Words (&result)[kCount]) const {
    const char* source = place(word, column);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) result[i] = load<Words>(source + i * kBytes);
  }

  JQUANT_INLINE void write(int64_t word, int64_t column, const Words (&group)[kWord]) const {
    char* target = place(word, column);
#pragma GCC unroll 4
    for (int i = 0; i < kWord; ++i) store(target + i * kBytes, group[i]);
  }

 private:
  JQUANT_INLINE char* place(int64_t word, int64_t column) const {
    return data + ((column / kGroupColumns * words + word) * kGroupColumns + column % kGroupColumns) * kWord;
  }
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
