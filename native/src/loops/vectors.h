// Vectors of the instruction set that this file is compiled for, and the one operation that differs between instruction
// sets: sums of four products of bytes, added to 32-bit integers.
//
// Everything else is written with the vector types of GCC and Clang, which have the operators of C++. Nothing here may come
// from the standard library: a function that is not inlined would be compiled for one instruction set and called in all.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(JQUANT_AMX_INT8)
#define JQUANT_AVX512_VNNI  // whose vectors all processors with it have
#endif

#define JQUANT_INLINE inline __attribute__((always_inline))

namespace jquant {
namespace JQUANT_NAMESPACE {

#if defined(JQUANT_AVX512_VNNI)
constexpr int kLanes = 16;     // 32-bit integers in a vector
constexpr int kTileRows = 12;  // the accumulators of a tile, and two vectors of weights, fill the registers
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
constexpr int kLanes = 8;
constexpr int kTileRows = 4;
#elif defined(JQUANT_NEON_I8MM) || defined(JQUANT_NEON_DOT)
constexpr int kLanes = 4;
constexpr int kTileRows = 8;
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
#endif

#if defined(JQUANT_AMX_INT8)
constexpr int kRowUnit = 16;               // rows of a register of tiles, which cost as much as one
constexpr int kCopiedRows = 2 * kRowUnit;  // by two panels: four registers of sums, two of rows, and two of weights
#else
constexpr int kRowUnit = 1;
constexpr int kCopiedRows = kTileRows;  // that are multiplied at once by packed weights
#endif

constexpr int kRowVectors = (kTileRows + kLanes - 1) / kLanes;  // of the rows of a tile, each in a lane
constexpr int kTilePanels = 2;                                  // vectors of columns in a tile
constexpr int kTileColumns = kTilePanels * kLanes;              // columns of a tile
constexpr int kBytes = 4 * kLanes;                              // bytes in a vector
constexpr int kWord = 4;                                        // bytes of K that a lane multiplies at once

typedef int32_t Ints __attribute__((vector_size(kBytes)));
typedef uint32_t Words __attribute__((vector_size(kBytes)));
typedef float Floats __attribute__((vector_size(kBytes)));
typedef int8_t SmallInts __attribute__((vector_size(kLanes)));
typedef uint8_t SmallWords __attribute__((vector_size(kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

template <class Vector, class Element>
JQUANT_INLINE Vector load(const Element* source) {
  Vector vector;
  __builtin_memcpy(&vector, source, sizeof(Vector));
  return vector;
}

template <class Vector, class Element>
JQUANT_INLINE void store(Element* target, Vector vector) {
  __builtin_memcpy(target, &vector, sizeof(Vector));
}

// Loads what is read later, where the processor does not foresee it. It may lie beyond the end of an array.
JQUANT_INLINE void prefetch(const void* source, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(static_cast<const char*>(source) + byte);
}

template <class To, class From>
JQUANT_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// The lowest byte of each lane, which GCC takes out one by one where no instruction takes all.
JQUANT_INLINE SmallInts lowest_bytes(Ints x) {
#if defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  const __m256i halves = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0c080400));
  const __m128i bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  return bits_as<SmallInts>(_mm_cvtsi128_si64(bytes));
#else
  return __builtin_convertvector(x, SmallInts);
#endif
}

JQUANT_INLINE Words splat_word(uint32_t word) { return Words{} + word; }

constexpr uint32_t kSignBits = 0x80808080;

// Four signed bytes of activations times four bytes of weights in each lane.
//
// x86 multiplies unsigned by signed bytes: weights are stored with their sign bit flipped, which adds 128 to them. So a
// sum starts at -128 times the sum of the activations.
#if defined(__aarch64__)
constexpr int kWeightOffset = 0;
#else
constexpr int kWeightOffset = 128;
#endif

#if defined(JQUANT_AVX512_VNNI)

typedef Words Weights;
typedef Words Activations;
JQUANT_INLINE Weights weights_of(Words words) { return words; }
JQUANT_INLINE Activations activations_of(Words words) { return words; }
JQUANT_INLINE Ints dot4(Ints sums, Weights weights, Activations activations) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)activations);
}

#elif defined(JQUANT_AVX_VNNI)

typedef Words Weights;
typedef Words Activations;
JQUANT_INLINE Weights weights_of(Words words) { return words; }
JQUANT_INLINE Activations activations_of(Words words) { return words; }
JQUANT_INLINE Ints dot4(Ints sums, Weights weights, Activations activations) {
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)activations);
}

#elif defined(JQUANT_AVX2)

