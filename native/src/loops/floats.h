// Vectors of float32: the one operation whose results differ between instruction sets, and exact conversions to them.
#pragma once

#include "epilogue.h"
#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// x - 0 is x for every x; x + 0 is not for -0.
JQUANT_INLINE Floats splat(float x) { return x - Floats{}; }

// a * b + c, rounded once where the processor can do that.
JQUANT_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(JQUANT_AVX512_VNNI)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// The integers in the lowest `kBits` of each lane.
template <int kBits>
JQUANT_INLINE Floats floats_of_low_bits(Words words) {
#if defined(JQUANT_AVX512_VNNI)
  if constexpr (kBits <= 4) {  // by a table, of which the lowest 4 bits of each lane are the index
    constexpr int m = (1 << kBits) - 1;
    const Floats table = {0 & m, 1 & m, 2 & m,  3 & m,  4 & m,  5 & m,  6 & m,  7 & m,
                          8 & m, 9 & m, 10 & m, 11 & m, 12 & m, 13 & m, 14 & m, 15 & m};
    return (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)words, (__m512)table);
  }
#endif
  return __builtin_convertvector((Ints)(words & ((1u << kBits) - 1)), Floats);
}

// Integers of 8 or 16 bits, in lanes of 32. GCC converts them in several steps, of which processors need one
// (and GCC 12 warns of instructions without a mask).
JQUANT_INLINE Ints widened(SmallInts x) {
#if defined(JQUANT_AVX512_VNNI)
  return (Ints)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)x);
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Ints)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bits_as<int64_t>(x)));
#else
  return __builtin_convertvector(x, Ints);
#endif
}

JQUANT_INLINE Ints widened(SmallWords x) {
#if defined(JQUANT_AVX512_VNNI)
  return (Ints)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)x);
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits_as<int64_t>(x)));
#else
  return __builtin_convertvector(x, Ints);
#endif
}

JQUANT_INLINE Words widened(Halves x) {
#if defined(JQUANT_AVX512_VNNI)
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Words)_mm256_cvtepu16_epi32((__m128i)x);
#elif defined(__aarch64__)
  return (Words)vmovl_u16((uint16x4_t)x);
#else
  return __builtin_convertvector(x, Words);
#endif
}

JQUANT_INLINE Words widened(Words x) { return x; }

template <class Integers>
JQUANT_INLINE Floats from_integers(Integers x) {
  return __builtin_convertvector((Ints)widened(x), Floats);
}

JQUANT_INLINE Floats from_bfloat16(Halves x) { return bits_as<Floats>(widened(x) << 16); }

// In integers, because instruction sets differ.
JQUANT_INLINE Floats from_float16(Halves x) {
  constexpr uint32_t kBias = 112u << 23, kLeast = 113u << 23;  // of the exponent; 2**-14, the smallest normal number
  const Words bits = widened(x), sign = (bits & 0x8000) << 16, magnitude = (bits & 0x7fff) << 13;
  const Words subnormal = bits_as<Words>(bits_as<Floats>(magnitude + kLeast) - bits_as<float>(kLeast));
  Words result = select(magnitude < (Words{} + (1u << 23)), subnormal, magnitude + kBias);
  result = select(magnitude >= (Words{} + (31u << 23)), magnitude + 2 * kBias, result);  // infinities and NaN
  return bits_as<Floats>(result | sign);
}

// Up to a vector of elements, of which `count` are there; the others are 0.
template <class Vector, class Element>
JQUANT_INLINE Vector load_at_most(const Element* source, int64_t count) {
  constexpr int64_t kCount = sizeof(Vector) / sizeof(Element);
  if (count >= kCount) return load<Vector>(source);
  Vector vector = {};
  if (count > 0) __builtin_memcpy(&vector, source, count * sizeof(Element));
  return vector;
}

// For each lane the float in a place of the vector at `source`.
JQUANT_INLINE Floats selected(const float* source, Ints places) {
#if defined(JQUANT_AVX512_VNNI)
  return (Floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)places, (__m512)load<Floats>(source));
#elif defined(JQUANT_AVX_VNNI) || defined(JQUANT_AVX2)
  return (Floats)_mm256_permutevar8x32_ps((__m256)load<Floats>(source), (__m256i)places);
#else
  Floats floats;
  for (int lane = 0; lane < kLanes; ++lane) floats[lane] = source[places[lane]];
  return floats;
#endif
}

// The elements of an array from `index` on, of which `count` are there.
template <Type kType>
JQUANT_INLINE Floats load_floats(const void* data, int64_t index, int64_t count) {
  if constexpr (kType == Type::kInt8) {
    return from_integers(load_at_most<SmallInts>(static_cast<const int8_t*>(data) + index, count));
  } else if constexpr (kType == Type::kUint8) {
    return from_integers(load_at_most<SmallWords>(static_cast<const uint8_t*>(data) + index, count));
  } else if constexpr (kType == Type::kFloat16) {
    return from_float16(load_at_most<Halves>(static_cast<const uint16_t*>(data) + index, count));
  } else if constexpr (kType == Type::kBfloat16) {
    return from_bfloat16(load_at_most<Halves>(static_cast<const uint16_t*>(data) + index, count));
  } else {
    return load_at_most<Floats>(static_cast<const float*>(data) + index, count);
  }
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
