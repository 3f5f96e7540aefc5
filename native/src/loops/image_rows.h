// Rows of bytes of an image, copied.
#pragma once

#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

template <class Vector>
JQUANT_INLINE void copy_vectors(char* target, const char* source, int64_t count) {
  constexpr int64_t kSize = sizeof(Vector);
  for (int64_t i = 0; i + kSize < count; i += kSize) store(target + i, load<Vector>(source + i));
  store(target + count - kSize, load<Vector>(source + count - kSize));
}

// Copies a few bytes without a call of a function, and without reading any beyond.
JQUANT_INLINE void copy_bytes(char* target, const char* source, int64_t count) {
  typedef uint8_t Sixteen __attribute__((vector_size(16)));
  if (count >= kBytes) {
    copy_vectors<Bytes>(target, source, count);
  } else if (count >= 16) {
    copy_vectors<Sixteen>(target, source, count);
  } else if (count >= 8) {
    copy_vectors<uint64_t>(target, source, count);
  } else if (count >= 4) {
    copy_vectors<uint32_t>(target, source, count);
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = source[i];
  }
}

JQUANT_INLINE void fill_bytes(char* target, uint8_t value, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] = static_cast<char>(value);
}

// A row of elements of an image, `step` apart, between padding.
struct SteppedRow {
  int64_t first, step;  // the place of the first; negative, or beyond the end, where it is padding
  int64_t size, count;  // of the image, and of the elements
  int64_t begin, end;   // of those that are in the image

  SteppedRow(int64_t first, int64_t step, int64_t size, int64_t count) : first(first), step(step), size(size), count(count) {
    begin = first >= 0 ? 0 : (-first + step - 1) / step;
    end = first >= size ? 0 : (size - 1 - first) / step + 1;
    if (begin > count) begin = count;
    if (end > count) end = count;
    if (end < begin) end = begin;
  }

  // Writes the elements of a row, or only padding where `row` is null.
  JQUANT_INLINE void copy(const char* row, uint8_t padding, char* target) const {
    if (row == nullptr || begin == end) {
      fill_bytes(target, padding, count);
      return;
    }
    fill_bytes(target, padding, begin);
    const char* source = row + first + begin * step;
    const int64_t number = end - begin;
    if (step == 1) {
      copy_bytes(target + begin, source, number);
    } else {
      copy_every(source, number, target + begin);
    }
    fill_bytes(target + end, padding, count - end);
  }

 private:
  JQUANT_INLINE void copy_every(const char* source, int64_t number, char* target) const {
    int64_t i = 0;
    if (step == 2) {
      typedef uint8_t Sixteen __attribute__((vector_size(16)));
      for (; i + 16 < number; i += 16) {
        const Sixteen a = load<Sixteen>(source + 2 * i), b = load<Sixteen>(source + 2 * i + 16);
        store(target + i, __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
      }
    }
    for (; i < number; ++i) target[i] = source[i * step];
  }
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
