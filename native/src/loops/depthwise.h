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
#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr uint32_t kOnes = 0x01010101;

// Some filters, packed into panels: the words of a vector of filters, one after another. All of them may follow several
// times, for as many pixels side by side.
class DepthwiseFilters {
 public:
  DepthwiseFilters(const DepthwiseConvolution& convolution, int64_t first, int64_t count, int64_t times)
      : convolution_(convolution), first_(first), count_(count), times_(times) {}

  int64_t count() const { return count_ * times_; }
  int64_t scratch_bytes() const { return vectors() * (panel_bytes() + 2 * kBytes) + repeated_bytes(); }

  void place(char* scratch) {
    panels_ = scratch;
    starts_ = panels_ + vectors() * panel_bytes();
    zero_points_ = starts_ + vectors() * kBytes;
  }

  void pack() {
    const char* filters = repeated(zero_points_ + vectors() * kBytes);
    for (int64_t vector = 0; vector * kLanes < count(); ++vector) {
      pack_vector(filters, vector, panels_ + vector * panel_bytes());
      prepare_zero_points(vector);
    }
  }

  JQUANT_INLINE Words of_vector(int64_t vector, int64_t word) const {
    return load<Words>(panels_ + vector * panel_bytes() + word * kBytes);
  }
  JQUANT_INLINE Ints start(int64_t vector) const { return load<Ints>(starts_ + vector * kBytes); }
  JQUANT_INLINE Ints zero_point(int64_t vector) const { return load<Ints>(zero_points_ + vector * kBytes); }

  // The same of one filter, in all lanes.
  JQUANT_INLINE Words of_filter(int64_t filter, int64_t word) const {
    return splat_word(element_of<uint32_t>(panels_ + word * kBytes, panel_bytes(), filter));
  }
  JQUANT_INLINE Ints start_of(int64_t filter) const { return Ints{} + element_of<int32_t>(starts_, kBytes, filter); }
  JQUANT_INLINE Ints zero_point_of(int64_t filter) const {
    return Ints{} + element_of<int32_t>(zero_points_, kBytes, filter);
  }

 private:
  int64_t size() const { return convolution_.image.window_size(); }
  int64_t vectors() const { return rounded_up(count(), kBytes) / kLanes; }
  int64_t panel_bytes() const { return rounded_up(size(), kBytes) * kLanes; }
  int64_t repeated_bytes() const { return times_ > 1 ? rounded_up(count() * size(), kBytes) : 0; }

  // What belongs to a filter, out of vectors that are `stride` bytes apart.
  template <class Element>
  JQUANT_INLINE Element element_of(const char* vectors, int64_t stride, int64_t filter) const {
    return load<Element>(vectors + filter / kLanes * stride + filter % kLanes * int64_t{sizeof(Element)});
  }

