// The handler of products with block scales: checks its operands, and divides the output into parts.
#include "block_product.h"

#include <algorithm>
#include <sstream>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

constexpr int64_t kLeastRows = 32;                      // of a part, for which its weights are expanded
constexpr int64_t kMostRows = 128;                      // of a part: the sums of a group of columns stay in a nearby cache
constexpr int64_t kActivationBytes = int64_t{1} << 19;  // of a part: they stay in the second-level cache
constexpr int64_t kColumnUnit = 64;                     // columns that are multiplied at once, or a multiple of them
constexpr int64_t kLeastBytes = 2048;                   // of a row of B in a part: shorter pieces are slow to read
constexpr int64_t kNibblesPerWord = 4;

// An array of shape (batch or 1, blocks, columns), of bytes or of floats.
struct BlockArray {
  const char* data = nullptr;
  int64_t batch_stride = 0;  // in bytes
  ffi::DataType type = ffi::DataType::INVALID;

  const char* of_matrix(int64_t index) const { return data == nullptr ? nullptr : data + index * batch_stride; }
  BlockFloats floats_of_matrix(int64_t index) const { return {of_matrix(index), type_of_floats(type)}; }
};

// What may follow the two factors and the scales, and what belongs to the rows of the output.
struct Arrays {
  BlockArray scale, b_zero_point, minimum;
  BatchedArray a_zero_point, row_scale, bias;
};

ffi::Error read_block_array(std::string_view role, const ffi::AnyBuffer& array, bool has_floats, const Sizes& sizes,
                            BlockArray& target) {
  if (target.data != nullptr) return invalid("two arrays are called " + std::string(role));
  const auto dimensions = array.dimensions();
  const bool has_type = has_floats ? type_of_floats(array.element_type()) != Type::kInt32 : is_byte(array.element_type());
  const bool fits = has_type && dimensions.size() == 3 && (dimensions[0] == 1 || dimensions[0] == sizes.batch) &&
                    dimensions[1] == sizes.rows && dimensions[2] == sizes.columns;
  if (!fits) {
    std::ostringstream message;
    message << described(role, array) << " is not of shape (" << sizes.batch << ", " << sizes.rows << ", " << sizes.columns
            << "), or has another type";
    return invalid(message.str());
  }
  target.data = static_cast<const char*>(array.untyped_data());
  target.type = array.element_type();
  target.batch_stride = dimensions[0] == 1 ? 0 : dimensions[1] * dimensions[2] * ffi::ByteWidth(target.type);
  return ffi::Error::Success();
}

// Reads the arrays that follow the factors and the scales, each of which has a role, a word of `roles`:
//   a_zero_point  of the type of A, (batch or 1, rows or 1, 1)
//   b_zero_point  int8 or uint8, (batch or 1, blocks, columns)
//   minimum       float32, float16 or bfloat16, of that shape; excludes b_zero_point
//   row_scale     float32, (batch or 1, rows or 1, columns or 1)
//   float_bias    the same
ffi::Error read_arrays(std::string_view roles, ffi::RemainingArgs operands, ffi::DataType a_type, const Sizes& output,
                       int64_t blocks, Arrays& arrays) {
  const Sizes of_blocks{output.batch, blocks, output.columns};
  const auto read_one = [&](std::string_view role, const ffi::AnyBuffer& array) {
    return role == "a_zero_point"   ? read_array(role, array, a_type, {output.batch, output.rows, 1}, arrays.a_zero_point)
           : role == "b_zero_point" ? read_block_array(role, array, false, of_blocks, arrays.b_zero_point)
           : role == "minimum"      ? read_block_array(role, array, true, of_blocks, arrays.minimum)
           : role == "row_scale"    ? read_array(role, array, ffi::DataType::F32, output, arrays.row_scale)
           : role == "float_bias"   ? read_array(role, array, ffi::DataType::F32, output, arrays.bias)
                                    : invalid("an array is called " + std::string(role));
  };
  ffi::Error error = read_arrays_of_roles(roles, operands, read_one);
  if (error.failure()) return error;
  if (arrays.minimum.data != nullptr && arrays.b_zero_point.data != nullptr)
    return invalid("minimum and b_zero_point exclude each other");
  return ffi::Error::Success();
}

// The size of the parts of each matrix of the batch, of which there are to be `wanted` in all.
PartSize part_size(const BlockProduct& product, const Sizes& sizes, int64_t threads, int64_t wanted) {
  const int64_t depth = std::max<int64_t>(product.depth(), 1), element_bytes = product.b_is_words ? 2 : 1;
  const int64_t least_columns = std::min(kLeastBytes / element_bytes, quotient_rounded_up(sizes.columns, threads));
  const int64_t columns = rounded_up(
      std::max(quotient_rounded_up(sizes.columns, quotient_rounded_up(wanted, sizes.batch)), least_columns), kColumnUnit);
  const int64_t column_parts = quotient_rounded_up(sizes.columns, columns);
  const int64_t most_rows = std::clamp(kActivationBytes / depth, kLeastRows, kMostRows);
  const int64_t row_parts =
      std::max(quotient_rounded_up(sizes.rows, most_rows),
               std::min(quotient_rounded_up(wanted, sizes.batch * column_parts), sizes.rows / kLeastRows));
  return {quotient_rounded_up(sizes.rows, row_parts), columns};
}

