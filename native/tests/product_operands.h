// Random integer products, and their results by plain loops.
#pragma once

#include "random_arrays.h"

namespace jquant {

// The operands of a product, and its epilogue.
struct ProductOperands {
  Product product;
  std::vector<uint8_t> a, b, output;
  Arrays<int32_t> integers;
  Arrays<float> floats;

  explicit ProductOperands(Random& random) {
    const int64_t sizes[] = {0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 97, 150};
    const auto any_size = [&] { return random.coin() ? sizes[random.below(13)] : random.below(70); };
    product.rows = any_size();
    product.columns = any_size();
    product.depth = any_size();
    product.b_stride = product.output_stride = product.columns;
    product.a_is_unsigned = random.coin();
    product.b_is_unsigned = random.coin();
    product.is_depth_minor = random.coin();
    a.resize(product.rows * product.depth);
    b.resize(product.columns * product.depth);
    const bool is_extreme = random.below(4) == 0;
    for (std::vector<uint8_t>* bytes : {&a, &b})
      for (uint8_t& byte : *bytes) byte = is_extreme ? (random.coin() ? 0x80 : 0x7f) : random.below(256);
    product.a = a.data();
    product.b = b.data();

    Epilogue& epilogue = product.epilogue;
    const auto integer = [&] { return random.integer(); };
    const auto number = [&] { return random.number(); };
    if (random.coin()) product.a_zero_point = integers.draw(random, product.rows, 1, integer);
    if (random.coin()) product.b_zero_point = integers.draw(random, 1, product.columns, integer);
    if (random.coin()) add_block_sums(random);
    if (random.coin()) epilogue.integer_bias = integers.draw(random, product.rows, product.columns, integer);
    epilogue.scaling = static_cast<Epilogue::Scaling>(random.below(3));
    if (epilogue.scaling == Epilogue::Scaling::kDequantize) {
      epilogue.row_scale = floats.draw(random, product.rows, 1, number);
      epilogue.column_scale = floats.draw(random, product.rows, product.columns, number);
      if (random.coin()) epilogue.bias = floats.draw(random, product.rows, product.columns, number);
      const Type types[] = {Type::kFloat32, Type::kFloat16, Type::kBfloat16};
      epilogue.output_type = types[random.below(3)];
    } else if (epilogue.scaling == Epilogue::Scaling::kRequantize) {
      epilogue.output_type = random.coin() ? Type::kInt8 : Type::kUint8;
      epilogue.column_scale = floats.draw(random, product.rows, product.columns, number);
      const int lowest = epilogue.output_type == Type::kInt8 ? -128 : 0;
      const auto zero_point = [&] { return static_cast<int32_t>(lowest + random.below(256)); };
      if (random.coin()) epilogue.zero_point = integers.draw(random, product.rows, 1, zero_point);
    }
    output.resize(product.rows * product.columns * bytes_of(product.epilogue.output_type));
    product.output = output.data();
  }

  // The sums of the columns of B, in two blocks.
  void add_block_sums(Random& random) {
    std::vector<int32_t> sums(2 * product.columns);
    for (int64_t column = 0; column < product.columns; ++column) {
      sums[column] = random.integer();
      sums[product.columns + column] = -sums[column];
      for (int64_t k = 0; k < product.depth; ++k) sums[column] += element_of_b(k, column);
    }
    product.block_sums = integers.keep(std::move(sums));
    product.blocks = 2;
  }

  int32_t element_of_a(int64_t row, int64_t k) const {
    const uint8_t byte = a[row * product.depth + k];
    return product.a_is_unsigned ? byte : static_cast<int8_t>(byte);
  }

  int32_t element_of_b(int64_t k, int64_t column) const {
    const uint8_t byte = b[product.is_depth_minor ? column * product.depth + k : k * product.columns + column];
    return product.b_is_unsigned ? byte : static_cast<int8_t>(byte);
  }

  // Whether the weights may be multiplied where they are.
  bool may_be_few_rows() const { return product.is_depth_minor && product.rows <= kMostFewRows; }

  // Whether an element of the output is what the formulas of product.h say. NaN equals NaN.
  bool is_right(int64_t row, int64_t column) const {
    const Epilogue& epilogue = product.epilogue;
    const auto element = [&](const auto& array) { return element_of(array, row, column); };
    const uint8_t* result = output.data() + (row * product.columns + column) * bytes_of(product.epilogue.output_type);
    const int32_t a_zero_point = element(product.a_zero_point), b_zero_point = element(product.b_zero_point);
    int32_t total = element(epilogue.integer_bias);
    for (int64_t k = 0; k < product.depth; ++k)
      total += (element_of_a(row, k) - a_zero_point) * (element_of_b(k, column) - b_zero_point);
    return is_result(epilogue, row, column, total, result);
  }
};

}  // namespace jquant