  // The filters as they are, or copied `times_` times.
  const char* repeated(char* copies) const {
    const bool are_last = convolution_.are_filters_last;
    const char* filters = convolution_.filters + first_ * (are_last ? 1 : size());
    if (times_ == 1) return filters;
    const int64_t rows = are_last ? size() : 1, bytes = are_last ? count_ : count_ * size();
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t time = 0; time < times_; ++time)
        copy_bytes(copies + (row * times_ + time) * bytes, filters + row * convolution_.filter_count, bytes);
    return copies;
  }

  JQUANT_INLINE void pack_vector(const char* filters, int64_t vector, char* panel) const {
    const uint32_t flip = flip_of_activations(convolution_.are_filters_unsigned);
    const int64_t first = vector * kLanes, columns = smaller(count() - first, kLanes);
    if (!convolution_.are_filters_last) {
      pack_panel(filters + first * size(), size(), columns, size(), flip, panel);
      return;
    }
    const int64_t stride = times_ == 1 ? convolution_.filter_count : count();
    for (int64_t k = 0; k < size(); k += kWord, panel += kBytes) {
      Words words = splat_word(0);
      for (int i = 0; i < kWord && k + i < size(); ++i) {
        SmallInts bytes = {};
        __builtin_memcpy(&bytes, filters + (k + i) * stride + first, columns);
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
    Ints sums = {}, t = Ints{} - filter_shift;
    for (int64_t word = 0; word * kWord < size(); ++word)
      sums = dot4(sums, weights_of(splat_word(kOnes)), activations_of(of_vector(vector, word)));
    if (convolution_.filter_zero_point)
      for (int64_t i = 0; i < smaller(count() - vector * kLanes, kLanes); ++i)
        t[i] += convolution_.zero_point_of_filter(first_ + (vector * kLanes + i) % count_);
    store(starts_ + vector * kBytes, sums * -(s + kWeightOffset) + t * (elements * (s + kWeightOffset)));
    store(zero_points_ + vector * kBytes, t);
  }

  const DepthwiseConvolution& convolution_;
  const int64_t first_, count_, times_;
  char *panels_ = nullptr, *starts_ = nullptr, *zero_points_ = nullptr;
};

// The sums of `kVectors` vectors of windows, or of channels, whose elements are at `elements`, `first` bytes on; `filters`
// has the words of the filters, where the sums start, and the zero points, of each vector. Loads of whole vectors may reach
// beyond the last window or channel.
template <bool kHasZeroPoint, int kVectors, class Filters>
JQUANT_INLINE void convolve_vectors(const char* const* elements, int64_t first, int64_t size, uint32_t flip, Filters filters,
                                    int32_t* sums) {
  Ints vectors[kVectors], totals[kVectors] = {};
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) vectors[i] = filters.start(i);
  for (int64_t word = 0; word * kWord < size; ++word) {
    const char* const* of_word = elements + word * kWord;
    Words words[kVectors];
    if constexpr (kVectors == kWord) {
      Words bytes[kWord];
#pragma GCC unroll 4
      for (int i = 0; i < kWord; ++i) bytes[i] = load<Words>(of_word[i] + first) ^ flip;
      words_of_columns(bytes, words);
    } else {
      Words joined = {};
#pragma GCC unroll 4
      for (int i = 0; i < kWord; ++i)
        joined |= (__builtin_convertvector(load<SmallInts>(of_word[i] + first), Words) & 0xff) << (8 * i);
      words[0] = joined ^ flip;
    }
    const int64_t present = smaller(size - word * kWord, kWord);
    const Activations ones = activations_of(splat_word(kOnes >> (8 * (kWord - present))));
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Weights weights = weights_of(words[i]);
      vectors[i] = dot4(vectors[i], weights, activations_of(filters.words(i, word)));
      if (kHasZeroPoint) totals[i] = dot4(totals[i], weights, ones);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i)
    store(sums + i * kLanes, kHasZeroPoint ? vectors[i] - totals[i] * filters.zero_point(i) : vectors[i]);
}

// The sums of `count` windows of one channel, side by side.
template <bool kHasZeroPoint>
void convolve_windows(const DepthwiseFilters& filters, int64_t filter, const char* const* elements, int64_t size,
                      uint32_t flip, int64_t count, int32_t* sums) {
  struct OfFilter {
    const DepthwiseFilters& filters;
    int64_t filter;
    JQUANT_INLINE Ints start(int) const { return filters.start_of(filter); }
    JQUANT_INLINE Ints zero_point(int) const { return filters.zero_point_of(filter); }
    JQUANT_INLINE Words words(int, int64_t word) const { return filters.of_filter(filter, word); }
  };
  const OfFilter of_filter{filters, filter};
  int64_t first = 0;
  for (; first + 2 * kLanes < count; first += kBytes)
    convolve_vectors<kHasZeroPoint, kWord>(elements, first, size, flip, of_filter, sums + first);
  for (; first < count; first += kLanes)
    convolve_vectors<kHasZeroPoint, 1>(elements, first, size, flip, of_filter, sums + first);
}

