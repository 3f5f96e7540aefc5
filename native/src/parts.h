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
  bool can_be_joined = false;  // whether adjacent parts of the same columns may be one, which prepares the columns once
};

// Whether so many multiplications are shared by the threads.
inline bool are_shared(const Threads& threads, int64_t multiplications) {
  return threads.count() > 1 && multiplications >= kTooFewToShare;
}

constexpr int64_t kPackedBytes = int64_t{1} << 18;  // of weights at a time, which fit into a second-level cache
constexpr int64_t kLeastRows = 96;                  // of a part, for which its weights are packed

// The size of the parts of each matrix of the batch, of which there are to be `wanted` in all.
inline PartSize size_of_parts(const Product& product, const Loops& loops, bool has_few_rows, int64_t batch, int64_t wanted) {
  PartSize size{product.rows, product.columns};
  if (!has_few_rows) {
    const int64_t most = kPackedBytes / std::max<int64_t>(product.depth, 1);
    size.columns = std::min(size.columns, std::max(loops.column_unit, most / loops.column_unit * loops.column_unit));
  }
  if (has_few_rows || product.rows < 2 * kLeastRows) {
    const int64_t columns = quotient_rounded_up(product.columns, quotient_rounded_up(wanted, batch));
    size.columns = std::min(size.columns, rounded_up(columns, loops.column_unit));
  } else {
    size.rows = rounded_up(kLeastRows, loops.row_unit);
    size.can_be_joined = true;
  }
  return size;
}

// Runs `loop` for all parts of `operation_of(matrix)`, for each matrix of the batch.
template <class Operation, class OperationOf>
ffi::Error run_in_parts(Threads& threads, bool is_shared, const Loop<Operation>& loop, const Sizes& sizes,
                        const PartSize& size, const OperationOf& operation_of) {
  const int64_t row_parts = quotient_rounded_up(sizes.rows, size.rows);
  const int64_t column_parts = quotient_rounded_up(sizes.columns, size.columns);
  std::atomic<bool> has_memory{true};
  parallel_for(threads, sizes.batch * column_parts * row_parts, row_parts, is_shared, [&](int64_t first, int64_t end) {
    for (int64_t next; first < end; first = next) {
      next = size.can_be_joined ? std::min(end, rounded_up(first + 1, row_parts)) : first + 1;
      const int64_t matrix = first / row_parts / column_parts, column = first / row_parts % column_parts * size.columns;
      const int64_t row = first % row_parts * size.rows, end_row = std::min(row + (next - first) * size.rows, sizes.rows);
      const Part part{row, end_row, column, std::min(column + size.columns, sizes.columns)};
      const Operation operation = operation_of(matrix);
      char* scratch = scratch_memory(loop.scratch_bytes(operation, part));
      if (scratch == nullptr) {
        has_memory = false;
        return;
      }
      loop.run(operation, part, scratch);
    }
  });
  if (!has_memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jquant-native: there is not enough memory");
  return ffi::Error::Success();
}

}  // namespace jquant
