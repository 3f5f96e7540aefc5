// Depthwise convolutions, whose filters have one channel: four elements of a window at a time are multiplied, for a vector
// of channels or of windows side by side.
//
// With signed bytes x and y, which are those of the image and of a filter less 128 if these are unsigned, and their zero
// points s and t,
//   sum (x - s) (y - t) = sum x y - t * sum x - s * sum y + elements * s * t.
// The image takes the place of the weights of a product, so that their offset belongs to what does not depend on the window.
#pragma once

#include "../convolution.h"
#include "epilogue.h"
#include "planes.h"
#include "product.h"
#include "window_place.h"
#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// Some filters, packed into panels: the words of a vector of filters, one after another.
class DepthwiseFilters {
 public:
  // Filters from `first` on. If there are enough, the last vector has as many as the others, some of which both have.
  DepthwiseFilters(const DepthwiseConvolution& convolution, int64_t first, int64_t count)
      : convolution_(convolution), first_(first), count_(count) {}

  int64_t words() const { return (size() + kWord - 1) / kWord; }
  int64_t vectors() const { return (count_ + kLanes - 1) / kLanes; }
  int64_t scratch_bytes() const {
    return rounded_up(count_, kPartUnit) / kLanes * (panel_bytes() + 2 * kBytes) + panel_bytes();
  }

  // The first filter of a vector, counted from that of all.
  int64_t first_of(int64_t vector) const { return smaller(vector * kLanes, count_ < kLanes ? 0 : count_ - kLanes); }

  void pack(char* scratch) {
    panels_ = scratch;
    starts_ = scratch + (rounded_up(count_, kPartUnit) / kLanes + 1) * panel_bytes();
    zero_points_ = starts_ + vectors() * kBytes;
    const uint32_t flip = flip_of_activations(convolution_.are_filters_unsigned);
    for (int64_t vector = 0; vector < vectors(); ++vector) {
      pack_vector(vector, flip, panels_ + vector * panel_bytes());
      prepare_zero_points(vector);
    }
  }

  JQUANT_INLINE Words of_vector(int64_t vector, int64_t word) const {
    return load<Words>(panels_ + vector * panel_bytes() + word * kBytes);
  }
  // The same of one filter, in all lanes.
  JQUANT_INLINE Words of_filter(int64_t filter, int64_t word) const {
    return splat_word(element_of<uint32_t>(panels_ + word * kBytes, panel_bytes(), filter));
  }
  int32_t start_of(int64_t filter) const { return element_of<int32_t>(starts_, kBytes, filter); }
  int32_t zero_point_of(int64_t filter) const { return element_of<int32_t>(zero_points_, kBytes, filter); }
  JQUANT_INLINE Ints start(int64_t vector) const { return load<Ints>(starts_ + vector * kBytes); }
  JQUANT_INLINE Ints zero_point(int64_t vector) const { return load<Ints>(zero_points_ + vector * kBytes); }

 private:
  int64_t size() const { return convolution_.image.window_size(); }
  int64_t panel_bytes() const { return rounded_up(size(), kBytes) * kLanes; }

  // What belongs to a filter, out of vectors that are `stride` bytes apart.
  template <class Element>
  JQUANT_INLINE Element element_of(const char* vectors, int64_t stride, int64_t filter) const {
    const int64_t vector = filter / kLanes;
    return load<Element>(vectors + vector * stride + (filter - first_of(vector)) * int64_t{sizeof(Element)});
  }

  JQUANT_INLINE void pack_vector(int64_t vector, uint32_t flip, char* panel) const {
    const int64_t first = first_of(vector), count = smaller(count_, kLanes);
    const char* filters = convolution_.filters;
    if (!convolution_.are_filters_last) {
      pack_panel(filters + (first_ + first) * size(), size(), count, size(), flip, panel);
      return;
    }
    for (int64_t k = 0; k < size(); k += kWord, panel += kBytes) {
      Words words = splat_word(0);
      for (int i = 0; i < kWord && k + i < size(); ++i) {
        SmallInts bytes = {};
        __builtin_memcpy(&bytes, filters + (k + i) * convolution_.filter_count + first_ + first, count);
        words |= ((__builtin_convertvector(bytes, Words) ^ flip) & 0xff) << (8 * i);
      }
      store(panel, words);
    }
  }