// The sums of `count` channels side by side, those of one pixel after those of another, as `filters` are.
template <bool kHasZeroPoint>
void convolve_channels(const DepthwiseFilters& filters, const char* const* elements, int64_t size, uint32_t flip,
                       int64_t count, int32_t* sums) {
  struct OfVectors {
    const DepthwiseFilters& filters;
    int64_t first;
    JQUANT_INLINE Ints start(int i) const { return filters.start(first + i); }
    JQUANT_INLINE Ints zero_point(int i) const { return filters.zero_point(first + i); }
    JQUANT_INLINE Words words(int i, int64_t word) const { return filters.of_vector(first + i, word); }
  };
  for (int64_t done = 0; done < count; done += filters.count()) {
    const int64_t end = smaller(done + filters.count(), count);
    int64_t first = done;
    for (; first + 2 * kLanes < end; first += kBytes)
      convolve_vectors<kHasZeroPoint, kWord>(elements, first, size, flip, OfVectors{filters, (first - done) / kLanes},
                                             sums + first);
    for (; first < end; first += kLanes)
      convolve_vectors<kHasZeroPoint, 1>(elements, first, size, flip, OfVectors{filters, (first - done) / kLanes},
                                         sums + first);
  }
}

inline bool has_filter_zero_point(const DepthwiseConvolution& convolution) {
  return convolution.filter_zero_point || convolution.are_filters_unsigned;
}

// The addresses of the elements of a window, up to a whole number of words.
inline int64_t bytes_of_elements(const Image& image) {
  return rounded_up(rounded_up(image.window_size(), kWord) * int64_t{sizeof(char*)}, kBytes);
}

// With the channels second: the windows of one channel after another.
class DepthwisePlanes {
 public:
  DepthwisePlanes(const DepthwiseConvolution& convolution, const Part& part)
      : convolution_(convolution),
        part_(part),
        first_row_(part.first_column / convolution.image.width.count),
        rows_((part.end_column - 1) / convolution.image.width.count + 1 - first_row_),
        planes_(convolution.image, first_row_, rows_, !are_copies_cheap(convolution.image)),
        filters_(convolution, part.first_row, part.end_row - part.first_row, 1) {}

  int64_t scratch_bytes() const {
    return rounded_up(filters_.scratch_bytes(), kBytes) + element_bytes() + bytes_of_copies() + 2 * sum_bytes();
  }

  void run(char* scratch) {
    const Image& image = convolution_.image;
    filters_.place(scratch);
    filters_.pack();
    scratch += rounded_up(filters_.scratch_bytes(), kBytes);
    auto* const elements = reinterpret_cast<const char**>(scratch);
    char* const copies = scratch + element_bytes();
    auto* const sums = reinterpret_cast<int32_t*>(copies + bytes_of_copies());
    auto* const rows = reinterpret_cast<int32_t*>(copies + bytes_of_copies() + sum_bytes());
    find_elements(copies, elements);
    planes_.prepare(copies + image.depth.size * planes_.bytes());
    const auto convolve = has_filter_zero_point(convolution_) ? convolve_windows<true> : convolve_windows<false>;
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
  // Whether a copy for each column of a window takes less time than to leave out the gaps between rows of sums.
  static bool are_copies_cheap(const Image& image) {
    constexpr int64_t kMostCopies = 8;
    const WindowsAlong &height = image.height, &width = image.width;
    return height.stride == 1 && width.stride == 1 && width.count == width.image && width.size <= kMostCopies;
  }

  int64_t element_bytes() const { return bytes_of_elements(convolution_.image); }
  // Loads and stores of whole vectors reach beyond the last window.
  int64_t bytes_of_copies() const { return convolution_.image.depth.size * planes_.bytes() + planes_.scratch_bytes(); }
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
      planes_.copy(image, image.depth.contains(z) ? slice : nullptr, copies + i * planes_.bytes());
    }
  }

  JQUANT_INLINE void move_row(const int32_t* source, int32_t* target) const {
    for (int64_t i = 0; i < convolution_.image.width.count; i += kLanes) store(target + i, load<Ints>(source + i));
  }

  const DepthwiseConvolution& convolution_;
  const Part part_;
  const int64_t first_row_, rows_;
  Planes planes_;
  DepthwiseFilters filters_;
};

