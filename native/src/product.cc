// The handler of integer products: checks its operands, and divides the output into parts.
#include <algorithm>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

constexpr int64_t kPackedBytes = int64_t{1} << 18;  // of weights at a time, which fit into a second-level cache

ffi::Error multiply(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs arrays,
                    ffi::Result<ffi::AnyBuffer> output, bool depth_minor, std::string_view roles) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  const auto a_sizes = a.dimensions(), b_sizes = b.dimensions(), sizes = output->dimensions();
  if (!is_byte(a.element_type()) || !is_byte(b.element_type()) || a_sizes.size() != 3 || b_sizes.size() != 3 ||
      sizes.size() != 3)
    return invalid(described("a", a) + " or " + described("b", b) + " is no batch of matrices of bytes");
  const Sizes of_output{sizes[0], sizes[1], sizes[2]};
  const int64_t depth = a_sizes[2], b_depth = b_sizes[depth_minor ? 2 : 1], b_columns = b_sizes[depth_minor ? 1 : 2];
  const auto broadcasts = [&](int64_t batch) { return batch == 1 || batch == of_output.batch; };
  if (a_sizes[1] != of_output.rows || b_columns != of_output.columns || depth != b_depth || !broadcasts(a_sizes[0]) ||
      !broadcasts(b_sizes[0]))
    return invalid(described("a", a) + " " + described("b", b) + " and " + described("the output", *output) + " do not fit");
  BatchedArrays batched;
  ffi::Error error = batched.read(roles, arrays, b.element_type(), output->element_type(), of_output);
  if (error.failure()) return error;
  if (of_output.batch == 0 || of_output.rows == 0 || of_output.columns == 0) return ffi::Error::Success();

  Product product;
  product.rows = of_output.rows;
  product.columns = of_output.columns;
  product.depth = depth;
  product.b_stride = product.output_stride = product.columns;
  product.a_is_unsigned = a.element_type() == ffi::DataType::U8;
  product.b_is_unsigned = b.element_type() == ffi::DataType::U8;
  product.is_depth_minor = depth_minor;
  const bool has_few_rows = depth_minor && product.rows <= kMostFewRows;
  const Loop<Product>& loop = has_few_rows ? loops->few_rows : loops->panels;

  XlaThreads threads(pool);
  const bool is_shared = are_shared(threads, of_output.batch * product.rows * product.columns * product.depth);
  const int64_t wanted = is_shared ? threads.count() * kPartsPerThread : 1;
  PartSize size = size_of_packed_parts(product, *loops, kPackedBytes, of_output.batch, wanted);
  if (has_few_rows) {
    const int64_t columns = quotient_rounded_up(product.columns, quotient_rounded_up(wanted, of_output.batch));
    size = {product.rows, std::min(product.columns, rounded_up(columns, loops->column_unit))};
  }
  const int64_t a_stride = a_sizes[0] == 1 ? 0 : product.rows * depth;
  const int64_t b_stride = b_sizes[0] == 1 ? 0 : product.columns * depth;
  const int64_t output_stride = product.rows * product.columns * ffi::ByteWidth(output->element_type());
  return run_in_parts(threads, is_shared, loop, of_output, size, [&](int64_t matrix) {
    Product own = product;
    own.a = static_cast<const char*>(a.untyped_data()) + matrix * a_stride;
    own.b = static_cast<const char*>(b.untyped_data()) + matrix * b_stride;
    own.output = static_cast<char*>(output->untyped_data()) + matrix * output_stride;
    batched.add_to(own, matrix);
    return own;
  });
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_product, jquant::multiply,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .RemainingArgs()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Attr<bool>("depth_minor")
                   .Attr<std::string_view>("roles"));