template <bool kAreCodes>
ffi::Error multiply_blocks(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::AnyBuffer scale,
                           ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> output, int64_t block_size,
                           int64_t offset, std::string_view roles) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  const auto a_sizes = a.dimensions(), b_sizes = b.dimensions(), scale_sizes = scale.dimensions();
  const auto output_sizes = output->dimensions();
  const bool is_words = b.element_type() == ffi::DataType::U16;
  if (!is_byte(a.element_type()) || !(is_words || b.element_type() == ffi::DataType::S8) || a_sizes.size() != 3 ||
      b_sizes.size() != 3 || scale_sizes.size() != 3 || output_sizes.size() != 3)
    return invalid(described("a", a) + " " + described("b", b) + " or " + described("scale", scale) +
                   " is no batch of matrices of bytes, of bytes or words, or of floats");
  const Sizes sizes{output_sizes[0], output_sizes[1], output_sizes[2]};
  const int64_t depth = a_sizes[2], blocks = scale_sizes[1];
  const auto broadcasts = [&](int64_t batch) { return batch == 1 || batch == sizes.batch; };
  if (a_sizes[1] != sizes.rows || b_sizes[2] != sizes.columns || depth != b_sizes[1] * (is_words ? kNibblesPerWord : 1) ||
      !broadcasts(a_sizes[0]) || !broadcasts(b_sizes[0]))
    return invalid(described("a", a) + " " + described("b", b) + " and " + described("the output", *output) + " do not fit");
  if (block_size < 1 || (is_words && block_size % kNibblesPerWord != 0) ||
      (blocks == 0 ? depth != 0 : depth % blocks != 0 || depth / blocks != block_size))
    return invalid(described("a", a) + " is not of " + std::to_string(blocks) + " blocks of " + std::to_string(block_size));
  if (kAreCodes && !is_words) return invalid(described("b", b) + " is not of words of codes");
  if (offset < -128 || offset > 128) return invalid("offset is " + std::to_string(offset));
  const Type output_type = type_of_floats(output->element_type());
  if (output_type == Type::kInt32) return invalid(described("the output", *output) + " is not of floats");
  Arrays arrays;
  ffi::Error error = read_block_array("scale", scale, true, {sizes.batch, blocks, sizes.columns}, arrays.scale);
  if (error.success()) error = read_arrays(roles, operands, a.element_type(), sizes, blocks, arrays);
  if (error.failure()) return error;
  if (sizes.batch == 0 || sizes.rows == 0 || sizes.columns == 0) return ffi::Error::Success();

  BlockProduct product;
  product.rows = sizes.rows;
  product.columns = sizes.columns;
  product.blocks = blocks;
  product.block_size = block_size;
  product.a_is_unsigned = a.element_type() == ffi::DataType::U8;
  product.b_is_words = is_words;
  product.b_are_codes = kAreCodes;
  product.b_offset = static_cast<int32_t>(offset);
  product.b_zero_point_is_unsigned = arrays.b_zero_point.type == ffi::DataType::U8;
  product.epilogue.output_type = output_type;

  XlaThreads threads(pool);
  const bool is_shared = are_shared(threads, sizes.batch * sizes.rows * sizes.columns * depth);
  const int64_t thread_count = is_shared ? threads.count() : 1, wanted = is_shared ? thread_count * kPartsPerThread : 1;
  const PartSize size = part_size(product, sizes, thread_count, wanted);
  const int64_t a_stride = a_sizes[0] == 1 ? 0 : sizes.rows * depth;
  const int64_t b_stride = b_sizes[0] == 1 ? 0 : sizes.columns * depth / (is_words ? 2 : 1);  // in bytes
  const int64_t output_stride = sizes.rows * sizes.columns * ffi::ByteWidth(output->element_type());
  return run_in_parts(threads, is_shared, loops->blocks, sizes, size, [&](int64_t matrix) {
    BlockProduct own = product;
    own.a = static_cast<const char*>(a.untyped_data()) + matrix * a_stride;
    own.b = static_cast<const char*>(b.untyped_data()) + matrix * b_stride;
    own.output = static_cast<char*>(output->untyped_data()) + matrix * output_stride;
    own.a_zero_point = arrays.a_zero_point.of_matrix<uint8_t>(matrix);
    own.b_zero_point = reinterpret_cast<const uint8_t*>(arrays.b_zero_point.of_matrix(matrix));
    own.scale = arrays.scale.floats_of_matrix(matrix);
    own.minimum = arrays.minimum.floats_of_matrix(matrix);
    own.epilogue.row_scale = arrays.row_scale.of_matrix<float>(matrix);
    own.epilogue.bias = arrays.bias.of_matrix<float>(matrix);
    return own;
  });
}

}  // namespace
}  // namespace jquant

#define JQUANT_BLOCK_PRODUCT(name, function)      \
  JQUANT_HANDLER(name, function,                  \
                 xla::ffi::Ffi::Bind()            \
                     .Ctx<xla::ffi::ThreadPool>() \
                     .Arg<xla::ffi::AnyBuffer>()  \
                     .Arg<xla::ffi::AnyBuffer>()  \
                     .Arg<xla::ffi::AnyBuffer>()  \
                     .RemainingArgs()             \
                     .Ret<xla::ffi::AnyBuffer>()  \
                     .Attr<int64_t>("block_size") \
                     .Attr<int64_t>("offset")     \
                     .Attr<std::string_view>("roles"))

JQUANT_BLOCK_PRODUCT(jquant_block_product, jquant::multiply_blocks<false>);
JQUANT_BLOCK_PRODUCT(jquant_coded_block_product, jquant::multiply_blocks<true>);