inline void convolve_depthwise_planes(const DepthwiseConvolution& convolution, const Part& part, char* scratch) {
  DepthwisePlanes(convolution, part).run(scratch);
}

inline int64_t scratch_of_depthwise_planes(const DepthwiseConvolution& convolution, const Part& part) {
  return DepthwisePlanes(convolution, part).scratch_bytes();
}

// With the channels last: rows of windows, all channels of one after those of another.
//
// Rows of the image are copied with their padding, such that windows side by side read pixels side by side, and are kept
// while the windows of the next rows read them too.
class DepthwiseRows {
 public:
  explicit DepthwiseRows(const DepthwiseConvolution& convolution)
      : convolution_(convolution),
        image_(convolution.image),
        columns_(image_.width, true),
        kept_(smaller((image_.height.size - 1) * image_.height.dilation + 1, larger(image_.height.image, 1))),
        filters_(convolution, 0, convolution.filter_count, times(convolution.filter_count)) {}

  int64_t scratch_bytes() const {
    return rounded_up(filters_.scratch_bytes(), kBytes) + bytes_of_elements(image_) + rows() * bytes_of_row() +
           rounded_up(rows() * int64_t{sizeof(int64_t)}, kBytes) + bytes_of_sums() + bytes_of_epilogue();
  }

  // `part` has whole rows of windows.
  void run(const Part& part, char* scratch) {
    filters_.place(scratch);
    scratch += rounded_up(filters_.scratch_bytes(), kBytes);
    elements_ = reinterpret_cast<const char**>(scratch);
    copies_ = scratch + bytes_of_elements(image_);
    copied_ = reinterpret_cast<int64_t*>(copies_ + rows() * bytes_of_row());
    char* const sums_at = reinterpret_cast<char*>(copied_) + rounded_up(rows() * int64_t{sizeof(int64_t)}, kBytes);
    auto* const sums = reinterpret_cast<int32_t*>(sums_at);
    auto* const of_epilogue = reinterpret_cast<float*>(sums_at + bytes_of_sums());
    if (!part.are_columns_prepared) {
      filters_.pack();
      for (int64_t i = 0; i < rows(); ++i) copied_[i] = kNothing;
      fill_bytes(row_at(rows() - 1), image_.padding, bytes_of_row());
    }
    const Epilogue epilogue = repeated_epilogue(of_epilogue);

    const auto convolve = has_filter_zero_point(convolution_) ? convolve_channels<true> : convolve_channels<false>;
    const int64_t count = image_.width.count * image_.channels;
    for (int64_t row = part.first_row / image_.width.count; row < part.end_row / image_.width.count; ++row) {
      copy_rows(row);
      convolve(filters_, elements_, image_.window_size(), flip_of_weights(image_.is_unsigned), count, sums);
      const int64_t stride = filters_.count(), whole = count / stride;
      char* output = static_cast<char*>(convolution_.output) + row * count * size_of(epilogue.output_type);
      apply(epilogue, Terms{}, sums, stride, output, stride, {0, whole, 0, stride});
      apply(epilogue, Terms{}, sums + whole * stride, stride, output, stride,
            {whole, whole + (count % stride != 0), 0, count % stride});
    }
  }

 private:
  static constexpr int64_t kNothing = -1;
  static constexpr int64_t kMostFilters = 1024;  // side by side

  // How many times the filters are side by side, such that they fill whole vectors of bytes, or waste little of them.
  static int64_t times(int64_t filters) {
    int64_t times = kBytes;
    for (int64_t rest = filters; times > 1 && rest % 2 == 0; rest /= 2) times /= 2;
    if (filters * times <= kMostFilters) return times;
    return filters < kMostFilters / 2 ? kMostFilters / 2 / filters : 1;
  }

