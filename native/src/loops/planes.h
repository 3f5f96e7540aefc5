// A channel of an image as the windows read it: copies of its rows, with padding, in which windows that follow each other
// are a byte apart. So the elements of a vector of windows are loaded at once, whatever the strides and dilations.
#pragma once

#include "../convolution.h"
#include "image_rows.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// The copies that the elements of a window need along one dimension. If they may be shared, elements whose distance is a
// multiple of the stride have the same copy, in which they are `shift` windows apart.
class Copies {
 public:
  Copies(const WindowsAlong& dimension, bool may_be_shared)
      : stride_(dimension.stride), dilation_(dimension.dilation), period_(dimension.size) {
    if (may_be_shared) period_ = stride_ / greatest_common_divisor(stride_, dilation_);
    count_ = smaller(period_, dimension.size);
    size_ = dimension.count + shift(dimension.size - 1);
  }

  int64_t count() const { return count_; }
  int64_t size() const { return size_; }  // in windows
  int64_t of(int64_t element) const { return element % period_; }
  int64_t shift(int64_t element) const { return element / period_ * period_ * dilation_ / stride_; }

 private:
  static int64_t greatest_common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
      const int64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }

  int64_t stride_, dilation_, period_, count_, size_;
};

// The copies of a channel at one depth, from window row `first_row` on.
//
// If `are_columns_shared`, a row of a copy is longer than there are windows in it, and fewer bytes are copied; otherwise the
// rows of windows follow each other without a gap.
class Planes {
 public:
  Planes(const Image& image, int64_t first_row, int64_t rows, bool are_columns_shared)
      : height_(image.height),
        width_(image.width),
        first_row_(first_row),
        rows_(height_, true),
        columns_(width_, are_columns_shared),
        row_count_(rows_.size() - height_.count + rows) {}

  int64_t pitch() const { return columns_.size(); }
  int64_t bytes() const { return rows_.count() * columns_.count() * bytes_of_copy(); }

  // Where the element of the first window is in the copies.
  int64_t offset(int64_t row, int64_t column) const {
    return (rows_.of(row) * columns_.count() + columns_.of(column)) * bytes_of_copy() + rows_.shift(row) * pitch() +
           columns_.shift(column);
  }

  // Copies a channel, or only padding where `channel` is null.
  JQUANT_INLINE void copy(const char* channel, uint8_t padding, char* target) const {
    for (int64_t i = 0; i < rows_.count(); ++i) {
      for (int64_t j = 0; j < columns_.count(); ++j, target += bytes_of_copy()) {
        const int64_t top = height_.place(first_row_, i), left = width_.place(0, j);
        if (pitch() == 1 && width_.image == 1) {
          const SteppedRow column(top, height_.stride, height_.image, row_count_);
          column.copy(left == 0 ? channel : nullptr, padding, target);
          continue;
        }
        const SteppedRow row(left, width_.stride, width_.image, pitch());
        for (int64_t r = 0; r < row_count_; ++r) {
          const int64_t place = top + r * height_.stride;
          const bool is_inside = channel != nullptr && height_.contains(place);
          row.copy(is_inside ? channel + place * width_.image : nullptr, padding, target + r * pitch());
        }
      }
    }
  }

 private:
  int64_t bytes_of_copy() const { return row_count_ * pitch(); }

  const WindowsAlong height_, width_;
  const int64_t first_row_;
  const Copies rows_, columns_;
  const int64_t row_count_;
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
