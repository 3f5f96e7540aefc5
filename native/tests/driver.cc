// Products by the inner loops of one instruction set, that which JQUANT_NATIVE_ISA names, on a pool of threads, compared
// with plain loops. Without XLA, so that it runs under ThreadSanitizer and in an emulator.
//
//   driver [PRODUCTS]    exits with 77 if this processor does not have the instruction set, with 1 if a result differs
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "loops.h"
#include "threads.h"

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

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t end) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end)); }
  bool coin() { return below(2) != 0; }
  int32_t integer() { return static_cast<int32_t>(engine_()); }

  // Of every magnitude; one of eight is of little use to arithmetic.
  float number() {
    const float unusual[] = {0.0f, -0.0f, 1e-39f, 1.2e-38f, 3e38f, INFINITY, -INFINITY, NAN};
    if (below(8) == 0) return unusual[below(8)];
    return std::ldexp(static_cast<float>(integer()), static_cast<int>(below(40)) - 60);
  }

 private:
  std::mt19937_64 engine_;
};

// The bits of the number of a type of 16 bits that is nearest to x, ties to even; of any NaN if x is NaN.
uint16_t nearest_half(float x, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0, infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(x)) return infinity | 1;
  if (std::isinf(x)) return sign | infinity;
  if (x == 0) return sign;
  int exponent;
  std::frexp(x, &exponent);
  exponent = std::max(exponent - 1, 1 - bias);
  const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(x)), fraction_bits - exponent));
  // A fraction that is rounded up to the next power of two has carried into the exponent.
  const double bits = units + std::ldexp(exponent + bias - 1, fraction_bits);
  return sign | (bits >= infinity ? infinity : static_cast<uint16_t>(bits));
}

