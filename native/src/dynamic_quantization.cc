// The handler of quantization by ranges that it finds itself: checks its operands, and divides them into parts.
#include "dynamic_quantization.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "export.h"
#include "loops.h"
#include "operands.h"
#include "parts.h"

namespace jquant {
namespace {

// How ranges become scales and zero points: the formula of jquant/formulas/dynamic_quantization.py.
struct Rule {
  bool is_symmetric;
  bool is_by_row;  // whether a scale below the normal numbers counts as that of zeros
  int32_t lowest;
};

struct Parameters {
  float scale;
  int32_t zero_point;
};

float float_of_bits(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

Parameters parameters_of(const Extremes& extremes, const Rule& rule) {
  const float high = float_of_bits(extremes.above), low = -float_of_bits(extremes.below);
  constexpr float kSmallestNormal = std::numeric_limits<float>::min();
  if (rule.is_symmetric) {
    const float magnitude = float_of_bits(std::max(extremes.above, extremes.below));
    const float scale = magnitude / 127.0f;
    const bool is_empty = scale < kSmallestNormal;
    const int32_t middle = rule.lowest + 128;
    return {is_empty ? 1.0f : scale, is_empty || scale != scale ? 0 : middle};
  }
  const float width = high - low;
  float scale = width / 255.0f;
  const bool is_empty = rule.is_by_row ? scale < kSmallestNormal : width == 0.0f;
  if (is_empty) scale = 1.0f;
  const float lowest = static_cast<float>(rule.lowest);
  float offset = lowest - low / scale;
  if (rule.is_by_row && is_empty) offset = lowest;
  if (offset != offset) return {scale, 0};
  return {scale, static_cast<int32_t>(std::nearbyint(std::min(std::max(offset, lowest), lowest + 255.0f)))};
}

void raise(std::atomic<int32_t>& largest, int32_t value) {
  for (int32_t last = largest.load(std::memory_order_relaxed); last < value;)
    if (largest.compare_exchange_weak(last, value, std::memory_order_relaxed)) break;
}

// Calls `run(first, end)` for parts of the elements [0, count).
template <class Run>
void in_parts(Threads& threads, int64_t count, const Run& run) {
  const auto task = [&](int64_t first, int64_t end, int64_t&) {
    run(first * kElementsOfPart, std::min(end * kElementsOfPart, count));
  };
  parallel_for(threads, quotient_rounded_up(count, kElementsOfPart), 1, true, std::cref(task));
}

ffi::Error quantize(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> output,
                    ffi::Result<ffi::AnyBuffer> scale, ffi::Result<ffi::AnyBuffer> zero_point, bool is_symmetric,
                    bool is_by_row) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return invalid("JQUANT_NATIVE_ISA names no instruction set of this processor");
  const auto sizes = x.dimensions(), output_sizes = output->dimensions();
  const Type type = type_of_floats(x.element_type());
  const ffi::DataType output_type = output->element_type();
  if (sizes.size() != 2 || output_sizes.size() != 2 || !std::equal(sizes.begin(), sizes.end(), output_sizes.begin()) ||
      !is_byte(output_type) || type == Type::kInt32)
    return invalid(described("x", x) + " and " + described("the output", *output) + " are no floats and bytes of one shape");
  const auto is_by_slice = [&](const ffi::AnyBuffer& array, ffi::DataType wanted) {
    return array.element_type() == wanted && array.dimensions().size() == 1 && array.dimensions()[0] == sizes[0];
  };
  if (!is_by_slice(*scale, ffi::DataType::F32) || !is_by_slice(*zero_point, output_type))
    return invalid(described("the scale", *scale) + " and " + described("the zero point", *zero_point) +
                   " do not have an element for each slice");
  DynamicQuantization quantization;
  quantization.x = x.untyped_data();
  quantization.type = type;
  quantization.output = static_cast<uint8_t*>(output->untyped_data());
  quantization.slices = sizes[0];
  quantization.length = sizes[1];
  quantization.lowest = output_type == ffi::DataType::U8 ? 0 : -128;
  const Rule rule{is_symmetric, is_by_row, quantization.lowest};
  const auto scales = static_cast<float*>(scale->untyped_data());
  const auto zero_points = static_cast<uint8_t*>(zero_point->untyped_data());
  const auto found = [&](int64_t slice, const Extremes& extremes) {
    const Parameters parameters = parameters_of(extremes, rule);
    scales[slice] = parameters.scale;
    zero_points[slice] = static_cast<uint8_t>(parameters.zero_point);
    return parameters;
  };
  const auto quantize_slices = [&](int64_t first, int64_t end, int64_t&) {
    for (int64_t slice = first; slice < end; ++slice) {
      const int64_t begin = slice * quantization.length, rest = begin + quantization.length;
      const Parameters parameters = found(slice, loops->extremes(quantization, begin, rest));
      loops->quantize(quantization, begin, rest, parameters.scale, parameters.zero_point);
    }
  };

  XlaThreads threads(pool);
  const bool is_shared = threads.count() > 1 && quantization.slices * quantization.length >= kFewestElements;
  if (!is_shared || quantization.slices >= 2 * threads.count()) {
    parallel_for(threads, quantization.slices, 1, is_shared, std::cref(quantize_slices));
    return ffi::Error::Success();
  }
  for (int64_t slice = 0; slice < quantization.slices; ++slice) {
    const int64_t begin = slice * quantization.length;
    std::atomic<int32_t> above{0}, below{0};
    in_parts(threads, quantization.length, [&](int64_t first, int64_t end) {
      const Extremes extremes = loops->extremes(quantization, begin + first, begin + end);
      raise(above, extremes.above);
      raise(below, extremes.below);
    });
    const Parameters parameters = found(slice, Extremes{above, below});
    in_parts(threads, quantization.length, [&](int64_t first, int64_t end) {
      loops->quantize(quantization, begin + first, begin + end, parameters.scale, parameters.zero_point);
    });
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jquant

JQUANT_HANDLER(jquant_dynamic_quantize, jquant::quantize,
               xla::ffi::Ffi::Bind()
                   .Ctx<xla::ffi::ThreadPool>()
                   .Arg<xla::ffi::AnyBuffer>()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Ret<xla::ffi::AnyBuffer>()
                   .Attr<bool>("is_symmetric")
                   .Attr<bool>("is_by_row"));
