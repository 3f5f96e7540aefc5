// The handler of sums and products of quantized arrays: checks its operands, and divides them into parts.
#include "elementwise.h"

#include <algorithm>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

constexpr int kRank = 3;

// The steps, in elements, from one index of a dimension to the next: 0 where all results share an element. An error if the
// shape does not broadcast to `sizes`.
ffi::Error read_steps(const std::string& name, const ffi::AnyBuffer& array, const int64_t (&sizes)[kRank],
                      int64_t (&steps)[kRank]) {
  int64_t step = 1;
  for (int i = kRank - 1; i >= 0; --i) {
    const int64_t size = array.dimensions()[i];
    if (size != 1 && size != sizes[i]) return invalid(described(name, array) + " does not broadcast to the output");
    steps[i] = size == 1 ? 0 : step;
    step *= size;
  }
  return ffi::Error::Success();
}

ffi::Error combine(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer a_scale, ffi::AnyBuffer a_zero_point,
                   ffi::AnyBuffer b, ffi::AnyBuffer b_scale, ffi::AnyBuffer b_zero_point, ffi::AnyBuffer output_scale,
                   ffi::AnyBuffer output_zero_point, ffi::Result<ffi::AnyBuffer> output, bool is_product) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  Elementwise operation;
  operation.is_product = is_product;
  ffi::Error error = read_quantized("a", a, kRank, a_scale, a_zero_point, operation.a);
  if (error.success()) error = read_quantized("b", b, kRank, b_scale, b_zero_point, operation.b);
  if (error.success())
    error = read_quantized("the output", *output, kRank, output_scale, output_zero_point, operation.output);
  if (error.failure()) return error;
  int64_t sizes[kRank], a_steps[kRank], b_steps[kRank];
  std::copy_n(output->dimensions().begin(), kRank, sizes);
  error = read_steps("a", a, sizes, a_steps);
  if (error.success()) error = read_steps("b", b, sizes, b_steps);
  if (error.failure()) return error;

  const int64_t rows = sizes[0] * sizes[1], columns = sizes[2];
  const int64_t parts_of_row = quotient_rounded_up(columns, kElementsOfPart);
  const auto a_bytes = static_cast<const uint8_t*>(a.untyped_data()),
             b_bytes = static_cast<const uint8_t*>(b.untyped_data());
  const auto output_bytes = static_cast<uint8_t*>(output->untyped_data());
  const auto run = [&](int64_t begin, int64_t end, int64_t&) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t row = part / parts_of_row, column = part % parts_of_row * kElementsOfPart;
      const int64_t first = row / sizes[1], second = row % sizes[1];
      const auto place = [=](const int64_t (&steps)[kRank]) {
        return first * steps[0] + second * steps[1] + column * steps[2];
      };
      Elements elements;
      elements.a = a_bytes + place(a_steps);
      elements.b = b_bytes + place(b_steps);
      elements.is_one_a = a_steps[2] == 0;
      elements.is_one_b = b_steps[2] == 0;
      elements.output = output_bytes + row * columns + column;
      elements.count = std::min(kElementsOfPart, columns - column);
      loops->combine(operation, elements);
    }
  };
  XlaThreads threads(pool);
  const bool is_shared = threads.count() > 1 && rows * columns >= kFewestElements;
  parallel_for(threads, rows * parts_of_row, 1, is_shared, std::cref(run));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_elementwise, jquant::combine,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Attr<bool>("is_product"));
