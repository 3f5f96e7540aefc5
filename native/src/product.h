// What a product computes: its operands and its epilogue, as the inner loops see them. The handlers fill these in and check
// every size; the loops rely on it.
#pragma once

#include <cstdint>

namespace jquant {

// An array that broadcasts against the rows and columns of a product: a stride is 0 where there is one element for all.
// Columns are adjacent: `column_stride` is 0 or 1.
template <class Element>
struct Broadcast {
  const Element* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;

  explicit operator bool() const { return data != nullptr; }
};

enum class Type { kInt32, kInt8, kUint8, kFloat32, kFloat16, kBfloat16 };

// The steps of jquant/kernels/epilogue.py that follow a sum, in their order: bias, scaling.
struct Epilogue {
  enum class Scaling {
    kNone,        // the integers themselves
    kDequantize,  // fl(sum * fl(row_scale * column_scale)), then fl(... + bias), and rounded to the type of the output
    kRequantize,  // sat(rne(fl(sum * column_scale)) + zero_point)
  };

  Broadcast<int32_t> integer_bias;
  Scaling scaling = Scaling::kNone;
  Broadcast<float> row_scale;     // of kDequantize; one for each row, or for all
  Broadcast<float> column_scale;  // of kDequantize; the multiplier of kRequantize
  Broadcast<float> bias;
  Broadcast<int32_t> zero_point;  // of kRequantize, within the type of the output; one for each row, or for all
  Type output_type = Type::kInt32;
};

// (A - a_zero_point) @ (B - b_zero_point) of one matrix of a batch, followed by the epilogue.
struct Product {
  const void* a = nullptr;  // (rows, depth), bytes
  const void* b = nullptr;  // (columns, depth) if `is_depth_minor`, otherwise (depth, columns), bytes
  void* output = nullptr;   // (rows, columns)
  int64_t rows = 0, columns = 0, depth = 0;
  int64_t b_stride = 0;                 // from one row of B to the next, unless it is depth minor
  int64_t output_stride = 0;            // from one row of the output to the next, in elements
  Broadcast<int32_t> a_zero_point;      // by row
  Broadcast<int32_t> b_zero_point;      // by column
  const int32_t* block_sums = nullptr;  // (blocks, columns), which add up to the sums of the columns of B; or null
  int64_t blocks = 0;
  bool a_is_unsigned = false, b_is_unsigned = false, is_depth_minor = false;
  Epilogue epilogue;
};

// The most rows of A that count as few, for which weights in the order of the sum are not packed.
constexpr int64_t kMostFewRows = 16;

// A part of a matrix: rows [first_row, end_row) and columns [first_column, end_column).
struct Part {
  int64_t first_row, end_row, first_column, end_column;
  bool are_columns_prepared = false;  // in the memory to work in, by an earlier part with the same columns
};

}  // namespace jquant