template <class Value>
Value read(const void* source) {
  Value value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

// The operands of a product, and its epilogue.
struct Operands {
  Product product;
  std::vector<uint8_t> a, b, output;
  std::vector<std::vector<int32_t>> integers;
  std::vector<std::vector<float>> floats;

  // One element for each row or for all, and for each column or for all.
  template <class Element, class Draw>
  Broadcast<Element> array(Random& random, std::vector<std::vector<Element>>& arrays, bool by_row, bool by_column,
                           const Draw& draw) {
    const int64_t rows = by_row && random.coin() ? product.rows : 1;
    const int64_t columns = by_column && random.coin() ? product.columns : 1;
    arrays.emplace_back(rows * columns);
    for (Element& element : arrays.back()) element = draw();
    return {arrays.back().data(), rows == 1 ? 0 : columns, columns == 1 ? 0 : 1};
  }

  explicit Operands(Random& random) {
    const int64_t sizes[] = {0, 1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 97, 150};
    const auto any_size = [&] { return random.coin() ? sizes[random.below(13)] : random.below(70); };
    product.rows = any_size();
    product.columns = any_size();
    product.depth = any_size();
    product.a_is_unsigned = random.coin();
    product.b_is_unsigned = random.coin();
    product.is_depth_minor = random.coin();
    a.resize(product.rows * product.depth);
    b.resize(product.columns * product.depth);
    const bool is_extreme = random.below(4) == 0;
    for (std::vector<uint8_t>* bytes : {&a, &b})
      for (uint8_t& byte : *bytes) byte = is_extreme ? (random.coin() ? 0x80 : 0x7f) : random.below(256);
    product.a = a.data();
    product.b = b.data();

    Epilogue& epilogue = product.epilogue;
    const auto integer = [&] { return random.integer(); };
    const auto number = [&] { return random.number(); };
    if (random.coin()) product.a_zero_point = array<int32_t>(random, integers, true, false, integer);
    if (random.coin()) product.b_zero_point = array<int32_t>(random, integers, false, true, integer);
    if (random.coin()) add_block_sums(random);
    if (random.coin()) epilogue.integer_bias = array<int32_t>(random, integers, true, true, integer);
    epilogue.scaling = static_cast<Epilogue::Scaling>(random.below(3));
    if (epilogue.scaling == Epilogue::Scaling::kDequantize) {
      epilogue.row_scale = array<float>(random, floats, true, false, number);
      epilogue.column_scale = array<float>(random, floats, true, true, number);
      if (random.coin()) epilogue.bias = array<float>(random, floats, true, true, number);
      const Type types[] = {Type::kFloat32, Type::kFloat16, Type::kBfloat16};
      epilogue.output_type = types[random.below(3)];
    } else if (epilogue.scaling == Epilogue::Scaling::kRequantize) {
      epilogue.output_type = random.coin() ? Type::kInt8 : Type::kUint8;
      epilogue.column_scale = array<float>(random, floats, true, true, number);
      const int lowest = epilogue.output_type == Type::kInt8 ? -128 : 0;
      const auto zero_point = [&] { return static_cast<int32_t>(lowest + random.below(256)); };
      if (random.coin()) epilogue.zero_point = array<int32_t>(random, integers, true, false, zero_point);
    }
    output.resize(product.rows * product.columns * bytes_of_result());
    product.output = output.data();
  }

  int64_t bytes_of_result() const {
    const Type type = product.epilogue.output_type;
    return type == Type::kInt8 || type == Type::kUint8 ? 1 : type == Type::kFloat16 || type == Type::kBfloat16 ? 2 : 4;
  }

  // The sums of the columns of B, in two blocks.
  void add_block_sums(Random& random) {
    std::vector<int32_t> sums(2 * product.columns);
    for (int64_t column = 0; column < product.columns; ++column) {
      sums[column] = random.integer();
      sums[product.columns + column] = -sums[column];
      for (int64_t k = 0; k < product.depth; ++k) sums[column] += element_of_b(k, column);
    }
    integers.push_back(std::move(sums));
    product.block_sums = integers.back().data();
    product.blocks = 2;
  }

  int32_t element_of_a(int64_t row, int64_t k) const {
    const uint8_t byte = a[row * product.depth + k];
    return product.a_is_unsigned ? byte : static_cast<int8_t>(byte);
  }

  int32_t element_of_b(int64_t k, int64_t column) const {
    const uint8_t byte = b[product.is_depth_minor ? column * product.depth + k : k * product.columns + column];
    return product.b_is_unsigned ? byte : static_cast<int8_t>(byte);
  }

  // Whether few rows may be multiplied where the weights are, for which the sums of columns must be known if they are
  // needed.
  bool may_be_few_rows() const {
    const bool needs_sums = product.a_is_unsigned || product.a_zero_point;
    return product.is_depth_minor && product.rows <= 16 && (product.block_sums != nullptr || !needs_sums);
  }

  // Whether an element of the output is what the formulas of product.h say. NaN equals NaN.
  bool is_right(int64_t row, int64_t column) const {
    const Epilogue& epilogue = product.epilogue;
    const auto element = [&](const auto& array) {
      return array ? array.data[row * array.row_stride + column * array.column_stride] : decltype(array.data[0] + 0){};
    };
    const uint8_t* result = output.data() + (row * product.columns + column) * bytes_of_result();
    const int32_t a_zero_point = element(product.a_zero_point), b_zero_point = element(product.b_zero_point);
    int32_t total = element(epilogue.integer_bias);
    for (int64_t k = 0; k < product.depth; ++k)
      total += (element_of_a(row, k) - a_zero_point) * (element_of_b(k, column) - b_zero_point);
    if (epilogue.scaling == Epilogue::Scaling::kNone) return read<int32_t>(result) == total;
    if (epilogue.scaling == Epilogue::Scaling::kRequantize) {
      const double lowest = epilogue.output_type == Type::kInt8 ? -128 : 0;
      const float scaled = static_cast<float>(total) * element(epilogue.column_scale);
      const double rounded = std::nearbyint(static_cast<double>(scaled)) + element(epilogue.zero_point);
      const double limited = std::fmin(std::fmax(rounded, lowest), lowest + 255);
      return *result == static_cast<uint8_t>(std::isnan(scaled) ? 0 : static_cast<int32_t>(limited));
    }
    float value = static_cast<float>(total) * (element(epilogue.row_scale) * element(epilogue.column_scale));
    if (epilogue.bias) value = value + element(epilogue.bias);
    if (epilogue.output_type == Type::kFloat32) {
      const auto actual = read<float>(result);
      return std::isnan(value) ? std::isnan(actual) : read<uint32_t>(&actual) == read<uint32_t>(&value);
    }
    const bool is_float16 = epilogue.output_type == Type::kFloat16;
    const uint16_t expected = is_float16 ? nearest_half(value, 5, 10) : nearest_half(value, 8, 7);
    const auto actual = read<uint16_t>(result);
    return std::isnan(value) ? (actual & 0x7fff) > (is_float16 ? 0x7c00 : 0x7f80) : actual == expected;
  }
};

// Computes a product in small parts, by either loop that may compute it.
void multiply(Threads& threads, const Loops& loops, const Product& product, bool by_few_rows) {
  const Loop<Product>& loop = by_few_rows ? loops.few_rows : loops.panels;
  const int64_t rows = by_few_rows ? product.rows : 2 * loops.row_unit + 1, columns = loops.column_unit;
  const int64_t row_parts = (product.rows + rows - 1) / rows, column_parts = (product.columns + columns - 1) / columns;
  parallel_for(threads, row_parts * column_parts, true, [&](int64_t index) {
    const int64_t row = index % row_parts * rows, column = index / row_parts * columns;
    const Part part{row, std::min(row + rows, product.rows), column, std::min(column + columns, product.columns)};
    loop.run(product, part, scratch_memory(loop.scratch_bytes(product, part)));
  });
}

// The operands of a product of floats and weights of few bits, of so few bits themselves that every sum is exact.
struct WeightOnlyOperands {
  WeightOnlyProduct product;
  std::vector<float> a, output;
  std::vector<uint8_t> weights;
  std::vector<std::vector<uint16_t>> arrays;  // bfloat16, or pairs of bytes

  explicit WeightOnlyOperands(Random& random) {
    product.rows = random.below(4) == 0 ? random.below(60) : random.below(8);
    product.columns = random.below(80);
    product.depth = random.coin() ? random.below(600) : random.below(70);
    const int64_t layout = random.below(3);
    product.layout = static_cast<WeightOnlyProduct::Layout>(layout);
    const int bits[] = {2 << random.below(3), 4, 8};
    product.bits = bits[layout];
    const int64_t unit = product.is_depth_minor() ? 32 / product.bits : product.bits == 4 ? 4 : 1;
    product.block_size = unit * (1 + random.below(40));
    product.blocks = (product.depth + product.block_size - 1) / product.block_size;
    product.offset = static_cast<float>(random.below(257) - 128);

    a.resize(product.rows * product.depth);
    for (float& element : a) element = static_cast<float>(random.below(9) - 4);
    weights.resize(product.blocks * product.block_size * product.columns * product.bits / 8);
    for (uint8_t& byte : weights) byte = random.below(256);
    output.resize(product.rows * product.columns);
    product.a = a.data();
    product.weights = weights.data();
    product.output = output.data();
    arrays.reserve(2);  // so that none moves
    product.scale = array([&] { return random.coin() ? 0.5f : -1.0f; });
    if (random.coin()) return;
    if (product.is_depth_minor() || random.coin()) {
      product.zero_point = random.coin() ? array([&] { return static_cast<float>(random.below(128)); }) : bytes(random);
    } else {
      product.minimum = array([&] { return static_cast<float>(random.below(9) - 4); });
    }
  }

  // Floats that bfloat16 holds.
  template <class Value>
  ByBlock array(const Value& value) {
    arrays.emplace_back(product.blocks * product.columns);
    for (uint16_t& element : arrays.back()) {
      const float number = value();
      element = static_cast<uint16_t>(read<uint32_t>(&number) >> 16);
    }
    return {arrays.back().data(), Type::kBfloat16};
  }

  ByBlock bytes(Random& random) {
    arrays.emplace_back((product.blocks * product.columns + 1) / 2);
    for (uint16_t& pair : arrays.back()) pair = random.below(1 << 16);
    return {arrays.back().data(), random.coin() ? Type::kInt8 : Type::kUint8};
  }

  float element(const ByBlock& array, int64_t k, int64_t column) const {
    if (!array) return 0;
    const int64_t block = k / product.block_size;
    const int64_t index = product.is_depth_minor() ? column * product.blocks + block : block * product.columns + column;
    if (array.type == Type::kInt8) return static_cast<const int8_t*>(array.data)[index];
    if (array.type == Type::kUint8) return static_cast<const uint8_t*>(array.data)[index];
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(array.data)[index]} << 16;
    return read<float>(&bits);
  }

  int integer(int64_t k, int64_t column) const {
    if (product.layout == WeightOnlyProduct::Layout::kBytes)
      return static_cast<int8_t>(weights[k * product.columns + column]);
    const int64_t first = product.is_depth_minor() ? column * product.blocks * product.block_size * product.bits
                                                   : (k / 4 * product.columns + column) * 16;
    const int64_t bit = first + (product.is_depth_minor() ? k : k % 4) * product.bits;
    return weights[bit / 8] >> bit % 8 & ((1 << product.bits) - 1);
  }

  bool is_right(int64_t row, int64_t column) const {
    double total = 0;
    for (int64_t k = 0; k < product.depth; ++k) {
      const double difference = integer(k, column) - product.offset - element(product.zero_point, k, column);
      const double weight = difference * element(product.scale, k, column) + element(product.minimum, k, column);
      total += static_cast<double>(a[row * product.depth + k]) * weight;
    }
    return output[row * product.columns + column] == static_cast<float>(total);
  }
};