  void prepare_zero_points(int64_t vector) {
    const int32_t image_shift = convolution_.image.is_unsigned ? 128 : 0;
    const int32_t filter_shift = convolution_.are_filters_unsigned ? 128 : 0;
    const auto elements = static_cast<int32_t>(size());
    const int32_t s = (convolution_.image_zero_point ? *convolution_.image_zero_point.data : 0) - image_shift;
    Ints sums = {}, t = {};
    for (int64_t word = 0; word < words(); ++word)
      sums = dot4(sums, weights_of(splat_word(0x01010101)), activations_of(of_vector(vector, word)));
    const int64_t first = first_ + first_of(vector);
    for (int i = 0; i < smaller(count_, kLanes); ++i) t[i] = convolution_.zero_point_of_filter(first + i) - filter_shift;
    store(starts_ + vector * kBytes, sums * -(s + kWeightOffset) + t * (elements * (s + kWeightOffset)));
    store(zero_points_ + vector * kBytes, t);
  }

  const DepthwiseConvolution& convolution_;
  const int64_t first_, count_;
  char *panels_ = nullptr, *starts_ = nullptr, *zero_points_ = nullptr;
};

// Adds the products of all elements of `kVectors` vectors of windows, or of channels. The elements are `elements[i]` bytes
// on; `filter(vector, word)` multiplies them. `totals` is the sum of the elements, if the filter has a zero point.
template <bool kHasZeroPoint, int kVectors, class BytesOf, class Filter>
JQUANT_INLINE void add_elements(int64_t size, BytesOf words_of_elements, Filter filter, Ints (&sums)[kVectors],
                                Ints (&totals)[kVectors]) {
  for (int64_t word = 0; word * kWord < size; ++word) {
    const int64_t present = smaller(size - word * kWord, kWord);
    const Activations ones = activations_of(splat_word(0x01010101u >> (8 * (kWord - present))));
    Words words[kVectors];
    words_of_elements(word, words);
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Weights elements = weights_of(words[i]);
      sums[i] = dot4(sums[i], elements, activations_of(filter(i, word)));
      if (kHasZeroPoint) totals[i] = dot4(totals[i], elements, ones);
    }
  }
}

// The convolution of one channel with a filter, for the windows in rows of `pitch`, of which `count` are computed.
template <bool kHasZeroPoint>
void convolve_plane(const DepthwiseFilters& filters, int64_t filter, const char* const* elements, int64_t size,
                    uint32_t flip, int64_t count, int32_t* sums) {
  const int32_t start = filters.start_of(filter), zero_point = filters.zero_point_of(filter);
  for (int64_t first = 0; first < count; first += kBytes) {
    Ints vectors[kWord], totals[kWord] = {};
    for (Ints& vector : vectors) vector = Ints{} + start;
    const auto words_of_elements = [&](int64_t word, Words(&words)[kWord]) {
      Words bytes[kWord];
#pragma GCC unroll 4
      for (int i = 0; i < kWord; ++i) bytes[i] = load<Words>(elements[word * kWord + i] + first) ^ flip;
      words_of_columns(bytes, words);
    };
    const auto filter_words = [&](int, int64_t word) { return filters.of_filter(filter, word); };
    add_elements<kHasZeroPoint, kWord>(size, words_of_elements, filter_words, vectors, totals);
    for (int i = 0; i < kWord; ++i)
      store(sums + first + i * kLanes, kHasZeroPoint ? vectors[i] - totals[i] * zero_point : vectors[i]);
  }
}

// The convolution of all channels of a window with one filter each, whose elements are at `elements`.
template <bool kHasZeroPoint>
void convolve_pixel(const DepthwiseFilters& filters, int64_t channels, const char* const* elements, int64_t size,
                    uint32_t flip, int32_t* sums) {
  int64_t channel = 0;
  for (; channel + kBytes <= channels; channel += kBytes) {
    const int64_t vector = channel / kLanes;
    Ints vectors[kWord], totals[kWord] = {};
    for (int i = 0; i < kWord; ++i) vectors[i] = filters.start(vector + i);
    const auto words_of_elements = [&](int64_t word, Words(&words)[kWord]) {
      Words bytes[kWord];
#pragma GCC unroll 4
      for (int i = 0; i < kWord; ++i) bytes[i] = load<Words>(elements[word * kWord + i] + channel) ^ flip;
      words_of_columns(bytes, words);
    };
    const auto filter_words = [&](int i, int64_t word) { return filters.of_vector(vector + i, word); };
    add_elements<kHasZeroPoint, kWord>(size, words_of_elements, filter_words, vectors, totals);
    for (int i = 0; i < kWord; ++i)
      store(sums + channel + i * kLanes,
            kHasZeroPoint ? vectors[i] - totals[i] * filters.zero_point(vector + i) : vectors[i]);
  }
  for (; channel < channels; channel += kLanes) {
    const int64_t vector = channel / kLanes, first = filters.first_of(vector), count = smaller(channels, kLanes);
    Ints vectors[1] = {filters.start(vector)}, totals[1] = {};
    const auto words_of_elements = [&](int64_t word, Words(&words)[1]) {
      words[0] = Words{};
#pragma GCC unroll 4
      for (int i = 0; i < kWord; ++i) {
        const char* source = elements[word * kWord + i] + first;
        SmallInts bytes = {};
        if (count == kLanes) {
          bytes = load<SmallInts>(source);
        } else {
          __builtin_memcpy(&bytes, source, count);
        }
        words[0] |= (__builtin_convertvector(bytes, Words) & 0xff) << (8 * i);
      }
      words[0] ^= flip;
    };
    const auto filter_words = [&](int, int64_t word) { return filters.of_vector(vector, word); };
    add_elements<kHasZeroPoint, 1>(size, words_of_elements, filter_words, vectors, totals);
    store(sums + first, kHasZeroPoint ? vectors[0] - totals[0] * filters.zero_point(vector) : vectors[0]);
  }
}

