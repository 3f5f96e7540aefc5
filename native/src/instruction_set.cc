// The choice of an instruction set.
#include <cstdlib>
#include <cstring>

#include "loops.h"

#if (defined(__x86_64__) || defined(_M_X64)) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace jquant {
namespace {

struct InstructionSet {
  const Loops& loops;
  bool is_supported;
};

#if defined(__x86_64__) || defined(_M_X64)
bool has_avx512_vnni() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

// Whether there are registers of tiles, and Linux lets this process use them, which it has to be asked for.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

const Loops& amx_int8_loops() {
  static const Loops loops = [] {
    Loops combined = kAvx512VnniLoops;
    combined.name = kAmxInt8Loops.name;
    combined.row_unit = kAmxInt8Loops.row_unit;
    combined.panels = kAmxInt8Loops.panels;
    combined.window_rows = kAmxInt8Loops.window_rows;
    combined.window_columns = kAmxInt8Loops.window_columns;
    return combined;
  }();
  return loops;
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
bool has_dot_products() { return (getauxval(AT_HWCAP) & (1UL << 20)) != 0; }      // HWCAP_ASIMDDP
bool has_matrix_products() { return (getauxval(AT_HWCAP2) & (1UL << 13)) != 0; }  // HWCAP2_I8MM
#elif defined(__APPLE__)
bool has_dot_products() { return true; }  // every processor of Apple's
bool has_matrix_products() {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname("hw.optional.arm.FEAT_I8MM", &value, &size, nullptr, 0) == 0 && value != 0;
}
#else
bool has_dot_products() { return false; }
bool has_matrix_products() { return false; }
#endif
#endif

const Loops* choose() {
  // The fastest comes first.
  const InstructionSet instruction_sets[] = {
#if defined(__x86_64__) || defined(_M_X64)
      {amx_int8_loops(), has_avx512_vnni() && may_use_tiles()},
      {kAvx512VnniLoops, has_avx512_vnni()},
      {kAvxVnniLoops, __builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
      {kAvx2Loops, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
#elif defined(__aarch64__)
      {kNeonI8mmLoops, has_dot_products() && has_matrix_products()},
      {kNeonDotLoops, has_dot_products()},
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
