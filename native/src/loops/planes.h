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
  // Of the copies of a channel, and of memory beyond them that vectors may reach into.
  int64_t bytes() const { return rounded_up(copy_count() * bytes_of_copy(), kBytes) + kBytes; }
  int64_t scratch_bytes() const {
    return are_masked() ? rounded_up(columns_.count() * bytes_of_mask(), kBytes) + kBytes : 0;
  }

  // Where the element of the first window is in the copies.
  int64_t offset(int64_t row, int64_t column) const {
    return (rows_.of(row) * columns_.count() + columns_.of(column)) * bytes_of_copy() + rows_.shift(row) * pitch() +
           columns_.shift(column);
  }

  // `scratch` lasts as long as channels are copied.
  void prepare(char* scratch) {
    masks_ = scratch;
    if (!are_masked()) return;
    __builtin_memset(masks_, 0, scratch_bytes());
    const RowOfPixels rows = rows_of(0);
    for (int64_t j = 0; j < columns_.count(); ++j) {
      const RowOfPixels row = pixels_of(j);
      for (int64_t r = are_rows_joined() ? rows.begin : 0; r < (are_rows_joined() ? rows.end : 1); ++r)
        fill_bytes(masks_ + j * bytes_of_mask() + r * pitch() + row.begin, 0xff, row.end - row.begin);
    }
  }

  // Copies a channel of the image, or only padding where `channel` is null.
  JQUANT_INLINE void copy(const Image& image, const char* channel, char* target) const {
    if (channel == nullptr) {
      fill_bytes(target, image.padding, copy_count() * bytes_of_copy());
    } else if (pitch() == 1 && width_.image == 1) {
      copy_column(image, channel, target);
    } else if (!are_masked() || !are_around(image, channel)) {
      copy_rows(image, channel, target);
    } else if (are_rows_joined()) {
      copy_joined(image, channel, target);
    } else if (width_.stride == 1) {
      copy_masked_rows<1>(image, channel, target);
    } else {
      copy_masked_rows<2>(image, channel, target);
    }
  }

 private:
  int64_t copy_count() const { return rows_.count() * columns_.count(); }
  int64_t bytes_of_copy() const { return row_count_ * pitch(); }
  RowOfPixels rows_of(int64_t i) const { return {height_.place(first_row_, i), height_.stride, height_.image, row_count_}; }
  RowOfPixels pixels_of(int64_t j) const { return {width_.place(0, j), width_.stride, width_.image, pitch()}; }

  // Whether masks say what is padding, so that whole vectors are copied: of all rows as one if those of a copy follow each
  // other as they do in the image, otherwise of each row.
  bool are_masked() const { return width_.stride <= 2; }
  int64_t bytes_of_mask() const {
    return are_rows_joined() ? bytes_of_copy() : rounded_up(pitch(), int64_t{sizeof(Sixteen)});
  }
  bool are_rows_joined() const { return height_.stride == 1 && width_.stride == 1 && pitch() == width_.image; }

  // Whether there are as many bytes of the image around a channel as vectors of its copies are read from.
  JQUANT_INLINE bool are_around(const Image& image, const char* channel) const {
    const int64_t first_row = are_rows_joined() ? height_.place(first_row_, 0) : 0;
    const int64_t last_row = are_rows_joined() ? first_row : height_.image - 1;
    const int64_t bytes = are_rows_joined() ? rounded_up(bytes_of_copy(), kBytes) : width_.stride * bytes_of_mask();
    return channel + first_row * width_.image + width_.place(0, 0) >= image.begin &&
           channel + last_row * width_.image + width_.place(0, columns_.count() - 1) + bytes <= image.end;
  }

  JQUANT_INLINE void copy_joined(const Image& image, const char* channel, char* target) const {
    const char* masks = masks_;
    const Words padding = splat_word(0x01010101u * image.padding);
    for (int64_t j = 0; j < columns_.count(); ++j, target += bytes_of_copy(), masks += bytes_of_mask()) {
      const char* const source = channel + height_.place(first_row_, 0) * width_.image + width_.place(0, j);
      for (int64_t i = 0; i < bytes_of_copy(); i += kBytes) {
        const Words mask = load<Words>(masks + i);
        store(target + i, (load<Words>(source + i) & mask) | (padding & ~mask));
      }
    }
  }

  // In the order of memory, because the last vector of a row reaches into the next row.
  template <int kStride>
  JQUANT_INLINE void copy_masked_rows(const Image& image, const char* channel, char* target) const {
    constexpr int64_t kSize = sizeof(Sixteen);
    const Sixteen padding = Sixteen{} + image.padding;
    const int64_t pitch = this->pitch(), step = height_.stride * width_.image;
    for (int64_t i = 0; i < rows_.count(); ++i) {
      const RowOfPixels rows = rows_of(i);
      for (int64_t j = 0; j < columns_.count(); ++j) {
        const char* const masks = masks_ + j * bytes_of_mask();
        const char* source = channel + rows.first * width_.image + width_.place(0, j) + rows.begin * step;
        fill_bytes(target, image.padding, rows.begin * pitch);
        target += rows.begin * pitch;
        for (int64_t r = rows.begin; r < rows.end; ++r, source += step, target += pitch) {
          for (int64_t k = 0; k < pitch; k += kSize) {
            const Sixteen mask = load<Sixteen>(masks + k);
            store(target + k, (strided_bytes<kStride>(source + kStride * k) & mask) | (padding & ~mask));
          }
        }
        fill_bytes(target, image.padding, (rows.count - rows.end) * pitch);
        target += (rows.count - rows.end) * pitch;
      }
    }
  }

  JQUANT_INLINE void copy_column(const Image& image, const char* channel, char* target) const {
    for (int64_t i = 0; i < rows_.count(); ++i) {
      for (int64_t j = 0; j < columns_.count(); ++j, target += bytes_of_copy()) {
        const RowOfPixels pixel = pixels_of(j);
        rows_of(i).copy(pixel.begin < pixel.end ? channel : nullptr, 1, image.padding, target);
      }
    }
  }

  JQUANT_INLINE void copy_rows(const Image& image, const char* channel, char* target) const {
    for (int64_t i = 0; i < rows_.count(); ++i) {
      const RowOfPixels rows = rows_of(i);
      for (int64_t j = 0; j < columns_.count(); ++j, target += bytes_of_copy()) {
        const RowOfPixels row = pixels_of(j);
        rows.fill_edges(pitch(), image.padding, target);
        for (int64_t r = rows.begin; r < rows.end; ++r)
          row.copy(channel + (rows.first + r * rows.step) * width_.image, 1, image.padding, target + r * pitch());
      }
    }
  }

  const WindowsAlong height_, width_;
  const int64_t first_row_;
  const Copies rows_, columns_;
  const int64_t row_count_;
  char* masks_ = nullptr;
};

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