  int64_t rows() const { return kept_ * image_.depth.size + 1; }  // the last of which is padding
  int64_t bytes_of_row() const { return rounded_up(columns_.count() * columns_.size() * image_.channels + kBytes, kBytes); }
  int64_t bytes_of_sums() const {
    return rounded_up(image_.width.count * image_.channels + kBytes, kBytes) * int64_t{sizeof(int32_t)};
  }
  int64_t bytes_of_epilogue() const { return 3 * rounded_up(filters_.count(), kBytes) * int64_t{sizeof(float)}; }
  char* row_at(int64_t index) const { return copies_ + index * bytes_of_row(); }

  // Finds the elements of the first window of a row, and copies what has not been copied.
  void copy_rows(int64_t row) {
    const int64_t y = row % image_.height.count, z = row / image_.height.count % image_.depth.count;
    const int64_t number = row / image_.height.count / image_.depth.count;
    int64_t count = 0;
    for (int64_t i = 0; i < image_.depth.size; ++i) {
      for (int64_t j = 0; j < image_.height.size; ++j) {
        const char* copy = copy_of(i, number, image_.depth.place(z, i), image_.height.place(y, j));
        for (int64_t k = 0; k < image_.width.size; ++k)
          elements_[count++] = copy + (columns_.of(k) * columns_.size() + columns_.shift(k)) * image_.channels;
      }
    }
    for (; count % kWord != 0; ++count) elements_[count] = elements_[0];  // by which nothing is multiplied
  }

  const char* copy_of(int64_t kept_depth, int64_t number, int64_t z, int64_t y) {
    if (!image_.depth.contains(z) || !image_.height.contains(y)) return row_at(rows() - 1);
    const int64_t place = kept_depth * kept_ + y % kept_;
    const int64_t index = (number * image_.depth.image + z) * image_.height.image + y;
    char* const copy = row_at(place);
    if (copied_[place] == index) return copy;
    copied_[place] = index;
    for (int64_t j = 0; j < columns_.count(); ++j) {
      const RowOfPixels pixels(image_.width.place(0, j), image_.width.stride, image_.width.image, columns_.size());
      pixels.copy(image_.row(number, z, y), image_.channels, image_.padding, copy + j * columns_.size() * image_.channels);
    }
    return copy;
  }

  // The epilogue, whose arrays have an element for each filter as often as the filters are side by side.
  Epilogue repeated_epilogue(float* memory) const {
    Epilogue epilogue = convolution_.epilogue;
    const int64_t size = rounded_up(filters_.count(), kBytes);
    epilogue.integer_bias = repeated(epilogue.integer_bias, reinterpret_cast<int32_t*>(memory));
    epilogue.column_scale = repeated(epilogue.column_scale, memory + size);
    epilogue.bias = repeated(epilogue.bias, memory + 2 * size);
    return epilogue;
  }

  template <class Element>
  Broadcast<Element> repeated(const Broadcast<Element>& array, Element* copies) const {
    if (array.column_stride == 0) return array;
    for (int64_t i = 0; i < filters_.count(); ++i) copies[i] = array.data[i % image_.channels];
    return {copies, 0, 1};
  }

  const DepthwiseConvolution& convolution_;
  const Image& image_;
  const Copies columns_;
  const int64_t kept_;  // rows at each depth of a window
  DepthwiseFilters filters_;
  const char** elements_ = nullptr;
  char* copies_ = nullptr;
  int64_t* copied_ = nullptr;  // which row of the images is in each copy
};

inline void convolve_depthwise_rows(const DepthwiseConvolution& convolution, const Part& part, char* scratch) {
  DepthwiseRows(convolution).run(part, scratch);
}

inline int64_t scratch_of_depthwise_rows(const DepthwiseConvolution& convolution, const Part&) {
  return DepthwiseRows(convolution).scratch_bytes();
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
