// A convolution as a product, one of whose factors is read from an image, window by window: nothing of the size of all
// windows is written to memory.
#pragma once

#include "../convolution.h"
#include "image_rows.h"
#include "planes.h"
#include "product.h"
#include "window_place.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// The windows of images with the channels last, one after another from `first` on: rows of A.
class WindowRows {
 public:
  WindowRows(const Convolution& convolution, int64_t first)
      : image_(convolution.image), channels_(convolution.channels), place_(image_, first) {}

  // Copies the next window, as `copy_flipped` does.
  JQUANT_INLINE Ints operator()(uint32_t flip, char* copy) {
    Ints sum = {};
    const int64_t depth = image_.window_size() * channels_;
    if (channels_ % kBytes == 0) {
      visit_pixels(copy, [&](const char* source, int64_t bytes, char* target) {
        sum += source != nullptr ? copy_flipped(source, bytes, flip, target) : fill_flipped(bytes, flip, target);
      });
    } else {
      // A vector may have bytes of several pixels.
      visit_pixels(copy, [&](const char* source, int64_t bytes, char* target) {
        if (source != nullptr) {
          copy_bytes(target, source, bytes);
        } else {
          fill_bytes(target, image_.padding, bytes);
        }
      });
      sum = copy_flipped(copy, depth, flip, copy);
    }
    place_.advance();
    return sum;
  }

 private:
  // Calls `visit(source, bytes, target)` for the pixels of the window, several at once where they lie side by side, which
  // are to be written to `target`; `source` is null for padding.
  template <class Visit>
  JQUANT_INLINE void visit_pixels(char* target, Visit visit) const {
    const WindowsAlong &depth = image_.depth, &height = image_.height, &width = image_.width;
    const int64_t first = width.place(place_.x, 0), bytes = width.size * channels_;
    const bool are_together = width.size == 1 || (width.dilation == 1 && channels_ == image_.channels);
    const bool are_inside = first >= 0 && first + (width.size - 1) * width.dilation < width.image;
    for (int64_t i = 0; i < depth.size; ++i) {
      const int64_t z = depth.place(place_.z, i);
      for (int64_t j = 0; j < height.size; ++j, target += bytes) {
        const int64_t y = height.place(place_.y, j);
        if (!depth.contains(z) || !height.contains(y)) {
          visit(nullptr, bytes, target);
          continue;
        }
        const char* const row = image_.row(place_.number, z, y);
        if (are_together && are_inside) {
          visit(row + first * image_.channels, bytes, target);
          continue;
        }
        for (int64_t k = 0; k < width.size; ++k) {
          const int64_t x = first + k * width.dilation;
          visit(width.contains(x) ? row + x * image_.channels : nullptr, channels_, target + k * channels_);
        }
      }
    }
  }

  JQUANT_INLINE Ints fill_flipped(int64_t bytes, uint32_t flip, char* target) const {
    const Words words = splat_word(0x01010101u * image_.padding) ^ flip;
    const Ints of_vector = dot4(Ints{}, weights_of(splat_word(0x01010101)), activations_of(words));
    for (int64_t i = 0; i < bytes; i += kBytes) store(target + i, words);
    return of_vector * static_cast<int32_t>(bytes / kBytes);
  }

  const Image& image_;
  const int64_t channels_;
  WindowPlace place_;  // of the next window
};

inline void multiply_window_rows(const Convolution& convolution, const Part& part, char* scratch) {
  const Product& product = convolution.product;
  const auto pack_columns = [&](char* panels) { pack_weights(product, part, panels); };
  multiply_in_panels(product, part, scratch, pack_columns, WindowRows(convolution, part.first_row));
}

inline int64_t scratch_of_window_rows(const Convolution& convolution, const Part& part) {
  return scratch_of_panels(convolution.product, part);
}

// The windows at one depth of an image with the channels second, some of them: columns of B.
class WindowColumns {
 public:
  WindowColumns(const Convolution& convolution, const Part& part)
      : convolution_(convolution),
        part_(part),
        first_row_(part.first_column / convolution.image.width.count),
        planes_(convolution.image, first_row_, (part.end_column - 1) / convolution.image.width.count + 1 - first_row_,
                false),
        are_copied_(!convolution.image.depth.are_elements() || !convolution.image.height.are_elements() ||
                    !convolution.image.width.are_elements()) {}

  int64_t scratch_bytes() const {
    return are_copied_ ? offset_bytes() + planes_.scratch_bytes() + kKeptChannels * planes_.bytes() : 0;
  }

  void pack(char* panels, char* scratch) {
    auto* const offsets = reinterpret_cast<int64_t*>(scratch);
    char* const copies = scratch + offset_bytes() + planes_.scratch_bytes();
    const WindowsAlong &depth = convolution_.image.depth, &height = convolution_.image.height;
    const WindowsAlong& width = convolution_.image.width;
    const int64_t columns = part_.end_column - part_.first_column, panel_bytes = panel_bytes_of(convolution_.product);
    const int64_t first = part_.first_column - first_row_ * width.count;
    const uint32_t flip = flip_of_weights(convolution_.product.b_is_unsigned);
    RowsOfWord rows;
    int count = 0, kept = 0;
    if (are_copied_) {
      planes_.prepare(scratch + offset_bytes());
      int64_t* offset = offsets;
      for (int64_t j = 0; j < height.size; ++j)
        for (int64_t k = 0; k < width.size; ++k) *offset++ = planes_.offset(j, k) + first;
    }
    const auto add = [&](const char* row) {
      rows[count++] = row;
      if (count < kWord) return;
      const int64_t readable = are_copied_ ? columns + kBytes : columns;
      pack_word(rows, columns, readable, flip, panels, panel_bytes);
      panels += kWord * kLanes;
      count = 0;
    };
    for (int64_t channel = 0; channel < convolution_.channels; ++channel) {
      for (int64_t i = 0; i < depth.size; ++i) {
        const int64_t z = depth.place(convolution_.image.window_depth, i);
        const char* slice = convolution_.image.data + (channel * depth.image + z) * height.image * width.image;
        if (!are_copied_) {
          add(slice + part_.first_column);
          continue;
        }
        char* const copy = copies + kept * planes_.bytes();
        planes_.copy(convolution_.image, depth.contains(z) ? slice : nullptr, copy);
        for (int64_t j = 0; j < height.size * width.size; ++j) add(copy + offsets[j]);
        kept = (kept + 1) % kKeptChannels;
      }
    }
    while (count > 0) add(nullptr);
  }

 private:
  static constexpr int kKeptChannels = kWord;  // which a word may be from

  int64_t offset_bytes() const {
    return rounded_up(convolution_.image.height.size * convolution_.image.width.size * int64_t{sizeof(int64_t)}, kBytes);
  }

  const Convolution& convolution_;
  const Part part_;
  const int64_t first_row_;
  Planes planes_;
  const bool are_copied_;
};

inline void multiply_window_columns(const Convolution& convolution, const Part& part, char* scratch) {
  const Product& product = convolution.product;
  WindowColumns windows(convolution, part);
  char* copies = scratch + rounded_up(scratch_of_panels(product, part), kBytes);
  const auto pack_columns = [&](char* panels) { windows.pack(panels, copies); };
  multiply_in_panels(product, part, scratch, pack_columns, StoredRows(product, part.first_row));
}

inline int64_t scratch_of_window_columns(const Convolution& convolution, const Part& part) {
  return rounded_up(scratch_of_panels(convolution.product, part), kBytes) + WindowColumns(convolution, part).scratch_bytes();
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