// In 16 bits, of which each sum of two products has 32: `vpmaddubsw`, which multiplies bytes, saturates its sums.
struct Weights {
  __m256i even, odd;
};
struct Activations {
  __m256i even, odd;
};
JQUANT_INLINE Weights weights_of(Words words) {
  return {_mm256_and_si256((__m256i)words, _mm256_set1_epi16(0xff)), _mm256_srli_epi16((__m256i)words, 8)};
}
JQUANT_INLINE Activations activations_of(Words words) {
  return {_mm256_srai_epi16(_mm256_slli_epi16((__m256i)words, 8), 8), _mm256_srai_epi16((__m256i)words, 8)};
}
JQUANT_INLINE Ints dot4(Ints sums, Weights weights, Activations activations) {
  const Ints even = (Ints)_mm256_madd_epi16(weights.even, activations.even);
  return sums + even + (Ints)_mm256_madd_epi16(weights.odd, activations.odd);
}

#elif defined(JQUANT_NEON_I8MM) || defined(JQUANT_NEON_DOT)

typedef Words Weights;
typedef Words Activations;
JQUANT_INLINE Weights weights_of(Words words) { return words; }
JQUANT_INLINE Activations activations_of(Words words) { return words; }
JQUANT_INLINE Ints dot4(Ints sums, Weights weights, Activations activations) {
  return (Ints)vdotq_s32((int32x4_t)sums, (int8x16_t)weights, (int8x16_t)activations);
}

#else  // portable

typedef Words Weights;
typedef Words Activations;
JQUANT_INLINE Weights weights_of(Words words) { return words; }
JQUANT_INLINE Activations activations_of(Words words) { return words; }
JQUANT_INLINE Ints dot4(Ints sums, Weights weights, Activations activations) {
  for (int byte = 0; byte < kWord; ++byte) {
    const int shift = 24 - 8 * byte;
    const Words shifted = weights << shift;
    const Ints weight = kWeightOffset ? (Ints)(shifted >> 24) : (Ints)shifted >> 24;
    sums += weight * ((Ints)(activations << shift) >> 24);
  }
  return sums;
}

#endif

// A table of 16 bytes, again in each 16 bytes of a vector: a constant, because filling a vector at run time takes a loop.
struct ByteTable {
  alignas(64) uint8_t bytes[64] = {};

  explicit constexpr ByteTable(const uint8_t (&table)[16]) {
    for (int i = 0; i < 64; ++i) bytes[i] = table[i % 16];
  }
};

// The bytes of a table at indices from 0 to 15, one in each byte.
JQUANT_INLINE Words looked_up(const ByteTable& table, Words indices) {
#if defined(JQUANT_AVX512_VNNI)
  return (Words)_mm512_shuffle_epi8((__m512i)load<Words>(table.bytes), (__m512i)indices);
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Words)_mm256_shuffle_epi8((__m256i)load<Words>(table.bytes), (__m256i)indices);
#elif defined(JQUANT_NEON_I8MM) || defined(JQUANT_NEON_DOT)
  return (Words)vqtbl1q_u8(vld1q_u8(table.bytes), (uint8x16_t)indices);
#else
  uint8_t bytes[kBytes];
  store(bytes, indices);
  for (int i = 0; i < kBytes; ++i) bytes[i] = table.bytes[bytes[i]];
  return load<Words>(bytes);
#endif
}

// `dot4` for weights from 0 to 24.
JQUANT_INLINE Ints dot4_of_nibbles(Ints sums, Words weights, Words activations) {
#if defined(JQUANT_AVX2)
  // Sums of two such products fit into 16 bits.
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)weights, (__m256i)activations);
  return sums + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  return dot4(sums, weights_of(weights), activations_of(activations));
#endif
}

// How the sign bits of stored integers are to be flipped for `dot4`. Unsigned bytes stand for themselves less 128.
constexpr uint32_t flip_of_activations(bool is_unsigned) { return is_unsigned ? kSignBits : 0; }
constexpr uint32_t flip_of_weights(bool is_unsigned) { return is_unsigned == (kWeightOffset == 0) ? kSignBits : 0; }

// The first or second half of both vectors, with their elements in turns.
template <class Vector, int kHalf>
JQUANT_INLINE Vector interleaved(Vector a, Vector b) {
  constexpr int n = sizeof(Vector) / sizeof(a[0]), h = kHalf * n / 2;
  if constexpr (n == 4) return __builtin_shufflevector(a, b, h, h + 4, h + 1, h + 5);
  if constexpr (n == 8) return __builtin_shufflevector(a, b, h, h + 8, h + 1, h + 9, h + 2, h + 10, h + 3, h + 11);
  if constexpr (n == 16)
    return __builtin_shufflevector(a, b, h, h + 16, h + 1, h + 17, h + 2, h + 18, h + 3, h + 19, h + 4, h + 20, h + 5,
                                   h + 21, h + 6, h + 22, h + 7, h + 23);
}

// The indices below `count`, for patterns of shuffles.
template <int count, int... indices>
struct IndicesBelow : IndicesBelow<count - 1, count - 1, indices...> {};
template <int... indices>
struct IndicesBelow<0, indices...> {};