inline bool has_filter_zero_point(const DepthwiseConvolution& convolution) {
  return convolution.filter_zero_point || convolution.are_filters_unsigned;
}

// With the channels second: the windows of one channel after another.
class DepthwisePlanes {
 public:
  DepthwisePlanes(const DepthwiseConvolution& convolution, const Part& part)
      : convolution_(convolution),
        part_(part),
        first_row_(part.first_column / convolution.image.width.count),
        rows_((part.end_column - 1) / convolution.image.width.count + 1 - first_row_),
        planes_(convolution.image, first_row_, rows_, true),
        filters_(convolution, part.first_row, part.end_row - part.first_row) {}

  int64_t scratch_bytes() const {
    return rounded_up(filters_.scratch_bytes(), kBytes) + element_bytes() + copy_bytes() + 2 * sum_bytes();
  }

  void run(char* scratch) {
    const Image& image = convolution_.image;
    filters_.pack(scratch);
    scratch += rounded_up(filters_.scratch_bytes(), kBytes);
    auto* const elements = reinterpret_cast<const char**>(scratch);
    char* const copies = scratch + element_bytes();
    auto* const sums = reinterpret_cast<int32_t*>(copies + copy_bytes());
    auto* const rows = reinterpret_cast<int32_t*>(copies + copy_bytes() + sum_bytes());
    find_elements(copies, elements);
    const auto convolve = has_filter_zero_point(convolution_) ? convolve_plane<true> : convolve_plane<false>;
    int64_t copied = -1;
    for (int64_t filter = part_.first_row; filter < part_.end_row; ++filter) {
      const int64_t channel = filter / convolution_.filters_per_channel;
      if (channel != copied) copy_channel(channel, copies);
      copied = channel;
      convolve(filters_, filter - part_.first_row, elements, image.window_size(), flip_of_weights(image.is_unsigned),
               (rows_ - 1) * planes_.pitch() + image.width.count, sums);
      const int32_t* results = sums;
      if (planes_.pitch() != image.width.count) {
        for (int64_t row = 0; row < rows_; ++row) move_row(sums + row * planes_.pitch(), rows + row * image.width.count);
        results = rows;
      }
      apply(convolution_.epilogue, Terms{}, results + (part_.first_column - first_row_ * image.width.count), 0,
            convolution_.output, convolution_.output_stride, {filter, filter + 1, part_.first_column, part_.end_column});
    }
  }

 private:
  int64_t element_bytes() const {
    return rounded_up(rounded_up(convolution_.image.window_size(), kWord) * int64_t{sizeof(char*)}, kBytes);
  }
  // Loads and stores of whole vectors reach beyond the last window.
  int64_t copy_bytes() const { return rounded_up(convolution_.image.depth.size * planes_.bytes() + kBytes, kBytes); }
  int64_t sum_bytes() const { return (rounded_up(rows_ * planes_.pitch(), kBytes) + kLanes) * int64_t{sizeof(int32_t)}; }

  void find_elements(const char* copies, const char** elements) const {
    const Image& image = convolution_.image;
    int64_t count = 0;
    for (int64_t i = 0; i < image.depth.size; ++i)
      for (int64_t j = 0; j < image.height.size; ++j)
        for (int64_t k = 0; k < image.width.size; ++k)
          elements[count++] = copies + i * planes_.bytes() + planes_.offset(j, k);
    for (; count % kWord != 0; ++count) elements[count] = elements[0];  // by which nothing is multiplied
  }

