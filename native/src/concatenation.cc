// The handler that quantizes arrays again, by one scale and one zero point, and joins them along a dimension.
#include <algorithm>
#include <cstring>
#include <vector>

#include "elementwise.h"
#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

constexpr size_t kRank = 2;  // what stands before the dimension, and the rest
constexpr uint8_t kZero = 0;

// One of the arrays, quantized again as a sum of itself and 0.
struct Joined {
  Elementwise operation;
  const uint8_t* bytes;
  int64_t columns, first_column, first_part;
};

// Reads the operands from `position` on, an array, its scale and its zero point, and puts the array after the others.
ffi::Error join(const std::string& name, ffi::RemainingArgs operands, size_t position, const ffi::AnyBuffer& output,
                const QuantizedBytes& of_output, std::vector<Joined>& arrays, int64_t& columns, int64_t& parts) {
  const auto array = operands.get<ffi::AnyBuffer>(position), scale = operands.get<ffi::AnyBuffer>(position + 1),
             zero_point = operands.get<ffi::AnyBuffer>(position + 2);
  if (!array.has_value() || !scale.has_value() || !zero_point.has_value())
    return invalid("there is no scale or no zero point for " + name);
  Joined joined{};
  ffi::Error error = read_quantized(name, *array, kRank, *scale, *zero_point, joined.operation.a);
  if (error.failure()) return error;
  const int64_t rows = output.dimensions()[0];
  if (array->dimensions()[0] != rows)
    return invalid(described(name, *array) + " has not as many rows as " + described("the output", output));
  joined.operation.output = of_output;
  joined.columns = array->dimensions()[1];
  joined.bytes = static_cast<const uint8_t*>(array->untyped_data());
  joined.first_column = columns;
  joined.first_part = parts;
  columns += joined.columns;
  parts += quotient_rounded_up(rows * joined.columns, kElementsOfPart);
  if (rows * joined.columns > 0) arrays.push_back(joined);
  return ffi::Error::Success();
}

// Quantizes a part of an array, which is adjacent there, and puts it where its rows belong in the output.
void quantize_part(const Loops& loops, const Joined& joined, int64_t rows, int64_t first, uint8_t* output,
                   int64_t output_columns) {
  const int64_t columns = joined.columns;
  Elements elements;
  elements.a = joined.bytes + first;
  elements.b = &kZero;
  elements.is_one_b = true;
  elements.count = std::min(kElementsOfPart, rows * columns - first);
  int64_t row = first / columns, column = first % columns;
  output += row * output_columns + joined.first_column + column;
  if (column + elements.count <= columns || columns == output_columns) {
    elements.output = output;
    return loops.combine(joined.operation, elements);
  }
  uint8_t results[kElementsOfPart];
  elements.output = results;
  loops.combine(joined.operation, elements);
  for (const uint8_t *from = results, *end = results + elements.count; from < end; column = 0) {
    const int64_t count = std::min<int64_t>(columns - column, end - from);
    std::memcpy(output, from, count);
    from += count;
    output += output_columns - column;
  }
}

ffi::Error concatenate(ffi::ThreadPool pool, ffi::AnyBuffer output_scale, ffi::AnyBuffer output_zero_point,
                       ffi::RemainingArgs operands, ffi::Result<ffi::AnyBuffer> output) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  QuantizedBytes of_output;
  ffi::Error error = read_quantized("the output", *output, kRank, output_scale, output_zero_point, of_output);
  std::vector<Joined> arrays;
  arrays.reserve(operands.size() / 3);
  int64_t columns = 0, parts = 0;
  for (size_t i = 0; i < operands.size() && error.success(); i += 3)
    error = join("array " + std::to_string(i / 3), operands, i, *output, of_output, arrays, columns, parts);
  if (error.failure()) return error;
  const int64_t rows = output->dimensions()[0];
  if (columns != output->dimensions()[1])
    return invalid(described("the output", *output) + " has not the columns of all arrays");

  const auto bytes = static_cast<uint8_t*>(output->untyped_data());
  const auto run = [&](int64_t begin, int64_t end, int64_t&) {
    for (int64_t part = begin; part < end; ++part) {
      const auto is_before = [](int64_t part, const Joined& joined) { return part < joined.first_part; };
      const Joined& joined = *(std::upper_bound(arrays.begin(), arrays.end(), part, is_before) - 1);
      quantize_part(*loops, joined, rows, (part - joined.first_part) * kElementsOfPart, bytes, columns);
    }
  };
  XlaThreads threads(pool);
  const bool is_shared = threads.count() > 1 && rows * columns >= kFewestElements;
  parallel_for(threads, parts, 1, is_shared, std::cref(run));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_concatenate, jquant::concatenate,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .RemainingArgs()
                   .Ret<xla::ffi::AnyBuffer>());
