// The correction of sums of products for zero points.
//
// With signed bytes x and y, which are those of A and B less 128 if these are unsigned, and their zero points s and t,
//   sum (x - s) (y - t) = sum x y - s * sum y - t * (sum x - depth * s).
// What belongs to rows alone is where a sum starts; the rest are products of an integer for each row and one for each
// column.
#pragma once

#include "../product.h"
#include "epilogue.h"
#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

inline bool has_a_zero_point(const Product& product) { return product.a_zero_point || product.a_is_unsigned; }

// The zero points of a part, and the sums of its columns, in memory that lasts as long as the part is computed.
class ZeroPoints {
 public:
  static int64_t scratch_bytes(int64_t columns) { return 2 * rounded_up(columns, kLanes) * int64_t{sizeof(int32_t)}; }

  JQUANT_INLINE ZeroPoints(const Product& product, const Part& part, char* scratch)
      : product_(product),
        b_shift_(product.b_is_unsigned ? 128 : 0),
        is_by_column_(product.b_zero_point.column_stride != 0),
        b_zero_point_((product.b_zero_point && !is_by_column_ ? *product.b_zero_point.data : 0) - b_shift_),
        column_sums_(reinterpret_cast<int32_t*>(scratch)),
        b_zero_points_(column_sums_ + rounded_up(part.end_column - part.first_column, kLanes)) {
    const int64_t count = part.end_column - part.first_column;
    if (is_by_column_)
      for (int64_t i = 0; i < count; ++i) b_zero_points_[i] = product.b_zero_point.data[part.first_column + i] - b_shift_;
    if (!product.block_sums || !has_a_zero_point(product)) return;
    for (int64_t i = 0; i < count; ++i) column_sums_[i] = -b_shift_ * static_cast<int32_t>(product.depth);
    for (int64_t block = 0; block < product.blocks; ++block)
      for (int64_t i = 0; i < count; ++i)
        column_sums_[i] += product.block_sums[block * product.columns + part.first_column + i];
  }

  // Where the sums of the columns belong that are not known ahead; null if they are, or if nothing needs them.
  JQUANT_INLINE int32_t* unknown_column_sums() const {
    return has_a_zero_point(product_) && !product_.block_sums ? column_sums_ : nullptr;
  }

  // The terms of a tile that begins at `row`, with the sums of its rows, and where its sums start.
  JQUANT_INLINE Terms terms(int64_t row, int rows, const int32_t* row_sums, int32_t* starts) const {
    Terms terms;
    const bool has_zero_point = has_a_zero_point(product_);
    const int by_row = has_zero_point ? terms.count++ : -1, by_column = is_by_column_ ? terms.count++ : -1;
    for (int i = 0; i < rows; ++i) {
      const int32_t given =
          product_.a_zero_point ? product_.a_zero_point.data[(row + i) * product_.a_zero_point.row_stride] : 0;
      const int32_t a_zero_point = given - (product_.a_is_unsigned ? 128 : 0);
      const int32_t difference = row_sums[i] - static_cast<int32_t>(product_.depth) * a_zero_point;
      starts[i] = -kWeightOffset * row_sums[i] - b_zero_point_ * difference * !is_by_column_;
      if (by_row >= 0) terms.rows[by_row][i] = a_zero_point;
      if (by_column >= 0) terms.rows[by_column][i] = difference;
    }
    if (by_row >= 0) terms.columns[by_row] = column_sums_;
    if (by_column >= 0) terms.columns[by_column] = b_zero_points_;
    return terms;
  }

 private:
  const Product& product_;
  const int32_t b_shift_;
  const bool is_by_column_;
  const int32_t b_zero_point_;
  int32_t* const column_sums_;
  int32_t* const b_zero_points_;
};

// The terms of a tile that begins `columns` after those that `terms` are for.
JQUANT_INLINE Terms beginning_at(Terms terms, int64_t columns) {
  for (int i = 0; i < terms.count; ++i) terms.columns[i] += columns;
  return terms;
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