  void copy_channel(int64_t channel, char* copies) const {
    const Image& image = convolution_.image;
    for (int64_t i = 0; i < image.depth.size; ++i) {
      const int64_t z = image.depth.place(image.window_depth, i);
      const char* slice = image.data + (channel * image.depth.image + z) * image.height.image * image.width.image;
      planes_.copy(image.depth.contains(z) ? slice : nullptr, image.padding, copies + i * planes_.bytes());
    }
  }

  JQUANT_INLINE void move_row(const int32_t* source, int32_t* target) const {
    for (int64_t i = 0; i < convolution_.image.width.count; i += kLanes) store(target + i, load<Ints>(source + i));
  }

  const DepthwiseConvolution& convolution_;
  const Part part_;
  const int64_t first_row_, rows_;
  const Planes planes_;
  DepthwiseFilters filters_;
};

inline void convolve_planes(const DepthwiseConvolution& convolution, const Part& part, char* scratch) {
  DepthwisePlanes(convolution, part).run(scratch);
}

inline int64_t scratch_of_planes(const DepthwiseConvolution& convolution, const Part& part) {
  return DepthwisePlanes(convolution, part).scratch_bytes();
}

// With the channels last: all channels of one window after another.
class DepthwisePixels {
 public:
  explicit DepthwisePixels(const DepthwiseConvolution& convolution)
      : convolution_(convolution), filters_(convolution, 0, convolution.filter_count) {}

  int64_t scratch_bytes() const {
    return rounded_up(filters_.scratch_bytes(), kBytes) + element_bytes() + padding_bytes() + sum_bytes();
  }

  void run(const Part& part, char* scratch) {
    const Image& image = convolution_.image;
    filters_.pack(scratch);
    scratch += rounded_up(filters_.scratch_bytes(), kBytes);
    auto* const elements = reinterpret_cast<const char**>(scratch);
    char* const padding = scratch + element_bytes();
    auto* const sums = reinterpret_cast<int32_t*>(padding + padding_bytes());
    __builtin_memset(padding, image.padding, image.channels);
    const auto convolve = has_filter_zero_point(convolution_) ? convolve_pixel<true> : convolve_pixel<false>;
    WindowPlace place(image, part.first_row);
    for (int64_t row = part.first_row; row < part.end_row; ++row, place.advance()) {
      find_elements(place, padding, elements);
      convolve(filters_, image.channels, elements, image.window_size(), flip_of_weights(image.is_unsigned), sums);
      apply(convolution_.epilogue, Terms{}, sums, 0, convolution_.output, convolution_.output_stride,
            {row, row + 1, 0, image.channels});
    }
  }

 private:
  int64_t element_bytes() const {
    return rounded_up(rounded_up(convolution_.image.window_size(), kWord) * int64_t{sizeof(char*)}, kBytes);
  }
  int64_t padding_bytes() const { return rounded_up(convolution_.image.channels, kBytes); }
  int64_t sum_bytes() const { return rounded_up(convolution_.image.channels, kLanes) * int64_t{sizeof(int32_t)}; }

  JQUANT_INLINE void find_elements(const WindowPlace& place, const char* padding, const char** elements) const {
    const Image& image = convolution_.image;
    int64_t count = 0;
    for (int64_t i = 0; i < image.depth.size; ++i) {
      const int64_t z = image.depth.place(place.z, i);
      for (int64_t j = 0; j < image.height.size; ++j) {
        const int64_t y = image.height.place(place.y, j);
        const bool is_row_inside = image.depth.contains(z) && image.height.contains(y);
        const char* row = image.row(place.number, z, y);
        int64_t x = image.width.place(place.x, 0);
        for (int64_t k = 0; k < image.width.size; ++k, x += image.width.dilation)
          elements[count++] = is_row_inside && image.width.contains(x) ? row + x * image.channels : padding;
      }
    }
    for (; count % kWord != 0; ++count) elements[count] = padding;  // by which nothing is multiplied
  }

  const DepthwiseConvolution& convolution_;
  DepthwiseFilters filters_;
};

inline void convolve_pixels(const DepthwiseConvolution& convolution, const Part& part, char* scratch) {
  DepthwisePixels(convolution).run(part, scratch);
}

inline int64_t scratch_of_pixels(const DepthwiseConvolution& convolution, const Part&) {
  return DepthwisePixels(convolution).scratch_bytes();
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
