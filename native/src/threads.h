// Work that is divided over threads that somebody else owns.
#pragma once

#include <cstdint>
#include <functional>

namespace jquant {

// A pool of threads: XLA's own in a program, another one in a test.
class Threads {
 public:
  virtual ~Threads() = default;
  virtual int64_t count() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// Calls `task(first, end, kept)` for ranges that make up those from 0 to `count`, on this thread and, if the work is to be
// shared, on others; returns when all calls have. A thread that comes late finds nothing left to do: so this one never waits
// for another to begin, and makes progress while all threads of the pool wait in functions like this one.
//
// Ranges get shorter towards the end, so that threads finish at about the same time. Each lies within a group of `group`
// adjacent indices, or is several whole groups. `kept` is a number that a thread has from one range to the next, at first
// -1.
//
// An exception ends the process, because other threads may still work on what it would unwind.
void parallel_for(Threads& threads, int64_t count, int64_t group, bool is_shared,
                  const std::function<void(int64_t first, int64_t end, int64_t& kept)>& task) noexcept;

// Memory of this thread for intermediate results, of at least `bytes`, aligned to 64; it is valid until the next call, which
// leaves it as it is if both need at most `kKeptScratch` and this one no more than the last. Null if there is not enough.
constexpr int64_t kKeptScratch = 1 << 20;
char* scratch_memory(int64_t bytes);

}  // namespace jquant
