// How a batch of products is divided into parts, which threads take one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "loops.h"
#include "operands.h"
#include "product.h"
#include "threads.h"

namespace jquant {

// Multiplications that take a few microseconds, in which no other thread would have begun.
constexpr int64_t kTooFewToShare = int64_t{1} << 19;
constexpr int64_t kPartsPerThread = 4;  // so that a thread that is interrupted does not keep the others waiting

// The size of the parts of each matrix of the batch.
struct PartSize {
  int64_t rows, columns;
};

// Whether so many multiplications are shared by the threads.
inline bool are_shared(const Threads& threads, int64_t multiplications) {
  return threads.count() > 1 && multiplications >= kTooFewToShare;
}

// Runs `loop` for all parts of `operation_of(matrix)`, for each matrix of the batch.
template <class Operation, class OperationOf>
ffi::Error run_in_parts(Threads& threads, bool is_shared, const Loop<Operation>& loop, const Sizes& sizes,
                        const PartSize& size, const OperationOf& operation_of) {
  const int64_t row_parts = quotient_rounded_up(sizes.rows, size.rows);
  const int64_t column_parts = quotient_rounded_up(sizes.columns, size.columns);
  std::atomic<bool> has_memory{true};
  parallel_for(threads, sizes.batch * row_parts * column_parts, is_shared, [&](int64_t index) {
    const int64_t matrix = index / (row_parts * column_parts), in_matrix = index % (row_parts * column_parts);
    const int64_t row = in_matrix % row_parts * size.rows, column = in_matrix / row_parts * size.columns;
    const Part part{row, std::min(row + size.rows, sizes.rows), column, std::min(column + size.columns, sizes.columns)};
    const Operation operation = operation_of(matrix);
    char* scratch = scratch_memory(loop.scratch_bytes(operation, part));
    if (scratch == nullptr) {
      has_memory = false;
      return;
    }
    loop.run(operation, part, scratch);
  });
  if (!has_memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jquant-native: there is not enough memory");
  return ffi::Error::Success();
}

}  // namespace jquant
