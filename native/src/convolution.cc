// The handler of convolutions: checks its operands, and divides the output into parts.
#include "convolution.h"

#include <algorithm>
#include <utility>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

typedef ffi::Span<const int64_t> Integers;

constexpr int64_t kPackedBytes = int64_t{1} << 19;  // of weights or windows at a time; more, as windows take longer to read
constexpr int64_t kFewFilters = int64_t{1} << 18;   // in bytes
constexpr size_t kMostDimensions = 3;
constexpr int64_t kMost = int64_t{1} << 30;        // of an attribute
constexpr double kMostMemory = 0x1p40;             // bytes of a channel; whatever needs more is no convolution
constexpr double kMostInAll = 0x1p60;              // bytes of all channels, so that int64_t holds their sums
constexpr int64_t kElementsPerMultiplication = 8;  // how much longer a multiplication takes in a depthwise convolution
constexpr int64_t kMostPlane = int64_t{1} << 14;   // windows of a part with the channels second

// What a call says beside its arrays.
struct Attributes {
  bool are_channels_last, are_filters_last;
  int64_t groups;
  Integers sizes, strides, dilations, padding;
};

// Reads the dimensions of the image and of its windows; an error if they do not fit each other.
ffi::Error read_image(const ffi::AnyBuffer& image, const ffi::AnyBuffer& output, const Attributes& attributes,
                      Image& result) {
  const auto sizes = image.dimensions(), output_sizes = output.dimensions();
  const size_t dimensions = attributes.sizes.size();
  const auto is_as_long = [&](const Integers& values) { return values.size() == dimensions; };
  if (dimensions == 0 || dimensions > kMostDimensions || !is_as_long(attributes.strides) ||
      !is_as_long(attributes.dilations) || !is_as_long(attributes.padding))
    return invalid("windows have one to three dimensions, as have their strides, dilations and padding");
  if (!is_byte(image.element_type()) || sizes.size() != dimensions + 2 || output_sizes.size() != dimensions + 2 ||
      sizes[0] != output_sizes[0])
    return invalid(described("the image", image) + " or " + described("the output", output) + " does not have such windows");
  // One dimension is the height where channels are second, because rows share their copies, and the width where they are
  // last, because the pixels of a row lie side by side.
  WindowsAlong* const all[] = {&result.depth, &result.height, &result.width};
  const size_t first = dimensions == 1 && !attributes.are_channels_last ? 1 : kMostDimensions - dimensions;
  for (size_t i = 0; i < dimensions; ++i) {
    const size_t position = i + (attributes.are_channels_last ? 1 : 2);
    const int64_t size = attributes.sizes[i], stride = attributes.strides[i], dilation = attributes.dilations[i];
    const int64_t padding = attributes.padding[i];
    const auto is_positive = [](int64_t value) { return value >= 1 && value <= kMost; };
    if (!is_positive(size) || !is_positive(stride) || !is_positive(dilation) || padding < -kMost || padding > kMost ||
        sizes[position] > kMost || output_sizes[position] > kMost)
      return invalid("a window's size, stride, dilation or padding is out of range");
    *all[first + i] = {sizes[position], output_sizes[position], size, stride, dilation, padding};
  }
  result.begin = static_cast<const char*>(image.untyped_data());
  result.end = result.begin + image.size_bytes();
  result.channels = sizes[attributes.are_channels_last ? dimensions + 1 : 1];
  result.is_unsigned = image.element_type() == ffi::DataType::U8;
  double memory = static_cast<double>(result.depth.size);
  for (const WindowsAlong* along : {&result.height, &result.width}) {
    const auto size = static_cast<double>(along->size), extent = size * static_cast<double>(along->dilation);
    memory *= size * (static_cast<double>(along->count) + extent);
  }
  const bool are_too_large = memory > kMostMemory || memory * static_cast<double>(result.channels) > kMostInAll;
  return are_too_large ? invalid("the windows are too large") : ffi::Error::Success();
}

// The groups, and what each has.
struct Groups {
  int64_t count, channels, filters, depth;
};

ffi::Error read_groups(const ffi::AnyBuffer& filter, const ffi::AnyBuffer& output, const Attributes& attributes,
                       const Image& image, Groups& groups) {
  const auto sizes = filter.dimensions(), output_sizes = output.dimensions();
  const int64_t filters = output_sizes[attributes.are_channels_last ? output_sizes.size() - 1 : 1];
  if (attributes.groups < 1 || image.channels % attributes.groups != 0 || filters % attributes.groups != 0)
    return invalid("there is no equal number of channels and filters in each group");
  if (attributes.are_filters_last && !attributes.are_channels_last)
    return invalid("the filters are last, but the channels are not");
  groups = {attributes.groups, image.channels / attributes.groups, filters / attributes.groups, 0};
  groups.depth = groups.channels * image.window_size();
  const int64_t expected[] = {filters, groups.depth};
  if (!is_byte(filter.element_type()) || sizes.size() != 2 || sizes[0] != expected[attributes.are_filters_last] ||
      sizes[1] != expected[!attributes.are_filters_last])
    return invalid(described("the filter", filter) + " does not fit the image");
  return ffi::Error::Success();
}

