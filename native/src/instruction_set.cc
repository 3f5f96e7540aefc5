// The choice of an instruction set.
#include <cstdlib>
#include <cstring>

#include "loops.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace jquant {
namespace {

struct InstructionSet {
  const Loops& loops;
  bool is_supported;
};

const Loops* choose() {
  // The fastest comes first.
  const InstructionSet instruction_sets[] = {
#if defined(__x86_64__) || defined(_M_X64)
      {kAvx512VnniLoops, __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")},
      {kAvxVnniLoops, __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
      {kAvx2Loops, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#elif defined(__aarch64__)
#if defined(__linux__)
      {kNeonDotLoops, (getauxval(AT_HWCAP) & (1UL << 20)) != 0},  // HWCAP_ASIMDDP
#else
      {kNeonDotLoops, true},  // every processor of Apple's has it
#endif
#endif
      {kPortableLoops, true},
  };
  const char* forced = std::getenv("JQUANT_NATIVE_ISA");
  for (const InstructionSet& instruction_set : instruction_sets) {
    if (!instruction_set.is_supported) continue;
    if (forced == nullptr || *forced == '\0' || std::strcmp(forced, instruction_set.loops.name) == 0)
      return &instruction_set.loops;
  }
  return nullptr;
}

}  // namespace

const Loops* chosen_loops() {
  static const Loops* const loops = choose();
  return loops;
}

}  // namespace jquant
