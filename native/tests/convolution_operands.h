// Random convolutions of one group, and their results by plain loops.
#pragma once

#include "convolution.h"
#include "random_arrays.h"

namespace jquant {

struct ConvolutionOperands {
  Image image;
  int64_t images, filters, channels_of_filter;
  bool is_depthwise, are_channels_last, are_filters_last, are_filters_unsigned;
  std::vector<uint8_t> pixels, filter, output;
  Broadcast<int32_t> image_zero_point, filter_zero_point;
  Epilogue epilogue;
  Arrays<int32_t> integers;
  Arrays<float> floats;

  explicit ConvolutionOperands(Random& random)
      : is_depthwise(random.coin()), are_channels_last(random.coin()), are_filters_unsigned(random.coin()) {
    are_filters_last = are_channels_last && random.coin();
    const int64_t channels[] = {1, 2, 3, 8, 16, 17, 33, 64, 65, 128, 150};
    image.channels = channels[random.below(11)];
    image.is_unsigned = random.coin();
    image.depth = any_windows(random, random.coin() ? 1 : 3);
    image.height = any_windows(random, 9);
    image.width = any_windows(random, random.coin() ? 9 : 70);
    images = are_channels_last ? 1 + random.below(3) : 1;
    if (!are_channels_last) image.window_depth = random.below(image.depth.count);
    filters = is_depthwise ? image.channels * (are_channels_last ? 1 : 1 + random.below(3)) : 1 + random.below(70);
    channels_of_filter = is_depthwise ? 1 : image.channels;

    pixels.resize(images * image.channels * image.depth.image * image.height.image * image.width.image);
    filter.resize(filters * channels_of_filter * image.window_size());
    const bool is_extreme = random.below(4) == 0;
    for (std::vector<uint8_t>* bytes : {&pixels, &filter})
      for (uint8_t& byte : *bytes) byte = is_extreme ? (random.coin() ? 0x80 : 0x7f) : random.below(256);
    image.data = image.begin = reinterpret_cast<const char*>(pixels.data());
    image.end = image.begin + pixels.size();

    const auto integer = [&] { return random.integer(); };
    const auto number = [&] { return random.number(); };
    const auto by_filter = [&](auto& arrays, const auto& element) {
      return arrays.draw(random, are_channels_last ? 1 : filters, are_channels_last ? filters : 1, element);
    };
    const int32_t zero_point = static_cast<int32_t>(random.below(256)) - (image.is_unsigned ? 0 : 128);
    if (random.coin()) image_zero_point = integers.draw(random, 1, 1, [&] { return zero_point; });
    image.padding = image_zero_point ? static_cast<uint8_t>(zero_point) : 0;
    if (random.coin()) filter_zero_point = by_filter(integers, integer);
    if (random.coin()) epilogue.integer_bias = by_filter(integers, integer);
    if (random.coin()) {
      epilogue.scaling = Epilogue::Scaling::kRequantize;
      epilogue.output_type = Type::kUint8;
      epilogue.column_scale = by_filter(floats, number);
    }
    output.resize(rows() * columns() * bytes_of(epilogue.output_type));
  }

  static WindowsAlong any_windows(Random& random, int64_t most) {
    WindowsAlong result;
    result.image = 1 + random.below(most);
    result.size = 1 + random.below(4);
    result.stride = 1 + random.below(3);
    result.dilation = 1 + random.below(3);
    result.padding = random.below(5) - 1;
    if (random.below(3) == 0) result = {result.image, 0, 1, 1, 1, 0};  // each element is a window, unless more follow
    const int64_t extent = (result.size - 1) * result.dilation + 1, after = random.below(4);
    result.count = std::max<int64_t>((result.image + result.padding + after - extent) / result.stride + 1, 1);
    return result;
  }

  int64_t windows() const { return image.height.count * image.width.count; }
  int64_t rows() const { return are_channels_last ? images * image.depth.count * windows() : filters; }
  int64_t columns() const { return are_channels_last ? filters : windows(); }

