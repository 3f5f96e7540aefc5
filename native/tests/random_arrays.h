// Random numbers and arrays for the driver, and what floats are rounded to.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "product.h"

namespace jquant {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end)); }
  bool coin() { return below(2) != 0; }
  int32_t integer() { return static_cast<int32_t>(engine_()); }

  // Of every magnitude; one of eight is of little use to arithmetic.
  float number() {
    const float unusual[] = {0.0f, -0.0f, 1e-39f, 1.2e-38f, 3e38f, INFINITY, -INFINITY, NAN};
    if (below(8) == 0) return unusual[below(8)];
    return std::ldexp(static_cast<float>(integer()), static_cast<int>(below(40)) - 60);
  }

 private:
  std::mt19937_64 engine_;
};

// The bits of the number of a type of 16 bits that is nearest to x, ties to even; of any NaN if x is NaN.
inline uint16_t nearest_half(float x, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(x)) return infinity | 1;
  if (std::isinf(x)) return sign | infinity;
  if (x == 0) return sign;
  int exponent;
  std::frexp(x, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(x)), fraction_bits - exponent));
  // A fraction that is rounded up to the next power of two has carried into the exponent.
  const double bits = units + std::ldexp(exponent + bias - 1, fraction_bits);
  return sign | (bits >= infinity ? infinity : static_cast<uint16_t>(bits));
}

template <class Value>
Value read(const void* source) {
  Value value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

// Whether a float32, or the float16 or bfloat16 that it was rounded to, is as expected. NaN equals NaN.
inline bool is_nearest(const void* result, Type type, float expected) {
  if (type == Type::kFloat32) {
    const auto actual = read<float>(result);
    return std::isnan(expected) ? std::isnan(actual) : read<uint32_t>(&actual) == read<uint32_t>(&expected);
  }
  const bool is_float16 = type == Type::kFloat16;
  const auto actual = read<uint16_t>(result);
  if (std::isnan(expected)) return (actual & 0x7fff) > (is_float16 ? 0x7c00 : 0x7f80);
  return actual == (is_float16 ? nearest_half(expected, 5, 10) : nearest_half(expected, 8, 7));
}

inline int64_t bytes_of(Type type) {
  return type == Type::kInt8 || type == Type::kUint8 ? 1 : type == Type::kFloat16 || type == Type::kBfloat16 ? 2 : 4;
}

// An element of an array that broadcasts; 0 if there is none.
template <class Element>
Element element_of(const Broadcast<Element>& array, int64_t row, int64_t column) {
  return array ? array.data[row * array.row_stride + column * array.column_stride] : Element{};
}

// Whether an element of the output is what the epilogue makes of a sum with its bias. NaN equals NaN.
inline bool is_result(const Epilogue& epilogue, int64_t row, int64_t column, int32_t total, const uint8_t* result) {
  const auto element = [&](const auto& array) { return element_of(array, row, column); };
  if (epilogue.scaling == Epilogue::Scaling::kNone) return read<int32_t>(result) == total;
  if (epilogue.scaling == Epilogue::Scaling::kRequantize) {
    const double lowest = epilogue.output_type == Type::kInt8 ? -128 : 0;
    const float scaled = static_cast<float>(total) * element(epilogue.column_scale);
    const double rounded = std::nearbyint(static_cast<double>(scaled)) + element(epilogue.zero_point);
    const double limited = std::fmin(std::fmax(rounded, lowest), lowest + 255);
    return *result == static_cast<uint8_t>(std::isnan(scaled) ? 0 : static_cast<int32_t>(limited));
  }
  float value = static_cast<float>(total) * (element(epilogue.row_scale) * element(epilogue.column_scale));
  if (epilogue.bias) value = value + element(epilogue.bias);
  return is_nearest(result, epilogue.output_type, value);
}

// Arrays of random elements, which last as long as this.
template <class Element>
class Arrays {
 public:
  // One element for each row or for all, and for each column or for all.
  template <class Draw>
  Broadcast<Element> draw(Random& random, int64_t rows, int64_t columns, const Draw& element) {
    rows = random.coin() ? rows : 1;
    columns = random.coin() ? columns : 1;
    arrays_.emplace_back(rows * columns);
    for (Element& place : arrays_.back()) place = element();
    return {arrays_.back().data(), rows == 1 ? 0 : columns, columns == 1 ? 0 : 1};
  }

  Element* keep(std::vector<Element> array) {
    arrays_.push_back(std::move(array));
    return arrays_.back().data();
  }

 private:
  std::vector<std::vector<Element>> arrays_;
};

}  // namespace jquant
