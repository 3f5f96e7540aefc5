// The handler of products of floats and weights of few bits: checks its operands, and divides the output into parts.
#include "weight_only.h"

#include <algorithm>
#include <sstream>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

typedef WeightOnlyProduct::Layout Layout;

constexpr int64_t kCostOfFloats = 4;  // of a multiplication, compared with that of bytes
constexpr int64_t kMostRows = 192;    // of a part, whose activations fit into a second-level cache

// Reads the weights, whose type is that of one layout.
ffi::Error read_weights(const ffi::AnyBuffer& weights, int64_t bits, int64_t block_size, WeightOnlyProduct& product) {
  const auto sizes = weights.dimensions();
  const ffi::DataType type = weights.element_type();
  product.weights = weights.untyped_data();
  product.block_size = block_size;
  product.bits = static_cast<int>(bits);
  if (block_size < 1) return invalid("block_size is " + std::to_string(block_size));
  product.blocks = quotient_rounded_up(product.depth, block_size);
  const int64_t rows =
      product.blocks == 1 ? block_size : product.blocks * block_size;  // less than twice the depth if several
  bool fits = false;
  if (type == ffi::DataType::U8 && sizes.size() == 3 && (bits == 2 || bits == 4 || bits == 8)) {
    product.layout = Layout::kColumns;
    const int64_t per_word = 32 / bits;
    fits = sizes[0] == product.columns && sizes[1] == product.blocks && block_size % per_word == 0 &&
           sizes[2] == block_size / per_word * 4;
  } else if (type == ffi::DataType::U16 && sizes.size() == 2 && bits == 4) {
    product.layout = Layout::kWords;
    fits = sizes[0] == rows / 4 && rows % 4 == 0 && block_size % 4 == 0 && sizes[1] == product.columns;
  } else if (type == ffi::DataType::S8 && sizes.size() == 2 && bits == 8) {
    product.layout = Layout::kBytes;
    fits = sizes[0] == rows && sizes[1] == product.columns;
  }
  if (fits) return ffi::Error::Success();
  std::ostringstream message;
  message << described("weights", weights) << " do not have " << product.depth << " rows and " << product.columns
          << " columns of " << bits << " bits in blocks of " << block_size;
  return invalid(message.str());
}

ffi::Error read_array(std::string_view role, const ffi::AnyBuffer& array, const WeightOnlyProduct& product,
                      bool may_be_bytes, ByBlock& target) {
  if (target) return invalid("two arrays are called " + std::string(role));
  const auto sizes = array.dimensions();
  const int64_t blocks = product.is_depth_minor() ? 1 : 0;  // the dimension of blocks
  switch (array.element_type()) {
    case ffi::DataType::F32:
      target.type = Type::kFloat32;
      break;
    case ffi::DataType::F16:
      target.type = Type::kFloat16;
      break;
    case ffi::DataType::BF16:
      target.type = Type::kBfloat16;
      break;
    case ffi::DataType::S8:
      target.type = Type::kInt8;
      break;
    case ffi::DataType::U8:
      target.type = Type::kUint8;
      break;
    default:
      return invalid(described(role, array) + " has a type that it may not have");
  }
  if (is_byte(array.element_type()) && !may_be_bytes)
    return invalid(described(role, array) + " has a type that it may not have");
  if (sizes.size() != 2 || sizes[blocks] != product.blocks || sizes[1 - blocks] != product.columns) {
    std::ostringstream message;
    message << described(role, array) << " does not have an element for each of " << product.blocks << " blocks and "
            << product.columns << " columns";
    return invalid(message.str());
  }
  target.data = array.untyped_data();
  return ffi::Error::Success();
}

// Reads the arrays after the scale, each of which has a role, a word of `roles`: zero_point or minimum.
ffi::Error read_arrays(std::string_view roles, ffi::RemainingArgs operands, WeightOnlyProduct& product) {
  const auto read_one = [&](std::string_view role, const ffi::AnyBuffer& array) {
    const bool is_zero_point = role == "zero_point";
    if (!is_zero_point && role != "minimum") return invalid("an array is called " + std::string(role));
    return read_array(role, array, product, is_zero_point, is_zero_point ? product.zero_point : product.minimum);
  };
  ffi::Error error = read_arrays_of_roles(roles, operands, read_one);
  if (error.failure()) return error;
  if (product.minimum && product.is_depth_minor()) return invalid("weights of this type have no minimum");
  if (product.zero_point && product.minimum) return invalid("zero_point and minimum exclude each other");
  return ffi::Error::Success();
}

ffi::Error multiply(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer weights, ffi::AnyBuffer scale,
                    ffi::RemainingArgs arrays, ffi::Result<ffi::AnyBuffer> output, int64_t bits, int64_t block_size,
                    int64_t offset, std::string_view roles) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  const auto a_sizes = a.dimensions(), sizes = output->dimensions();
  if (a.element_type() != ffi::DataType::F32 || a_sizes.size() != 2 || output->element_type() != ffi::DataType::F32 ||
      sizes.size() != 2 || sizes[0] != a_sizes[0])
    return invalid(described("a", a) + " and " + described("the output", *output) + " are no matrices of as many rows");
  if (offset < -128 || offset > 128) return invalid("offset is " + std::to_string(offset));
  WeightOnlyProduct product;
  product.a = static_cast<const float*>(a.untyped_data());
  product.output = static_cast<float*>(output->untyped_data());
  product.rows = sizes[0];
  product.columns = sizes[1];
  product.depth = a_sizes[1];
  product.offset = static_cast<float>(offset);
  ffi::Error error = read_weights(weights, bits, block_size, product);
  if (error.success()) error = read_array("scale", scale, product, false, product.scale);
  if (error.success()) error = read_arrays(roles, arrays, product);
  if (error.failure() || product.rows == 0 || product.columns == 0) return error;
  if (product.depth == 0) {
    std::fill_n(product.output, product.rows * product.columns, 0.0f);
    return ffi::Error::Success();
  }

  XlaThreads threads(pool);
  const bool is_shared = are_shared(threads, kCostOfFloats * product.rows * product.columns * product.depth);
  const int64_t wanted = is_shared ? threads.count() * kPartsPerThread : 1;
  const int64_t row_parts = quotient_rounded_up(product.rows, kMostRows);
  const int64_t columns = quotient_rounded_up(product.columns, quotient_rounded_up(wanted, row_parts));
  const PartSize size{quotient_rounded_up(product.rows, row_parts), rounded_up(columns, loops->column_unit)};
  return run_in_parts(threads, is_shared, loops->weight_only, {1, product.rows, product.columns}, size,
                      [&](int64_t) { return product; });
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_weight_only, jquant::multiply,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .RemainingArgs()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Attr<int64_t>("bits")
                   .Attr<int64_t>("block_size")
                   .Attr<int64_t>("offset")
                   .Attr<std::string_view>("roles"));
