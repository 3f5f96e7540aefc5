// What a product with block scales computes: its operands, as the inner loops see them. The handler fills these in and
// checks every size; the loops rely on it.
#pragma once

#include <cstdint>

#include "product.h"

namespace jquant {

// An array of floats, one for each block and column of B.
struct BlockFloats {
  const void* data = nullptr;
  Type type = Type::kFloat32;  // or kFloat16 or kBfloat16

  explicit operator bool() const { return data != nullptr; }
};

// The step `Scale` of jquant/kernels/epilogue.py: fl(value * row_scale), then fl(... + bias), each where there is an array;
// rounded once more to the type of the output.
struct FloatEpilogue {
  Broadcast<float> row_scale, bias;
  Type output_type = Type::kFloat32;  // or kFloat16 or kBfloat16
};

// The product of one matrix of a batch, followed by the epilogue. For each block g of `block_size` rows of B, in order, adds
//
//   fl(fl(S) * scale[g]), or fl(fl(fl(S) * scale[g]) + fl(fl(R) * minimum[g])) with a minimum,
//
// in float32: S is the product of the block, and R the sum of each row of A over it, less the zero points, both exact.
struct BlockProduct {
  const void* a = nullptr;  // (rows, depth), bytes
  const void* b = nullptr;  // (depth, columns), int8; or (depth / 4, columns), uint16, of four 4-bit integers each
  void* output = nullptr;   // (rows, columns)
  int64_t rows = 0, columns = 0, blocks = 0, block_size = 1;
  bool a_is_unsigned = false, b_is_words = false;
  bool b_are_codes = false;               // words, of codes of float4_e2m1fn, each of which stands for twice its float
  int32_t b_offset = 0;                   // how much more B stores than its integers, from -128 to 128
  Broadcast<uint8_t> a_zero_point;        // int8 or uint8, as A
  const uint8_t* b_zero_point = nullptr;  // (blocks, columns), or null for 0
  bool b_zero_point_is_unsigned = false;
  BlockFloats scale, minimum;
  FloatEpilogue epilogue;

  int64_t depth() const { return blocks * block_size; }
};

}  // namespace jquant