  Convolution convolution() {
    Convolution result;
    result.image = image;
    result.channels = image.channels;
    Product& product = result.product;
    product.rows = rows();
    product.columns = columns();
    product.depth = channels_of_filter * image.window_size();
    product.b_stride = product.output_stride = columns();
    (are_channels_last ? product.b : product.a) = filter.data();
    product.a_is_unsigned = are_channels_last ? image.is_unsigned : are_filters_unsigned;
    product.b_is_unsigned = are_channels_last ? are_filters_unsigned : image.is_unsigned;
    product.a_zero_point = are_channels_last ? image_zero_point : filter_zero_point;
    product.b_zero_point = are_channels_last ? filter_zero_point : image_zero_point;
    product.is_depth_minor = !are_filters_last;
    product.output = output.data();
    product.epilogue = epilogue;
    return result;
  }

  DepthwiseConvolution depthwise_convolution() {
    DepthwiseConvolution result;
    result.image = image;
    result.filters = reinterpret_cast<const char*>(filter.data());
    result.filter_count = filters;
    result.filters_per_channel = filters / image.channels;
    result.are_filters_last = are_filters_last;
    result.are_filters_unsigned = are_filters_unsigned;
    result.image_zero_point = image_zero_point;
    result.filter_zero_point = filter_zero_point;
    result.output = output.data();
    result.output_stride = columns();
    result.epilogue = epilogue;
    return result;
  }

  static int32_t integer_of(uint8_t byte, bool is_unsigned) { return is_unsigned ? byte : static_cast<int8_t>(byte); }

  // An element of a window, less its zero point; 0 beyond the image.
  int32_t element_of_image(int64_t window, int64_t channel, int64_t i, int64_t j, int64_t k) const {
    const WindowsAlong &depth = image.depth, &height = image.height, &width = image.width;
    const int64_t x = width.place(window % width.count, k), y = height.place(window / width.count % height.count, j);
    const int64_t of_images = window / windows();
    const int64_t z = depth.place(are_channels_last ? of_images % depth.count : image.window_depth, i);
    if (!width.contains(x) || !height.contains(y) || !depth.contains(z)) return 0;
    const int64_t number = are_channels_last ? of_images / depth.count : 0;
    const int64_t pixel = (z * height.image + y) * width.image + x,
                  pixels_of_image = depth.image * height.image * width.image;
    const int64_t place = are_channels_last ? (number * pixels_of_image + pixel) * image.channels + channel
                                            : channel * pixels_of_image + pixel;
    return integer_of(pixels[place], image.is_unsigned) - element_of(image_zero_point, 0, 0);
  }

  int32_t element_of_filter(int64_t number, int64_t channel, int64_t element) const {
    const int64_t depth = channels_of_filter * image.window_size();
    const int64_t k = are_channels_last ? element * channels_of_filter + channel : channel * image.window_size() + element;
    return integer_of(filter[are_filters_last ? k * filters + number : number * depth + k], are_filters_unsigned);
  }

  bool is_right(int64_t row, int64_t column) const {
    const int64_t number = are_channels_last ? column : row, window = are_channels_last ? row : column;
    const int32_t zero_point = element_of(filter_zero_point, row, column);
    int32_t total = element_of(epilogue.integer_bias, row, column);
    for (int64_t channel = 0; channel < channels_of_filter; ++channel) {
      const int64_t of_image = is_depthwise ? number / (filters / image.channels) : channel;
      int64_t element = 0;
      for (int64_t i = 0; i < image.depth.size; ++i)
        for (int64_t j = 0; j < image.height.size; ++j)
          for (int64_t k = 0; k < image.width.size; ++k)
            total +=
                element_of_image(window, of_image, i, j, k) * (element_of_filter(number, channel, element++) - zero_point);
    }
    return is_result(epilogue, row, column, total,
                     output.data() + (row * columns() + column) * bytes_of(epilogue.output_type));
  }
};

}  // namespace jquant
