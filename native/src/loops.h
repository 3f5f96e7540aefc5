// The inner loops of one instruction set, as the handlers call them.
#pragma once

#include <cstdint>

#include "block_product.h"
#include "convolution.h"
#include "dynamic_quantization.h"
#include "elementwise.h"
#include "product.h"
#include "weight_only.h"

namespace jquant {

// A function that computes a part, and the bytes of memory that it works in.
template <class Operation>
struct Loop {
  void (*run)(const Operation&, const Part&, char* scratch);
  int64_t (*scratch_bytes)(const Operation&, const Part&);
};

struct Loops {
  const char* name;
  int64_t column_unit;  // parts of a product end at a multiple of it, or at the last column
  int64_t row_unit;     // the rows of a tile
  Loop<Product> panels;
  Loop<Product> few_rows;
  Loop<Convolution> window_rows, window_columns;                // with the channels last, and second
  Loop<DepthwiseConvolution> depthwise_rows, depthwise_planes;  // the same
  Loop<BlockProduct> blocks;
  Loop<WeightOnlyProduct> weight_only;
  Extremes (*extremes)(const DynamicQuantization&, int64_t first, int64_t end);
  void (*quantize)(const DynamicQuantization&, int64_t first, int64_t end, float scale, int32_t zero_point);
  void (*combine)(const Elementwise&, const Elements&);
};

// The loops that multiply tiles of bytes, where there are instructions for these beside those of vectors.
struct TileLoops {
  const char* name;
  int64_t row_unit;
  Loop<Product> panels;
  Loop<Convolution> window_rows, window_columns;
};

// Those of each instruction set; only what this processor has may be called.
extern const TileLoops kAmxInt8Loops;
extern const Loops kAvx512VnniLoops, kAvxVnniLoops, kAvx2Loops, kNeonI8mmLoops, kNeonDotLoops, kPortableLoops;

// Those that are used: of the fastest instruction set that this processor has, or of that which JQUANT_NATIVE_ISA names.
// Null if it names one that does not exist, or that this processor does not have.
const Loops* chosen_loops();

}  // namespace jquant
