#include "threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace jquant {
namespace {

// Whether subnormal numbers count as 0, which the calling thread has set, and threads of the pool may not have.
class FloatMode {
 public:
#if defined(__x86_64__) || defined(_M_X64)
  static FloatMode current() { return FloatMode(_mm_getcsr()); }
  void set() const { _mm_setcsr(mode_); }

 private:
  explicit FloatMode(unsigned mode) : mode_(mode) {}
  unsigned mode_;
#elif defined(__aarch64__)
  static FloatMode current() {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return FloatMode(mode);
  }
  void set() const { __asm__ volatile("msr fpcr, %0" : : "r"(mode_)); }

 private:
  explicit FloatMode(uint64_t mode) : mode_(mode) {}
  uint64_t mode_;
#else
  static FloatMode current() { return {}; }
  void set() const {}
#endif
};

// Lets the processor know that this thread only waits.
void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

constexpr int kSpins = 500;  // some microseconds

typedef std::function<void(int64_t, int64_t, int64_t&)> Task;

// What the threads that work on one call share. It outlives the call for threads that come late.
struct Work {
  Work(int64_t count, int64_t group, int64_t threads, const Task& task)
      : count(count), group(group), threads(threads), task(&task) {}

  // The end of the range that begins at `first`: half of a fair share of what is left, but a group at least while there is
  // one for each thread.
  int64_t end_of_range(int64_t first) const {
    const int64_t share = std::max<int64_t>((count - first) / (2 * threads), 1), in_group = first % group;
    if (in_group == 0 && count - first >= threads * group) return first + std::max(share / group, int64_t{1}) * group;
    return std::min({first + share, first - in_group + group, count});
  }

  // Runs tasks until none is left. `task` is not touched by a thread that comes after the last.
  void run() {
    int64_t kept = -1;
    for (int64_t first = next.load(std::memory_order_relaxed); first < count;) {
      const int64_t end = end_of_range(first);
      if (!next.compare_exchange_weak(first, end, std::memory_order_relaxed)) continue;
      (*task)(first, end, kept);
      if (unfinished.fetch_sub(end - first, std::memory_order_acq_rel) == end - first) {
        const std::lock_guard<std::mutex> lock(mutex);
        finished.notify_one();
      }
      first = next.load(std::memory_order_relaxed);
    }
  }

  // The others are about to finish: going to sleep and being woken would often take longer.
  void wait() {
    for (int i = 0; i < kSpins && unfinished.load(std::memory_order_acquire) != 0; ++i) pause();
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [this] { return unfinished.load(std::memory_order_acquire) == 0; });
  }

  const int64_t count, group, threads;
  const Task* const task;
  const FloatMode mode = FloatMode::current();
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> unfinished{count};
  std::mutex mutex;
  std::condition_variable finished;
};

constexpr int kAlignment = 64;

struct Free {
  void operator()(char* memory) const { ::operator delete[](memory, std::align_val_t{kAlignment}); }
};

struct Scratch {
  std::unique_ptr<char[], Free> memory;
  int64_t bytes = 0;
};

}  // namespace

void parallel_for(Threads& threads, int64_t count, int64_t group, bool is_shared, const Task& task) noexcept {
  const int64_t helpers = is_shared ? std::min(count, threads.count()) - 1 : 0;
  int64_t kept = -1;
  if (helpers <= 0) return task(0, count, kept);
  const auto work = std::make_shared<Work>(count, group, helpers + 1, task);
  for (int64_t i = 0; i < helpers; ++i) {
    threads.schedule([work] {
      const FloatMode own = FloatMode::current();
      work->mode.set();
      work->run();
      own.set();
    });
  }
  work->run();
  work->wait();
}

char* scratch_memory(int64_t bytes) {
  thread_local Scratch scratch;
  if (bytes > scratch.bytes || scratch.bytes > kKeptScratch) {
    scratch = {};
    const int64_t wanted = std::max<int64_t>(bytes, kAlignment);
    scratch.memory.reset(static_cast<char*>(::operator new[](wanted, std::align_val_t{kAlignment}, std::nothrow)));
    scratch.bytes = scratch.memory ? wanted : 0;
  }
  return scratch.memory.get();
}

}  // namespace jquant
