// Random products with block scales, and their results by plain loops.
#pragma once

#include "block_product.h"
#include "random_arrays.h"

namespace jquant {

struct BlockOperands {
  BlockProduct product;
  std::vector<uint8_t> a, b, output;
  Arrays<uint8_t> bytes;
  Arrays<uint16_t> halves;
  Arrays<float> floats;

  explicit BlockOperands(Random& random) {
    const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 65, 97, 150};
    const int64_t block_sizes[] = {1, 2, 3, 4, 7, 8, 12, 16, 20, 31, 32, 33, 60, 64, 68, 130};
    product.rows = sizes[random.below(16)];
    product.columns = random.coin() ? sizes[random.below(16)] : random.below(300);
    product.blocks = random.below(4);
    product.b_is_words = random.coin();
    product.b_are_codes = product.b_is_words && random.coin();
    product.block_size = block_sizes[random.below(16)];
    if (product.b_is_words) product.block_size = (product.block_size + 3) / 4 * 4;
    product.a_is_unsigned = random.coin();
    product.b_offset = static_cast<int32_t>(random.coin() ? 0 : product.b_is_words ? 8 : -128);
    a.resize(product.rows * product.depth());
    b.resize(product.columns * product.depth() / (product.b_is_words ? 2 : 1));
    const bool is_extreme = random.below(4) == 0;
    for (std::vector<uint8_t>* matrix : {&a, &b})
      for (uint8_t& byte : *matrix) byte = is_extreme ? (random.coin() ? 0x80 : 0x7f) : random.below(256);
    product.a = a.data();
    product.b = b.data();
    const auto byte = [&] { return static_cast<uint8_t>(random.below(256)); };
    if (random.coin()) product.a_zero_point = bytes.draw(random, product.rows, 1, byte);
    product.scale = floats_of_blocks(random);
    const int64_t correction = random.below(3);
    if (correction == 1) product.minimum = floats_of_blocks(random);
    if (correction == 2) {
      std::vector<uint8_t> zero_points(product.blocks * product.columns);
      for (uint8_t& zero_point : zero_points) zero_point = byte();
      product.b_zero_point = bytes.keep(std::move(zero_points));
      product.b_zero_point_is_unsigned = random.coin();
    }
    const auto number = [&] { return random.number(); };
    if (random.coin()) product.epilogue.row_scale = floats.draw(random, product.rows, product.columns, number);
    if (random.coin()) product.epilogue.bias = floats.draw(random, product.rows, product.columns, number);
    product.epilogue.output_type = type_of_floats(random);
    output.resize(product.rows * product.columns * bytes_of(product.epilogue.output_type));
    product.output = output.data();
  }

  static Type type_of_floats(Random& random) {
    const Type types[] = {Type::kFloat32, Type::kFloat16, Type::kBfloat16};
    return types[random.below(3)];
  }

  BlockFloats floats_of_blocks(Random& random) {
    const Type type = type_of_floats(random);
    const int64_t size = product.blocks * product.columns;
    if (type == Type::kFloat32) {
      std::vector<float> array(size);
      for (float& element : array) element = random.number();
      return {floats.keep(std::move(array)), type};
    }
    std::vector<uint16_t> array(size);
    for (uint16_t& element : array) element = static_cast<uint16_t>(random.below(1 << 16));
    return {halves.keep(std::move(array)), type};
  }

  static float element_of_floats(const BlockFloats& array, int64_t index) {
    if (array.type == Type::kFloat32) return static_cast<const float*>(array.data)[index];
    const uint16_t bits = static_cast<const uint16_t*>(array.data)[index];
    if (array.type == Type::kBfloat16) {
      const uint32_t wide = static_cast<uint32_t>(bits) << 16;
      return read<float>(&wide);
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                             : exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction, exponent - 25);
    return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
  }

  int32_t element_of_a(int64_t row, int64_t k) const {
    const uint8_t byte = a[row * product.depth() + k], zero_point = element_of(product.a_zero_point, row, 0);
    return product.a_is_unsigned ? byte - zero_point : static_cast<int8_t>(byte) - static_cast<int8_t>(zero_point);
  }

  int32_t element_of_b(int64_t k, int64_t column) const {
    const int64_t index = (product.b_is_words ? k / 4 : k) * product.columns + column;
    if (!product.b_is_words) return static_cast<int8_t>(b[index]) - product.b_offset;
    const int32_t stored = read<uint16_t>(b.data() + 2 * index) >> (4 * (k % 4)) & 15;
    if (!product.b_are_codes) return stored - product.b_offset;
    const int32_t doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
    return (stored & 8 ? -doubled[stored & 7] : doubled[stored]) - product.b_offset;
  }

  int32_t zero_point_of_b(int64_t index) const {
    if (product.b_zero_point == nullptr) return 0;
    const uint8_t byte = product.b_zero_point[index];
    return product.b_zero_point_is_unsigned ? byte : static_cast<int8_t>(byte);
  }

  // Whether an element of the output is what the formulas of block_product.h say.
  bool is_right(int64_t row, int64_t column) const {
    float total = product.blocks == 0 ? 0.0f : -0.0f;
    for (int64_t block = 0; block < product.blocks; ++block) {
      const int64_t index = block * product.columns + column;
      int32_t sum = 0, row_sum = 0;
      for (int64_t k = block * product.block_size; k < (block + 1) * product.block_size; ++k) {
        sum += element_of_a(row, k) * (element_of_b(k, column) - zero_point_of_b(index));
        row_sum += element_of_a(row, k);
      }
      float term = static_cast<float>(sum) * element_of_floats(product.scale, index);
      if (product.minimum) term = term + static_cast<float>(row_sum) * element_of_floats(product.minimum, index);
      total = total + term;
    }
    const FloatEpilogue& epilogue = product.epilogue;
    if (epilogue.row_scale) total = total * element_of(epilogue.row_scale, row, column);
    if (epilogue.bias) total = total + element_of(epilogue.bias, row, column);
    const int64_t place = row * product.columns + column;
    return is_nearest(output.data() + place * bytes_of(epilogue.output_type), epilogue.output_type, total);
  }
};

}  // namespace jquant
