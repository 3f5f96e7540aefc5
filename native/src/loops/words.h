// Rows of bytes, read as vectors of words of four.
#pragma once

#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The bytes [start, start + kBytes) of a row of `depth` bytes, with their sign bits flipped, followed by zeros.
JQUANT_INLINE Words bytes_of_row(const char* row, int64_t start, int64_t depth, uint32_t flip) {
  if (start + kBytes <= depth) return load<Words>(row + start) ^ flip;
  Words words = splat_word(flip);
  __builtin_memcpy(&words, row + start, depth - start);
  return words ^ flip;
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
