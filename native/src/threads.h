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

// Calls `task(first, end)` for ranges that make up those from 0 to `count`, on this thread and, if the work is to be shared,
// on others; returns when all calls have. A thread that comes late finds nothing left to do: so this one never waits for
// another to begin, and makes progress while all threads of the pool wait in functions like this one.
//
// Ranges get shorter towards the end, so that threads finish at about the same time. Each lies within a group of `group`
// adjacent indices, or is several whole groups.
void parallel_for(Threads& threads, int64_t count, int64_t group, bool is_shared,
                  const std::function<void(int64_t first, int64_t end)>& task);

// Memory of this thread for intermediate results, of at least `bytes`, aligned to 64; it is valid until the next call, which
// keeps it if it has at most 1 MB. Null if there is not enough memory.
char* scratch_memory(int64_t bytes);

}  // namespace jquant
