// How a batch of products is divided into parts, which threads take one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "loops.h"
#include "operands.h"
#include "product.h"
#include "threads.h"

namespace jquant {

// Fewer multiplications, or operations on single elements, take a few microseconds, in which no other thread would have
// begun.
constexpr int64_t kFewestToShare = int64_t{1} << 19;
constexpr int64_t kFewestElements = int64_t{1} << 16;
constexpr int64_t kElementsOfPart = int64_t{1} << 13;  // of operations on single elements
constexpr int64_t kPartsPerThread = 4;  // so that a thread that is interrupted does not keep the others waiting

// The size of the parts of each matrix of the batch.
struct PartSize {
  int64_t rows, columns;
};

// Whether so many multiplications are shared by the threads.
inline bool are_shared(const Threads& threads, int64_t multiplications) {
  return threads.count() > 1 && multiplications >= kFewestToShare;
}

constexpr int64_t kLeastPackedRows = 96;  // of a part, for which weights are packed

// `size` divided into as many equal parts as there are of `most`, or fewer, which are multiples of `unit`; or a single one.
inline int64_t divided(int64_t size, int64_t most, int64_t unit) {
  most = std::max(most / unit * unit, unit);
  return std::min(size, rounded_up(quotient_rounded_up(size, quotient_rounded_up(size, most)), unit));
}

// The size of the parts of each matrix of the batch, of which there are to be `wanted` in all, and whose columns are packed,
// into so many bytes at most.
inline PartSize size_of_packed_parts(const Product& product, const Loops& loops, int64_t packed_bytes, int64_t batch,
                                     int64_t wanted) {
  PartSize size{product.rows, product.columns};
  size.columns = divided(product.columns, packed_bytes / std::max<int64_t>(product.depth, 1), loops.column_unit);
  if (product.rows >= 2 * kLeastPackedRows) {
    size.rows = divided(product.rows, kLeastPackedRows, loops.row_unit);
  } else {
    const int64_t columns = quotient_rounded_up(product.columns, quotient_rounded_up(wanted, batch));
    size.columns = std::min(size.columns, rounded_up(columns, loops.column_unit));
  }
  return size;
}

// Runs `loop` for all parts of `operation_of(matrix)`, for each matrix of the batch. Parts of the same columns follow each
// other, and a thread that has prepared columns uses them until it comes to others.
template <class Operation, class OperationOf>
ffi::Error run_in_parts(Threads& threads, bool is_shared, const Loop<Operation>& loop, const Sizes& sizes,
                        const PartSize& size, const OperationOf& operation_of) {
  const int64_t row_parts = quotient_rounded_up(sizes.rows, size.rows);
  const int64_t column_parts = quotient_rounded_up(sizes.columns, size.columns);
  std::atomic<bool> has_memory{true};
  const auto run = [&](int64_t first, int64_t end, int64_t& prepared) {
    for (int64_t index = first; index < end; ++index) {
      const int64_t row = index % row_parts * size.rows, of_columns = index / row_parts;
      const int64_t matrix = of_columns / column_parts, column = of_columns % column_parts * size.columns;
      Part part{row, std::min(row + size.rows, sizes.rows), column, std::min(column + size.columns, sizes.columns)};
      const Operation operation = operation_of(matrix);
      const int64_t bytes = loop.scratch_bytes(operation, part);
      char* scratch = scratch_memory(bytes);
      if (scratch == nullptr) {
        has_memory = false;
        return;
      }
      part.are_columns_prepared = prepared == of_columns && bytes <= kKeptScratch;
      prepared = of_columns;
      loop.run(operation, part, scratch);
    }
  };
  parallel_for(threads, sizes.batch * column_parts * row_parts, row_parts, is_shared,
               std::cref(run));  // which takes no memory
  if (!has_memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jquant-native: there is not enough memory");
  return ffi::Error::Success();
}

}  // namespace jquant
