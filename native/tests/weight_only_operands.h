// Random operands of weight-only products, and their results by plain loops.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "random_arrays.h"
#include "weight_only.h"

namespace jquant {

// The operands of a product of floats and weights of few bits, of so few bits themselves that every sum is exact.
struct WeightOnlyOperands {
  WeightOnlyProduct product;
  std::vector<float> a, output;
  std::vector<uint8_t> weights;
  std::vector<std::vector<uint16_t>> arrays;  // bfloat16, or pairs of bytes

  explicit WeightOnlyOperands(Random& random) {
    product.rows = random.below(4) == 0 ? random.below(60) : random.below(8);
    product.columns = random.below(80);
    product.depth = random.coin() ? random.below(600) : random.below(70);
    const int64_t layout = random.below(3);
    product.layout = static_cast<WeightOnlyProduct::Layout>(layout);
    const int bits[] = {2 << random.below(3), 4, 8};
    product.bits = bits[layout];
    const int64_t unit = product.is_depth_minor() ? 32 / product.bits : product.bits == 4 ? 4 : 1;
    product.block_size = unit * (1 + random.below(40));
    product.blocks = (product.depth + product.block_size - 1) / product.block_size;
    product.offset = static_cast<float>(random.below(257) - 128);

    a.resize(product.rows * product.depth);
    for (float& element : a) element = static_cast<float>(random.below(9) - 4);
    weights.resize(product.blocks * product.block_size * product.columns * product.bits / 8);
    for (uint8_t& byte : weights) byte = random.below(256);
    output.resize(product.rows * product.columns);
    product.a = a.data();
    product.weights = weights.data();
    product.output = output.data();
    arrays.reserve(2);  // so that none moves
    product.scale = array([&] { return random.coin() ? 0.5f : -1.0f; });
    if (random.coin()) return;
    if (product.is_depth_minor() || random.coin()) {
      product.zero_point = random.coin() ? array([&] { return static_cast<float>(random.below(128)); }) : bytes(random);
    } else {
      product.minimum = array([&] { return static_cast<float>(random.below(9) - 4); });
    }
  }

  // Floats that bfloat16 holds.
  template <class Value>
  ByBlock array(const Value& value) {
    arrays.emplace_back(product.blocks * product.columns);
    for (uint16_t& element : arrays.back()) {
      const float number = value();
      element = static_cast<uint16_t>(read<uint32_t>(&number) >> 16);
    }
    return {arrays.back().data(), Type::kBfloat16};
  }

  ByBlock bytes(Random& random) {
    arrays.emplace_back((product.blocks * product.columns + 1) / 2);
    for (uint16_t& pair : arrays.back()) pair = random.below(1 << 16);
    return {arrays.back().data(), random.coin() ? Type::kInt8 : Type::kUint8};
  }

  float element(const ByBlock& array, int64_t k, int64_t column) const {
    if (!array) return 0;
    const int64_t block = k / product.block_size;
    const int64_t index = product.is_depth_minor() ? column * product.blocks + block : block * product.columns + column;
    if (array.type == Type::kInt8) return static_cast<const int8_t*>(array.data)[index];
    if (array.type == Type::kUint8) return static_cast<const uint8_t*>(array.data)[index];
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(array.data)[index]} << 16;
    return read<float>(&bits);
  }

  int integer(int64_t k, int64_t column) const {
    if (product.layout == WeightOnlyProduct::Layout::kBytes)
      return static_cast<int8_t>(weights[k * product.columns + column]);
    const int64_t first = product.is_depth_minor() ? column * product.blocks * product.block_size * product.bits
                                                   : (k / 4 * product.columns + column) * 16;
    const int64_t bit = first + (product.is_depth_minor() ? k : k % 4) * product.bits;
    return weights[bit / 8] >> bit % 8 & ((1 << product.bits) - 1);
  }

  bool is_right(int64_t row, int64_t column) const {
    double total = 0;
    for (int64_t k = 0; k < product.depth; ++k) {
      const double difference = integer(k, column) - product.offset - element(product.zero_point, k, column);
      const double weight = difference * element(product.scale, k, column) + element(product.minimum, k, column);
      total += static_cast<double>(a[row * product.depth + k]) * weight;
    }
    return output[row * product.columns + column] == static_cast<float>(total);
  }
};

}  // namespace jquant
