// Products, convolutions and element-wise operations by the inner loops of one instruction set, that which JQUANT_NATIVE_ISA
// names, on a pool of threads, compared with plain loops. Without XLA, so that it runs under ThreadSanitizer and in an
// emulator.
//
//   driver [COUNT]    exits with 77 if this processor does not have the instruction set, with 1 if a result differs
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "block_operands.h"
#include "convolution_operands.h"
#include "elementwise_operands.h"
#include "loops.h"
#include "product_operands.h"
#include "threads.h"
#include "weight_only_operands.h"

namespace jquant {
namespace {

constexpr int kSkipped = 77;  // as ctest understands it

// Threads that run tasks in their order.
class Pool : public Threads {
 public:
  explicit Pool(int count) {
    threads_.reserve(count);
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t count() const override { return static_cast<int64_t>(threads_.size()); }
  void schedule(std::function<void()> task) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_closed_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_closed_ = false;
  std::vector<std::thread> threads_;
};

// Takes subnormal numbers for 0 on this thread, as XLA's threads do.
void flush_subnormal_numbers() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#elif defined(__aarch64__)
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  __asm__ volatile("msr fpcr, %0" : : "r"(mode | (uint64_t{1} << 24)));
#endif
}

struct Size {
  int64_t rows, columns;
};

// Computes an output of some size in parts of at most another.
template <class Operation>
void compute(Threads& threads, const Loop<Operation>& loop, const Operation& operation, const Size& size, const Size& most) {
  const int64_t row_parts = (size.rows + most.rows - 1) / most.rows;
  const int64_t column_parts = (size.columns + most.columns - 1) / most.columns;
  const auto run = [&](int64_t first, int64_t end, int64_t& prepared) {
    for (int64_t index = first; index < end; ++index) {
      const int64_t row = index % row_parts * most.rows, column = index / row_parts * most.columns;
      Part part{row, std::min(row + most.rows, size.rows), column, std::min(column + most.columns, size.columns)};
      const int64_t bytes = loop.scratch_bytes(operation, part);
      part.are_columns_prepared = prepared == index / row_parts && bytes <= kKeptScratch;
      prepared = index / row_parts;
      loop.run(operation, part, scratch_memory(bytes));
    }
  };
  parallel_for(threads, row_parts * column_parts, row_parts, true, run);
}

template <class Operation>
void multiply(Threads& threads, const Loop<Operation>& loop, const Operation& product, int64_t rows, int64_t columns) {
  compute(threads, loop, product, {product.rows, product.columns}, {rows, columns});
}

struct Counts {
  std::atomic<int64_t> results{0}, wrong{0};
};

// Compares an output of some size with plain loops, and clears it.
template <class Operands>
void compare(Operands& operands, const Size& size, Counts& counts) {
  for (int64_t row = 0; row < size.rows; ++row) {
    for (int64_t column = 0; column < size.columns; ++column) {
      if (!operands.is_right(row, column)) ++counts.wrong;
      ++counts.results;
    }
  }
  std::fill(operands.output.begin(), operands.output.end(), 0);
}

template <class Operands>
void compare(Operands& operands, Counts& counts) {
  compare(operands, {operands.product.rows, operands.product.columns}, counts);
}

void check_integers(Threads& threads, const Loops& loops, Random& random, Counts& counts) {
  ProductOperands operands(random);
  const Product& product = operands.product;
  if (product.rows == 0 || product.columns == 0) return;
  multiply(threads, loops.panels, product, 2 * loops.row_unit + 1, loops.column_unit);
  compare(operands, counts);
  if (!operands.may_be_few_rows()) return;
  multiply(threads, loops.few_rows, product, product.rows, loops.column_unit);
  compare(operands, counts);
}

void check_blocks(Threads& threads, const Loops& loops, Random& random, Counts& counts) {
  constexpr int64_t kColumns = 64;
  BlockOperands operands(random);
  if (operands.product.rows == 0 || operands.product.columns == 0) return;
  multiply(threads, loops.blocks, operands.product, 1 + random.below(40), kColumns * (1 + random.below(4)));
  compare(operands, counts);
}

void check_weight_only(Threads& threads, const Loops& loops, Random& random, Counts& counts) {
  WeightOnlyOperands operands(random);
  const WeightOnlyProduct& product = operands.product;
  if (product.rows == 0 || product.columns == 0 || product.depth == 0) return;
  multiply(threads, loops.weight_only, product, 2 * loops.row_unit + 1, loops.column_unit);
  compare(operands, counts);
}

void check_convolutions(Threads& threads, const Loops& loops, Random& random, Counts& counts) {
  ConvolutionOperands operands(random);
  const Size size{operands.rows(), operands.columns()};
  if (size.rows == 0 || size.columns == 0) return;
  const int64_t width = operands.image.width.count, rows = 1 + random.below(20), columns = 1 + random.below(99);
  if (!operands.is_depthwise) {
    const Loop<Convolution>& loop = operands.are_channels_last ? loops.window_rows : loops.window_columns;
    compute(threads, loop, operands.convolution(), size, {rows, (columns / loops.column_unit + 1) * loops.column_unit});
  } else if (operands.are_channels_last) {
    compute(threads, loops.depthwise_rows, operands.depthwise_convolution(), size, {rows * width, size.columns});
  } else {
    compute(threads, loops.depthwise_planes, operands.depthwise_convolution(), size, {rows, columns * width});
  }
  compare(operands, size, counts);
}

void check_elements(Threads& threads, const Loops& loops, Random& random, Counts& counts) {
  ElementwiseOperands operands(random);
  const int64_t most = 1 + random.below(operands.columns), parts = (operands.columns + most - 1) / most;
  const auto run = [&](int64_t first, int64_t end, int64_t&) {
    for (int64_t index = first; index < end; ++index) {
      const int64_t row = index / parts, column = index % parts * most;
      loops.combine(operands.operation, operands.elements(row, column, std::min(column + most, operands.columns)));
    }
  };
  parallel_for(threads, operands.rows * parts, 1, true, run);
  compare(operands, {operands.rows, operands.columns}, counts);
}

void check(Threads& threads, const Loops& loops, uint64_t seed, Counts& counts) {
  Random random(seed);
  if (random.coin()) {
    check_integers(threads, loops, random, counts);
  } else {
    check_blocks(threads, loops, random, counts);
  }
  check_weight_only(threads, loops, random, counts);
  check_convolutions(threads, loops, random, counts);
  check_elements(threads, loops, random, counts);
}

int run(int64_t products) {
  const Loops* loops = chosen_loops();
  if (loops == nullptr) return kSkipped;
  constexpr int kCallers = 3, kHelpers = 4;
  Counts counts;
  {
    Pool pool(kHelpers);
    std::vector<std::thread> callers;
    callers.reserve(kCallers);
    std::atomic<int64_t> next{0};
    for (int caller = 0; caller < kCallers; ++caller) {
      callers.emplace_back([&, caller] {
        if (caller > 0) flush_subnormal_numbers();  // helpers must do as the caller does
        for (int64_t seed; (seed = next++) < products;) check(pool, *loops, seed, counts);
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  std::printf("%s: %lld products, %lld results, %lld wrong\n", loops->name, static_cast<long long>(products),
              static_cast<long long>(counts.results), static_cast<long long>(counts.wrong));
  return counts.wrong != 0 || counts.results == 0;
}

}  // namespace
}  // namespace jquant

int main(int count, char** arguments) { return jquant::run(count > 1 ? std::strtoll(arguments[1], nullptr, 10) : 2000); }
