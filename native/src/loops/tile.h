// The inner loop of products with many rows: a tile of the output, whose sums stay in registers.
//
// It multiplies `kRows` rows of copied activations, `stride` bytes apart, by `kPanels` panels: `kTilePanels`, or one if only
// that is left. A panel has the words of K of a vector of columns, one after the other; behind the last, there is memory up
// to a whole number of vectors of K. The sums, each of which begins with the `start` of its row, are stored in rows of
// `kStripColumns`.
//
// `TileRegisters` are what a thread that calls it holds meanwhile.
#pragma once

#include "vectors.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int kStripColumns = 256;  // whose sums an epilogue completes at once

#if defined(JQUANT_AMX_INT8)

constexpr int kRegisterWords = kBytes / kWord;

// The shapes of a thread's registers of tiles, all of them whole.
class TileRegisters {
 public:
  TileRegisters() {
    struct {
      uint8_t palette = 1, first_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = kBytes;
      shapes.rows[i] = kRowUnit;
    }
    _tile_loadconfig(&shapes);
  }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { _tile_release(); }
};

// Rows beyond the last, up to a whole register, are multiplied, too, whatever is in their memory.
template <int kRows, int kPanels>
void multiply_tile(const char* activations, int64_t stride, const char* panels, int64_t words, int64_t panel_bytes,
                   const int32_t* start, int32_t* sums) {
  constexpr bool kHasSecond = kPanels == 2, kHasMoreRows = kRows > kRowUnit;
  const char* const more_activations = activations + kRowUnit * stride;
  const char* const second = panels + panel_bytes;
  __asm__ volatile("" : : : "memory");  // GCC does not know that loading a tile reads memory
  _tile_zero(0);
  if constexpr (kHasSecond) _tile_zero(1);
  if constexpr (kHasMoreRows) _tile_zero(2);
  if constexpr (kHasMoreRows && kHasSecond) _tile_zero(3);
  for (int64_t word = 0; word < words; word += kRegisterWords) {
    _tile_loadd(6, panels + word * kBytes, kBytes);
    _tile_loadd(4, activations + word * kWord, stride);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kHasSecond) {
      _tile_loadd(7, second + word * kBytes, kBytes);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (kHasMoreRows) {
      _tile_loadd(5, more_activations + word * kWord, stride);
      _tile_dpbsud(2, 5, 6);
      if constexpr (kHasSecond) _tile_dpbsud(3, 5, 7);
    }
  }
  constexpr int kSumStride = kStripColumns * sizeof(int32_t);
  _tile_stored(0, sums, kSumStride);
  if constexpr (kHasSecond) _tile_stored(1, sums + kLanes, kSumStride);
  if constexpr (kHasMoreRows) _tile_stored(2, sums + kRowUnit * kStripColumns, kSumStride);
  if constexpr (kHasMoreRows && kHasSecond) _tile_stored(3, sums + kRowUnit * kStripColumns + kLanes, kSumStride);
  for (int row = 0; row < kRows; ++row) {
    for (int panel = 0; panel < kPanels; ++panel) {
      int32_t* const place = sums + row * kStripColumns + panel * kLanes;
      store(place, load<Ints>(place) + start[row]);
    }
  }
}

#else

struct TileRegisters {
  TileRegisters() {}  // so that it counts as used
};

#if defined(JQUANT_NEON_I8MM)

// An instruction multiplies eight bytes each of two rows and two columns, and adds to their four sums.
template <int kRows, int kPanels>
void multiply_tile(const char* activations, int64_t stride, const char* panels, int64_t words, int64_t panel_bytes,
                   const int32_t* start, int32_t* sums) {
  constexpr int kRowPairs = (kRows + 1) / 2, kColumnPairs = kPanels * kLanes / 2;
  int32x4_t totals[kRowPairs][kColumnPairs] = {};
  for (int64_t word = 0; word < words; word += 2) {
    int8x16_t weights[kColumnPairs];
#pragma GCC unroll 2
    for (int panel = 0; panel < kPanels; ++panel) {
      const int32x4_t first = load<int32x4_t>(panels + panel * panel_bytes);
      const int32x4_t second = load<int32x4_t>(panels + panel * panel_bytes + kBytes);
      weights[2 * panel] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
      weights[2 * panel + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < kRowPairs; ++pair) {
      const int second_row = 2 * pair + 1 < kRows ? 2 * pair + 1 : 2 * pair;  // whose sums are not stored if it is the first
      const int8x16_t rows =
          vcombine_s8(load<int8x8_t>(activations + 2 * pair * stride), load<int8x8_t>(activations + second_row * stride));
#pragma GCC unroll 4
      for (int i = 0; i < kColumnPairs; ++i) totals[pair][i] = vmmlaq_s32(totals[pair][i], rows, weights[i]);
    }
    activations += 2 * kWord;
    panels += 2 * kBytes;
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const int32x4_t(&pair)[kColumnPairs] = totals[row / 2];
    for (int panel = 0; panel < kPanels; ++panel) {
      const int32x4_t left = pair[2 * panel], right = pair[2 * panel + 1];
      const int32x4_t of_row = row % 2 == 0 ? vcombine_s32(vget_low_s32(left), vget_low_s32(right))
                                            : vcombine_s32(vget_high_s32(left), vget_high_s32(right));
      store(sums + row * kStripColumns + panel * kLanes, bits_as<Ints>(of_row) + start[row]);
    }
  }
}

#else

template <int kRows, int kPanels>
void multiply_tile(const char* activations, int64_t stride, const char* panels, int64_t words, int64_t panel_bytes,
                   const int32_t* start, int32_t* sums) {
  constexpr int kGroup = 3;  // rows that one address and multiples of the stride reach
  constexpr int kGroups = (kRows + kGroup - 1) / kGroup;
  const char* groups[kGroups];
  for (int group = 0; group < kGroups; ++group) groups[group] = activations + group * kGroup * stride;
  Ints totals[kRows][kPanels];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
    for (int panel = 0; panel < kPanels; ++panel) totals[row][panel] = Ints{} + start[row];
  for (int64_t word = 0; word < words; ++word) {
    Weights weights[kPanels];
    for (int panel = 0; panel < kPanels; ++panel) weights[panel] = weights_of(load<Words>(panels + panel * panel_bytes));
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      uint32_t bytes;
      __builtin_memcpy(&bytes, groups[row / kGroup] + row % kGroup * stride, kWord);
      const Activations activation = activations_of(splat_word(bytes));
      for (int panel = 0; panel < kPanels; ++panel)
        totals[row][panel] = dot4(totals[row][panel], weights[panel], activation);
    }
#pragma GCC unroll 16
    for (int group = 0; group < kGroups; ++group) groups[group] += kWord;
    panels += kBytes;
  }
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row)
    for (int panel = 0; panel < kPanels; ++panel) store(sums + row * kStripColumns + panel * kLanes, totals[row][panel]);
}

#endif

#endif

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