typedef uint8_t Bytes __attribute__((vector_size(kBytes)));

// In each 16 bytes, the first or second half of those of both vectors, with `kUnit` bytes of them in turns.
template <int kHalf, int kUnit, int... i>
JQUANT_INLINE Bytes interleaved_in_lanes(Bytes a, Bytes b, IndicesBelow<0, i...>) {
  return __builtin_shufflevector(
      a, b, (i / 16 * 16 + 8 * kHalf + i % 16 / (2 * kUnit) * kUnit + i % kUnit + (i / kUnit % 2 ? kBytes : 0))...);
}

template <int kHalf, int kUnit>
JQUANT_INLINE Bytes interleaved_in_lanes(Bytes a, Bytes b) {
  return interleaved_in_lanes<kHalf, kUnit>(a, b, IndicesBelow<kBytes>());
}

// Such that the words of 16 adjacent bytes come from `kLanes` adjacent ones each.
template <int... i>
JQUANT_INLINE Words words_in_lanes(Words words, IndicesBelow<0, i...>) {
  return __builtin_shufflevector(words, words, (i % kWord * (kLanes / kWord) + i / kWord)...);
}

// Every other 16 bytes of both vectors, one after the other.
template <int kFirst, int... i>
JQUANT_INLINE Words every_other_lane(Words a, Words b, IndicesBelow<0, i...>) {
  constexpr int kLane = 4;  // words
  return __builtin_shufflevector(a, b, ((2 * (i / kLane) + kFirst) * kLane + i % kLane)...);
}

// Transposes a square of words: each square of four in it, and then these.
JQUANT_INLINE void transpose(Words (&square)[kLanes]) {
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += kWord) {
    Bytes rows[kWord], halves[kWord];
#pragma GCC unroll 4
    for (int j = 0; j < kWord; ++j) rows[j] = bits_as<Bytes>(square[i + j]);
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      halves[pair] = interleaved_in_lanes<0, 4>(rows[2 * pair], rows[2 * pair + 1]);
      halves[pair + 2] = interleaved_in_lanes<1, 4>(rows[2 * pair], rows[2 * pair + 1]);
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      square[i + 2 * half] = bits_as<Words>(interleaved_in_lanes<0, 8>(halves[2 * half], halves[2 * half + 1]));
      square[i + 2 * half + 1] = bits_as<Words>(interleaved_in_lanes<1, 8>(halves[2 * half], halves[2 * half + 1]));
    }
  }
  constexpr int kCount = kLanes / kWord;
#pragma GCC unroll 4
  for (int i = 0; i < kWord; ++i) {
#pragma GCC unroll 2
    for (int step = 1; step < kCount; step *= 2) {
      Words next[kCount];
#pragma GCC unroll 2
      for (int j = 0; j < kCount / 2; ++j) {
        const Words a = square[2 * j * kWord + i], b = square[(2 * j + 1) * kWord + i];
        next[j] = every_other_lane<0>(a, b, IndicesBelow<kLanes>());
        next[j + kCount / 2] = every_other_lane<1>(a, b, IndicesBelow<kLanes>());
      }
#pragma GCC unroll 4
      for (int j = 0; j < kCount; ++j) square[j * kWord + i] = next[j];
    }
  }
}

// The bytes of four rows and `kBytes` columns, as the words of four vectors of columns.
JQUANT_INLINE void words_of_columns(const Words (&rows)[kWord], Words (&columns)[kWord]) {
  Bytes bytes[kWord];
#pragma GCC unroll 4
  for (int i = 0; i < kWord; ++i) bytes[i] = bits_as<Bytes>(words_in_lanes(rows[i], IndicesBelow<kLanes>()));
  const Bytes low[2] = {interleaved_in_lanes<0, 1>(bytes[0], bytes[1]), interleaved_in_lanes<1, 1>(bytes[0], bytes[1])};
  const Bytes high[2] = {interleaved_in_lanes<0, 1>(bytes[2], bytes[3]), interleaved_in_lanes<1, 1>(bytes[2], bytes[3])};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    columns[2 * i] = bits_as<Words>(interleaved_in_lanes<0, 2>(low[i], high[i]));
    columns[2 * i + 1] = bits_as<Words>(interleaved_in_lanes<1, 2>(low[i], high[i]));
  }
}

// The sums of the lanes of each vector: lane i is the sum of vector i.
template <class Vector>
JQUANT_INLINE Vector sums_of_lanes(Vector (&vectors)[kLanes]) {
#pragma GCC unroll 4
  for (int count = kLanes / 2; count >= 1; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      const Vector a = vectors[i], b = vectors[i + count];
      vectors[i] = interleaved<Vector, 0>(a, b) + interleaved<Vector, 1>(a, b);
    }
  }
  return vectors[0];
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