// The byte that stands for 0 in the image.
uint8_t padding_of(const BatchedArray& zero_point) {
  return zero_point.data == nullptr ? 0 : static_cast<uint8_t>(*static_cast<const int32_t*>(zero_point.data));
}

bool is_single(const BatchedArray& array) {
  return array.batch_stride == 0 && array.row_stride == 0 && array.column_stride == 0;
}

struct Call {
  XlaThreads& threads;
  const Loops& loops;
  const ffi::AnyBuffer& image;
  const ffi::AnyBuffer& filter;
  ffi::AnyBuffer& output;
  const Attributes& attributes;
  const BatchedArrays& arrays;
  const Groups& groups;
  const Image& windows;

  int64_t images() const { return image.dimensions()[0]; }
  int64_t image_size() const { return windows.depth.image * windows.height.image * windows.width.image; }
  int64_t window_count() const { return windows.depth.count * windows.height.count * windows.width.count; }
  int64_t filters() const { return groups.count * groups.filters; }
  int64_t filter_bytes() const { return groups.filters * groups.depth; }
  const char* filter_data() const { return static_cast<const char*>(filter.untyped_data()); }
  char* output_at(int64_t element) const {
    return static_cast<char*>(output.untyped_data()) + element * static_cast<int64_t>(ffi::ByteWidth(output.element_type()));
  }
  bool are_shared(int64_t cost) const {
    return jquant::are_shared(threads, images() * window_count() * filters() * groups.depth * cost);
  }
  int64_t wanted(bool is_shared) const { return is_shared ? threads.count() * kPartsPerThread : 1; }

  // The image that begins with a channel of one of the images, whose windows are at one depth.
  Image image_from(int64_t number, int64_t channel, int64_t depth) const {
    Image result = windows;
    const int64_t first = attributes.are_channels_last ? channel : (number * windows.channels + channel) * image_size();
    result.data = windows.begin + first;
    result.window_depth = depth;
    return result;
  }
};

ffi::Error convolve_with_channels_last(const Call& call) {
  const Groups& groups = call.groups;
  const bool is_shared = call.are_shared(1);
  Product product;
  product.rows = call.images() * call.window_count();
  product.columns = groups.filters;
  product.depth = groups.depth;
  product.b_stride = product.output_stride = call.filters();
  product.a_is_unsigned = call.windows.is_unsigned;
  product.b_is_unsigned = call.filter.element_type() == ffi::DataType::U8;
  product.is_depth_minor = !call.attributes.are_filters_last;
  const PartSize size = size_of_packed_parts(product, call.loops, kPackedBytes, groups.count, call.wanted(is_shared));
  const Sizes sizes{groups.count, product.rows, product.columns};
  return run_in_parts(call.threads, is_shared, call.loops.window_rows, sizes, size, [&](int64_t group) {
    Convolution own{product, call.image_from(0, group * groups.channels, 0), groups.channels};
    own.product.b = call.filter_data() + group * (product.is_depth_minor ? call.filter_bytes() : groups.filters);
    own.product.output = call.output_at(group * groups.filters);
    call.arrays.add_to(own.product, group);
    return own;
  });
}

// The size of parts whose columns are windows. Few filters are multiplied by all of them; of many, each thread has some, and
// packs all windows.
PartSize size_of_window_parts(const Product& product, const Loops& loops, int64_t batch, int64_t wanted) {
  const int64_t depth = std::max<int64_t>(product.depth, 1), most = kPackedBytes / depth;
  const int64_t of_matrix = quotient_rounded_up(wanted, batch);
  if (product.rows * depth <= kFewFilters)
    return {product.rows, divided(product.columns, std::min(most, product.columns / of_matrix), loops.column_unit)};
  const int64_t columns = divided(product.columns, most, loops.column_unit);
  const int64_t in_rows = quotient_rounded_up(of_matrix, quotient_rounded_up(product.columns, columns));
  return {divided(product.rows, product.rows / in_rows, loops.row_unit), columns};
}

ffi::Error convolve_with_channels_second(const Call& call) {
  const Groups& groups = call.groups;
  const int64_t plane = call.windows.height.count * call.windows.width.count, depths = call.windows.depth.count;
  const bool is_shared = call.are_shared(1);
  Product product;
  product.rows = groups.filters;
  product.columns = plane;
  product.depth = groups.depth;
  product.output_stride = call.window_count();
  product.a_is_unsigned = call.filter.element_type() == ffi::DataType::U8;
  product.b_is_unsigned = call.windows.is_unsigned;
  const Sizes sizes{call.images() * groups.count * depths, product.rows, product.columns};
  const PartSize size = size_of_window_parts(product, call.loops, sizes.batch, call.wanted(is_shared));
  return run_in_parts(call.threads, is_shared, call.loops.window_columns, sizes, size, [&](int64_t index) {
    const int64_t depth = index % depths, group = index / depths % groups.count, number = index / depths / groups.count;
    Convolution own{product, call.image_from(number, group * groups.channels, depth), groups.channels};
    own.product.a = call.filter_data() + group * call.filter_bytes();
    own.product.output = call.output_at(((number * groups.count + group) * groups.filters * depths + depth) * plane);
    call.arrays.add_to(own.product, group);
    return own;
  });
}

