// Rows of bytes of an image, copied.
#pragma once

#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

typedef uint8_t Sixteen __attribute__((vector_size(16)));
typedef uint8_t Eight __attribute__((vector_size(8)));

// Writes so many bytes by as few stores of vectors and words as possible, without calling a function: `part(vector, i)` is a
// vector, or a word, of the bytes from `i` on. Nothing beyond the last is asked for, but some bytes may be written twice.
template <class Part>
JQUANT_INLINE void write_bytes(char* target, int64_t count, Part part) {
  const auto write = [=](auto vector) {
    constexpr int64_t kSize = sizeof(vector);
    for (int64_t i = 0; i + kSize < count; i += kSize) store(target + i, part(vector, i));
    store(target + count - kSize, part(vector, count - kSize));
  };
  if (count >= kBytes) {
    write(Bytes{});
  } else if (count >= 16) {
    write(Sixteen{});
  } else if (count >= 8) {
    write(uint64_t{});
  } else if (count >= 4) {
    write(uint32_t{});
  } else {
    for (int64_t i = 0; i < count; ++i) store(target + i, part(uint8_t{}, i));
  }
}

JQUANT_INLINE void copy_bytes(char* target, const char* source, int64_t count) {
  write_bytes(target, count, [=](auto vector, int64_t i) { return load<decltype(vector)>(source + i); });
}

JQUANT_INLINE void fill_bytes(char* target, uint8_t value, int64_t count) {
  write_bytes(target, count, [=](auto vector, int64_t) {
    uint8_t bytes[sizeof(vector)];
    for (uint8_t& byte : bytes) byte = value;
    return load<decltype(vector)>(bytes);
  });
}

// Every second byte, from the first to the last of those that are wanted and not beyond.
JQUANT_INLINE Sixteen every_second_byte(Sixteen, const char* source) {
  const Sixteen low = load<Sixteen>(source), high = load<Sixteen>(source + sizeof(Sixteen) - 1);
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31);
}
JQUANT_INLINE Eight every_second_byte(Eight, const char* source) {
  const Eight low = load<Eight>(source), high = load<Eight>(source + sizeof(Eight) - 1);
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 9, 11, 13, 15);
}

// The last vector may have bytes of the one before: a byte at a time would take as long as the rest.
JQUANT_INLINE void copy_every_second_byte(char* target, const char* source, int64_t count) {
  const auto copy = [=](auto vector) {
    constexpr int64_t kSize = sizeof(vector);
    for (int64_t i = 0; i + kSize < count; i += kSize) store(target + i, every_second_byte(vector, source + 2 * i));
    store(target + count - kSize, every_second_byte(vector, source + 2 * (count - kSize)));
  };
  if (count >= 16) {
    copy(Sixteen{});
  } else if (count >= 8) {
    copy(Eight{});
  } else {
    for (int64_t i = 0; i < count; ++i) target[i] = source[2 * i];
  }
}

// Bytes that are `kStride` apart, and what is between them and after the last.
template <int kStride>
JQUANT_INLINE Sixteen strided_bytes(const char* source) {
  static_assert(kStride == 1 || kStride == 2, "");
  const Sixteen low = load<Sixteen>(source);
  if constexpr (kStride == 1) return low;
  const Sixteen high = load<Sixteen>(source + sizeof(Sixteen));
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

// Pixels of an image, a row of them, `step` apart; there may be padding before and after them.
struct RowOfPixels {
  int64_t first, step;  // the place of the first; negative, or beyond the end, where it is padding
  int64_t count;
  int64_t begin, end;  // of those that are in the image

  RowOfPixels(int64_t first, int64_t step, int64_t size, int64_t count) : first(first), step(step), count(count) {
    begin = smaller(first >= 0 ? 0 : (step - 1 - first) / step, count);
    end = smaller(first >= size ? 0 : (size - 1 - first) / step + 1, count);
    if (end < begin) end = begin;
  }

  // Copies the pixels, of so many bytes each, out of a row of the image, or only padding where that is null.
  JQUANT_INLINE void copy(const char* row, int64_t bytes, uint8_t padding, char* target) const {
    if (row == nullptr || begin == end) {
      fill_bytes(target, padding, count * bytes);
      return;
    }
    fill_edges(bytes, padding, target);
    const char* source = row + (first + begin * step) * bytes;
    target += begin * bytes;
    if (step == 1) {
      copy_bytes(target, source, (end - begin) * bytes);
    } else if (step == 2 && bytes == 1) {
      copy_every_second_byte(target, source, end - begin);
    } else if (bytes == 1) {
      for (int64_t i = 0; i < end - begin; ++i) target[i] = source[i * step];
    } else {
      for (int64_t i = 0; i < end - begin; ++i) copy_bytes(target + i * bytes, source + i * step * bytes, bytes);
    }
  }

  JQUANT_INLINE void fill_edges(int64_t bytes, uint8_t padding, char* target) const {
    fill_bytes(target, padding, begin * bytes);
    fill_bytes(target + end * bytes, padding, (count - end) * bytes);
  }
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