// In small parts; those of few rows have all of them.
void multiply(Threads& threads, const Loops& loops, const WeightOnlyProduct& product) {
  const int64_t rows = 2 * loops.row_unit + 1, columns = loops.column_unit;
  const int64_t row_parts = (product.rows + rows - 1) / rows, column_parts = (product.columns + columns - 1) / columns;
  parallel_for(threads, row_parts * column_parts, true, [&](int64_t index) {
    const int64_t row = index % row_parts * rows, column = index / row_parts * columns;
    const Part part{row, std::min(row + rows, product.rows), column, std::min(column + columns, product.columns)};
    loops.weight_only.run(product, part, scratch_memory(loops.weight_only.scratch_bytes(product, part)));
  });
}

struct Counts {
  std::atomic<int64_t> results{0}, wrong{0};
};

// Compares all results of operands, and removes them.
template <class AnyOperands>
void compare(AnyOperands& operands, Counts& counts) {
  for (int64_t row = 0; row < operands.product.rows; ++row) {
    for (int64_t column = 0; column < operands.product.columns; ++column) {
      if (!operands.is_right(row, column)) ++counts.wrong;
      ++counts.results;
    }
  }
  std::fill(operands.output.begin(), operands.output.end(), 0);
}

void check(Threads& threads, const Loops& loops, uint64_t seed, Counts& counts) {
  Random random(seed);
  Operands operands(random);
  const Product& product = operands.product;
  for (const bool by_few_rows : {false, true}) {
    if (product.rows == 0 || product.columns == 0 || (by_few_rows && !operands.may_be_few_rows())) continue;
    multiply(threads, loops, product, by_few_rows);
    compare(operands, counts);
  }
  WeightOnlyOperands weight_only(random);
  if (weight_only.product.rows == 0 || weight_only.product.columns == 0 || weight_only.product.depth == 0) return;
  multiply(threads, loops, weight_only.product);
  compare(weight_only, counts);
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
