// Random operands of sums and products of quantized numbers, and their results by plain loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "elementwise.h"
#include "random_arrays.h"

namespace jquant {

// Rows of two arrays, either of which may have one element for each row. The scales are of every magnitude; or such that
// many quotients are ties, but for what operations round.
struct ElementwiseOperands {
  Elementwise operation;
  int64_t rows, columns;
  bool is_one_a, is_one_b;
  std::vector<uint8_t> a, b, output;

  explicit ElementwiseOperands(Random& random)
      : rows(1 + random.below(8)), columns(1 + random.below(200)), is_one_a(random.coin()), is_one_b(random.coin()) {
    operation.is_product = random.coin();
    for (QuantizedBytes* each : {&operation.a, &operation.b, &operation.output}) {
      each->is_signed = random.coin();
      each->zero_point = static_cast<int32_t>(random.below(256)) - (each->is_signed ? 128 : 0);
      each->scale = random.number();
    }
    if (random.coin()) {
      operation.a.scale = static_cast<float>(1 + random.below(1000)) / 1000;
      operation.b.scale = operation.is_product ? static_cast<float>(1 + random.below(1000)) / 1000 : operation.a.scale;
      const float unit = operation.is_product ? operation.a.scale * operation.b.scale : operation.a.scale;
      operation.output.scale = unit * static_cast<float>(2 + 2 * random.below(operation.is_product ? 150 : 3));
    }
    for (std::vector<uint8_t>* each : {&a, &b}) {
      each->resize(rows * columns);
      for (uint8_t& byte : *each) byte = random.below(256);
    }
    output.resize(rows * columns);
  }

  // The results of a row from one column to another.
  Elements elements(int64_t row, int64_t column, int64_t end) {
    const auto place = [=](std::vector<uint8_t>& array, bool is_one) {
      return array.data() + row * columns + (is_one ? 0 : column);
    };
    return {place(a, is_one_a), place(b, is_one_b), is_one_a, is_one_b, place(output, false), end - column};
  }

  static int32_t difference(const QuantizedBytes& numbers, uint8_t byte) {
    return (numbers.is_signed ? static_cast<int8_t>(byte) : byte) - numbers.zero_point;
  }

  bool is_right(int64_t row, int64_t column) const {
    const int32_t x = difference(operation.a, a[row * columns + (is_one_a ? 0 : column)]);
    const int32_t y = difference(operation.b, b[row * columns + (is_one_b ? 0 : column)]);
    float value;
    if (operation.is_product) {
      const float scale = operation.a.scale * operation.b.scale;
      value = static_cast<float>(x * y) * scale;
    } else {
      const float first = static_cast<float>(x) * operation.a.scale, second = static_cast<float>(y) * operation.b.scale;
      value = first + second;
    }
    const float quotient = value / operation.output.scale;
    const double lowest = operation.output.is_signed ? -128 : 0;
    const double rounded = std::nearbyint(static_cast<double>(quotient)) + operation.output.zero_point;
    const double limited = std::fmin(std::fmax(rounded, lowest), lowest + 255);
    const int32_t expected = std::isnan(quotient) ? 0 : static_cast<int32_t>(limited);
    return output[row * columns + column] == static_cast<uint8_t>(expected);
  }
};

}  // namespace jquant
