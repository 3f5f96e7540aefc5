// What a convolution computes, as the inner loops see it.
#pragma once

#include <cstdint>

#include "product.h"

namespace jquant {

// The windows along one dimension of an image.
struct WindowsAlong {
  int64_t image = 1, count = 1, size = 1, stride = 1, dilation = 1;
  int64_t padding = 0;  // before the first element; negative where elements are left out

  // The place in the image of an element of a window; beyond the image, there is padding.
  int64_t place(int64_t window, int64_t element) const { return window * stride + element * dilation - padding; }
  bool contains(int64_t place) const { return place >= 0 && place < image; }
  // Whether the windows are the elements of the image.
  bool are_elements() const { return size == 1 && stride == 1 && padding == 0 && count == image; }
};

// An image, or several, and the windows over it. Dimensions that it lacks have size 1.
struct Image {
  const char* data = nullptr;                   // the first channel that is convolved
  const char *begin = nullptr, *end = nullptr;  // of all images
  int64_t channels = 0;                         // all that it has
  bool is_unsigned = false;
  uint8_t padding = 0;  // what is beyond the image
  WindowsAlong depth, height, width;
  int64_t window_depth = 0;  // with the channels second, that of the windows which are computed

  int64_t window_size() const { return depth.size * height.size * width.size; }

  // A row of one of several images with the channels last.
  const char* row(int64_t number, int64_t z, int64_t y) const {
    return data + ((number * depth.image + z) * height.image + y) * width.image * channels;
  }
};

// A convolution of one group of channels: a product, one of whose factors is the windows.
//
// With the channels last, A is the windows, each a row with all channels of an element together, one image after another.
// With the channels second, A is the filters, and B is the windows at one depth of one image, each a column with all
// elements of a channel together.
struct Convolution {
  Product product;  // in which the factor that is the windows is null
  Image image;
  int64_t channels = 0;  // of the group
};

// A convolution whose filters have one channel.
//
// With the channels last, the rows of the output are the windows, one image after another, and each channel has one filter.
// With the channels second, the rows are the filters, and the columns the windows at one depth of one image.
struct DepthwiseConvolution {
  Image image;
  const char* filters = nullptr;  // bytes
  int64_t filter_count = 0, filters_per_channel = 1;
  bool are_filters_last = false;  // whether all filters of an element are together, and not all elements of a filter
  bool are_filters_unsigned = false;
  Broadcast<int32_t> image_zero_point, filter_zero_point;
  void* output = nullptr;
  int64_t output_stride = 0;  // from one row to the next, in elements
  Epilogue epilogue;

  int32_t zero_point_of_filter(int64_t filter) const {
    const int64_t stride = filter_zero_point.row_stride + filter_zero_point.column_stride;
    return filter_zero_point ? filter_zero_point.data[filter * stride] : 0;
  }
};

}  // namespace jquant