ffi::Error convolve_channels(const Call& call, const BatchedArrays& arrays) {
  const bool is_last = call.attributes.are_channels_last;
  const int64_t depths = is_last ? 1 : call.windows.depth.count;
  const bool is_shared = call.are_shared(kElementsPerMultiplication);
  DepthwiseConvolution convolution;
  convolution.filters = call.filter_data();
  convolution.filter_count = call.filters();
  convolution.filters_per_channel = call.groups.filters;
  convolution.are_filters_last = call.attributes.are_filters_last;
  convolution.are_filters_unsigned = call.filter.element_type() == ffi::DataType::U8;
  convolution.image_zero_point = (is_last ? arrays.a_zero_point : arrays.b_zero_point).of_matrix<int32_t>(0);
  convolution.filter_zero_point = (is_last ? arrays.b_zero_point : arrays.a_zero_point).of_matrix<int32_t>(0);
  convolution.epilogue = arrays.epilogue_of_matrix(0);
  Sizes sizes{1, call.images() * call.window_count(), call.filters()};
  if (!is_last) sizes = {call.images() * depths, call.filters(), call.windows.height.count * call.windows.width.count};
  convolution.output_stride = is_last ? call.filters() : call.window_count();
  const int64_t rows = quotient_rounded_up(sizes.rows, quotient_rounded_up(call.wanted(is_shared), sizes.batch));
  PartSize size{rows, sizes.columns};
  if (is_last) {
    size = {rounded_up(rows, call.windows.width.count), sizes.columns};
  } else if (sizes.columns > kMostPlane) {
    size.columns = std::max<int64_t>(kMostPlane / call.windows.width.count, 1) * call.windows.width.count;
  }
  const Loop<DepthwiseConvolution>& loop = is_last ? call.loops.depthwise_rows : call.loops.depthwise_planes;
  return run_in_parts(call.threads, is_shared, loop, sizes, size, [&](int64_t index) {
    DepthwiseConvolution own = convolution;
    own.image = call.image_from(index / depths, 0, index % depths);
    own.output = call.output_at((index / depths * call.filters() * depths + index % depths) * sizes.columns * !is_last);
    return own;
  });
}

ffi::Error convolve(ffi::ThreadPool pool, ffi::AnyBuffer image, ffi::AnyBuffer filter, ffi::RemainingArgs operands,
                    ffi::Result<ffi::AnyBuffer> output, bool channels_last, bool filters_last, int64_t group_count,
                    Integers sizes, Integers strides, Integers dilations, Integers padding, std::string_view roles) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  const Attributes attributes{channels_last, filters_last, group_count, sizes, strides, dilations, padding};
  Image windows;
  ffi::Error error = read_image(image, *output, attributes, windows);
  if (error.failure()) return error;
  Groups groups{};
  error = read_groups(filter, *output, attributes, windows, groups);
  if (error.failure()) return error;
  BatchedArrays arrays;
  const Sizes of_group{groups.count, channels_last ? 1 : groups.filters, channels_last ? groups.filters : 1};
  error = arrays.read(roles, operands, (channels_last ? filter : image).element_type(), output->element_type(), of_group);
  if (error.failure()) return error;
  const BatchedArray& zero_point = channels_last ? arrays.a_zero_point : arrays.b_zero_point;
  if (!is_single(zero_point)) return invalid("the image has more than one zero point");
  if (arrays.block_sums.data != nullptr) return invalid("a convolution takes no block_sums");
  if (output->element_count() == 0) return ffi::Error::Success();
  windows.padding = padding_of(zero_point);

  XlaThreads threads(pool);
  const Call call{threads, *loops, image, filter, *output, attributes, arrays, groups, windows};
  const bool is_depthwise = groups.channels == 1 && (!channels_last || groups.filters == 1);
  // The windows of one dimension are rows of a single column where each row is prepared by itself.
  if (is_depthwise && sizes.size() == 1 && channels_last) std::swap(windows.height, windows.width);
  BatchedArrays joined = arrays;
  if (is_depthwise && (channels_last ? joined.join_columns(of_group) : joined.join_rows(of_group)))
    return convolve_channels(call, joined);
  return channels_last ? convolve_with_channels_last(call) : convolve_with_channels_second(call);
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_convolution, jquant::convolve,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .RemainingArgs()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Attr<bool>("channels_last")
                   .Attr<bool>("filters_last")
                   .Attr<int64_t>("groups")
                   .Attr<xla::ffi::Span<const int64_t>>("sizes")
                   .Attr<xla::ffi::Span<const int64_t>>("strides")
                   .Attr<xla::ffi::Span<const int64_t>>("dilations")
                   .Attr<xla::ffi::Span<const int64_t>>("padding")
                   .Attr<std::string_view>("roles"));
