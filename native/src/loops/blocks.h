// The product with block scales, one part of the output at a time.
//
// Weights are read from memory once for all rows of the part, block by block, in groups of columns. With few rows, they are
// expanded to words of four bytes in registers, and multiplied there; with more, in a panel that stays in the nearest cache.
// So do the float32 sums of a strip of columns, from the first block to the last.
#pragma once

#include "../block_product.h"
#include "epilogue.h"
#include "floats.h"
#include "words.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

constexpr int64_t kStepWords = 16;        // words of K that are multiplied at once; longer blocks take several steps
constexpr int64_t kSumsBytes = 24 << 10;  // of a strip of several groups
constexpr int64_t kStepsAhead = 2;        // whose weights are loaded into the caches
constexpr int kGroupBytes = 128;          // of a row of B, in a group of columns: two lines of a cache
constexpr int kTileLanes = kRowVectors * kLanes;

// How the bytes of B are to be flipped for `dot4`, which adds `kWeightOffset` to them.
constexpr uint32_t kFlipOfBytes = kWeightOffset ? kSignBits : 0;

// A vector of floats from `index` on, of an array of `size`.
JQUANT_INLINE Floats floats_at(const BlockFloats& array, int64_t index, int64_t size) {
  if (array.type == Type::kFloat32) return load_at_most<Floats>(static_cast<const float*>(array.data) + index, size - index);
  const Halves halves = load_at_most<Halves>(static_cast<const uint16_t*>(array.data) + index, size - index);
  return array.type == Type::kBfloat16 ? from_bfloat16(halves) : from_float16(halves);
}

// Four 4-bit integers in each word of 16 bits, as bytes.
JQUANT_INLINE Words bytes_of_nibbles(Halves words) {
  Words bytes = widened(words);
  bytes = (bytes | bytes << 8) & 0x00ff00ff;
  return (bytes | bytes << 4) & 0x0f0f0f0f;
}

// How many vectors of columns are multiplied by a tile of rows at once: four where the registers hold their sums.
constexpr int kMostRowsOfFour = kTileRows * kTilePanels / kWord;
constexpr int vectors_at_once(int rows) { return rows <= kMostRowsOfFour ? kWord : kTilePanels; }

// Weights where they are in B, from one row of a column on: uint16, each of four 4-bit integers.
struct Nibbles {
  typedef uint16_t Element;
  static constexpr bool kHasNibbles = true;
  static constexpr int64_t kRowsPerElement = kWord;
  static constexpr int kMostRows = kTileRows;  // of a tile
  static constexpr int32_t kOffset = 0;        // what is added to the stored integers
  const Element* data;
  int64_t columns;

  // The words of K of `kCount` adjacent vectors of columns.
  template <int kCount>
  JQUANT_INLINE void read(int64_t word, int vector, Words (&words)[kCount]) const {
    const Element* source = data + word * columns + vector * kLanes;
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) words[i] = bytes_of_nibbles(load<Halves>(source + i * kLanes));
  }

  // The same where only `row_count` rows and `left` elements are left in B; zeros take the place of the others.
  JQUANT_INLINE void read_at_end(int64_t word, int vector, int64_t, int64_t left, Words (&words)[kWord]) const {
    const int64_t start = word * columns + vector * kLanes;
    for (int i = 0; i < kWord; ++i) {
      const int64_t index = start + i * kLanes;
      words[i] = bytes_of_nibbles(load_at_most<Halves>(data + index, left - index));
    }
  }
};

// The same: int8.
struct Int8s {
  typedef int8_t Element;
  static constexpr bool kHasNibbles = false;
  static constexpr int64_t kRowsPerElement = 1;
  static constexpr int kMostRows = kMostRowsOfFour;
  static constexpr int32_t kOffset = kWeightOffset;
  const Element* data;
  int64_t columns;

  template <int kCount>
  JQUANT_INLINE void read(int64_t word, int vector, Words (&words)[kCount]) const {
    static_assert(kCount == kWord);
    const Element* source = data + word * kWord * columns + vector * kLanes;
    Words rows[kWord];
#pragma GCC unroll 4
    for (int i = 0; i < kWord; ++i) rows[i] = load<Words>(source + i * columns) ^ kFlipOfBytes;
    words_of_columns(rows, words);
  }

  JQUANT_INLINE void read_at_end(int64_t word, int vector, int64_t row_count, int64_t left, Words (&words)[kWord]) const {
    Words rows[kWord] = {};
    for (int64_t i = 0; i < kWord && word * kWord + i < row_count; ++i) {
      const int64_t index = (word * kWord + i) * columns + vector * kLanes;
      rows[i] = load_at_most<Words>(data + index, left - index) ^ kFlipOfBytes;
    }
    words_of_columns(rows, words);
  }
};

// A group of columns of weights of type `Stored`.
template <class Stored>
constexpr int kGroupColumns = kGroupBytes / sizeof(typename Stored::Element);
template <class Stored>
constexpr int kGroupVectors = kGroupColumns<Stored> / kLanes;

// Weights of a group that have been expanded.
template <class Stored>
struct Panel {
  static constexpr bool kHasNibbles = Stored::kHasNibbles;
  static constexpr int kMostRows = kTileRows;
  char* data;

  template <int kCount>
  JQUANT_INLINE void read(int64_t word, int vector, Words (&words)[kCount]) const {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) words[i] = load<Words>(data + (word * kGroupVectors<Stored> + vector + i) * kBytes);
  }

  template <int kCount>
  JQUANT_INLINE void write(int64_t word, int vector, const Words (&words)[kCount]) const {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) store(data + (word * kGroupVectors<Stored> + vector + i) * kBytes, words[i]);
  }
};

// A step along K: some words of a block, for one group of columns.
struct Step {
  int64_t block;
  int64_t first_row, row_count;  // of B
  int64_t words;                 // of K, of which the last may have fewer than four rows
  int64_t strip, strip_end;      // the columns of the strip
  int64_t column;                // the first of the group
  bool is_first, is_last;        // of the block
};

// The weights of B from a row and a column on.
template <class Stored>
JQUANT_INLINE Stored weights_from(const BlockProduct& product, int64_t row, int64_t column) {
  const int64_t index = row / Stored::kRowsPerElement * product.columns + column;
  return {static_cast<const typename Stored::Element*>(product.b) + index, product.columns};
}

// The elements of B from the first of a step on.
template <class Stored>
JQUANT_INLINE int64_t elements_left(const BlockProduct& product, const Step& step) {
  return (product.depth() - step.first_row) / Stored::kRowsPerElement * product.columns - step.column;
}

// Whether B has all rows of a step's words, and as many elements as whole groups read.
template <class Stored>
JQUANT_INLINE bool is_inside(const BlockProduct& product, const Step& step) {
  const int64_t rows = step.row_count / Stored::kRowsPerElement;
  return step.row_count % kWord == 0 &&
         (rows - 1) * product.columns + kGroupColumns<Stored> <= elements_left<Stored>(product, step);
}

template <class Stored>
void expand(const BlockProduct& product, const Step& step, const Panel<Stored>& panel) {
  const Stored weights = weights_from<Stored>(product, step.first_row, step.column);
  const int64_t left = elements_left<Stored>(product, step);
  const bool is_whole = is_inside<Stored>(product, step);
  for (int64_t word = 0; word < step.words; ++word) {
#pragma GCC unroll 2
    for (int vector = 0; vector < kGroupVectors<Stored>; vector += kWord) {
      Words words[kWord];
      if (is_whole) {
        weights.read(word, vector, words);
      } else {
        weights.read_at_end(word, vector, step.row_count, left, words);
      }
      panel.write(word, vector, words);
    }
  }
}

// Loads bytes of a row, which is too far from the row before it for the processor to foresee.
JQUANT_INLINE void prefetch_row(const void* row, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(static_cast<const char*>(row) + byte);
}

// Loads this group's share of the weights of a later step: of all columns of the strip, in the order of memory.
template <class Stored>
JQUANT_INLINE void prefetch_weights(const BlockProduct& product, const Step& step) {
  const int64_t first_row = step.first_row + kStepsAhead * step.row_count;
  const int64_t rows = smaller(step.row_count, product.depth() - first_row) / Stored::kRowsPerElement;
  const Stored weights = weights_from<Stored>(product, first_row, step.strip);
  const int64_t bytes = (step.strip_end - step.strip) * static_cast<int64_t>(sizeof(typename Stored::Element));
  const int64_t groups = (step.strip_end - step.strip + kGroupColumns<Stored> - 1) / kGroupColumns<Stored>;
  const int64_t group = (step.column - step.strip) / kGroupColumns<Stored>;
  for (int64_t row = rows * group / groups; row < rows * (group + 1) / groups; ++row)
    prefetch_row(weights.data + row * weights.columns, bytes);
}

template <class Stored>
JQUANT_INLINE void prefetch_columns(const BlockProduct& product, const Step& step) {
  const int64_t block = step.block + kStepsAhead, index = block * product.columns + step.column;
  if (block >= product.blocks) return;
  const BlockFloats* const arrays[] = {&product.scale, &product.minimum};
  for (const BlockFloats* array : arrays) {
    const int64_t size = size_of(array->type);
    if (*array) prefetch_row(static_cast<const char*>(array->data) + index * size, kGroupColumns<Stored> * size);
  }
  if (product.b_zero_point != nullptr) prefetch_row(product.b_zero_point + index, kGroupColumns<Stored>);
}

// What belongs to the columns of a group in one block.
template <class Stored>
struct BlockColumns {
  Floats scale[kGroupVectors<Stored>], minimum[kGroupVectors<Stored>];
  Ints zero_point[kGroupVectors<Stored>];  // how much more the expanded weights are than what they stand for
  Ints sum[kGroupVectors<Stored>];         // of the expanded weights
};

template <class Stored>
JQUANT_INLINE void read_columns(const BlockProduct& product, const Step& step, BlockColumns<Stored>& columns) {
  const int64_t start = step.block * product.columns + step.column, size = product.blocks * product.columns;
  for (int vector = 0; vector < kGroupVectors<Stored>; ++vector) {
    const int64_t index = start + vector * kLanes;
    columns.scale[vector] = floats_at(product.scale, index, size);
    if (product.minimum) columns.minimum[vector] = floats_at(product.minimum, index, size);
    if (product.b_zero_point != nullptr) {
      const Ints integers = converted<Ints>(load_at_most<SmallInts>(product.b_zero_point + index, size - index));
      const int32_t offset = product.b_offset + Stored::kOffset;
      columns.zero_point[vector] = (product.b_zero_point_is_unsigned ? integers & 0xff : integers) + offset;
    }
  }
}

// Adds up the columns of a panel.
template <class Stored>
JQUANT_INLINE void add_column_sums(const Panel<Stored>& panel, const Step& step, int32_t* sums) {
  const Activations ones = activations_of(splat_word(0x01010101));
  for (int first = 0; first < kGroupVectors<Stored>; first += kWord) {
    Ints totals[kWord];
    for (int i = 0; i < kWord; ++i) totals[i] = step.is_first ? Ints{} : load<Ints>(sums + (first + i) * kLanes);
    for (int64_t word = 0; word < step.words; ++word) {
      Words words[kWord];
      panel.read(word, first, words);
      for (int i = 0; i < kWord; ++i) totals[i] = dot4(totals[i], weights_of(words[i]), ones);
    }
    for (int i = 0; i < kWord; ++i) store(sums + (first + i) * kLanes, totals[i]);
  }
}

// What a step needs of a tile of rows.
struct TileRows {
  const char* activations;      // the words of the step, each of all rows
  const int32_t* start;         // of the sums of each row
  const int32_t* sum;           // of each row of A over the block, less its zero point
  const int32_t* a_zero_point;  // of the flipped bytes of A; null if they are all 0
  int32_t* partial;             // the sums of a block between its steps
  float* totals;                // to which the contribution of the block is added
  int64_t stride;               // between the rows of `partial` and `totals`
};

// Multiplies a tile of rows by the weights of a step, and adds the contribution of the block to the totals at its end.
template <int kRows, class Stored, class Source>
void add_step(const BlockProduct& product, const Step& step, const TileRows& rows, const Source& weights,
              const BlockColumns<Stored>& columns) {
  constexpr int kVectors = vectors_at_once(kRows);
  const bool has_minimum = static_cast<bool>(product.minimum);
#pragma GCC unroll 1
  for (int first = 0; first < kGroupVectors<Stored>; first += kVectors) {
    Ints sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i)
        sums[row][i] =
            step.is_first ? Ints{} + rows.start[row] : load<Ints>(rows.partial + row * rows.stride + (first + i) * kLanes);
    }
    const char* activations = rows.activations;
    for (int64_t word = 0; word < step.words; ++word) {
      Words words[kVectors];
      weights.read(word, first, words);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        uint32_t bytes;
        __builtin_memcpy(&bytes, activations + row * kWord, kWord);
        const Words activation = splat_word(bytes);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i)
          sums[row][i] = Stored::kHasNibbles ? dot4_of_nibbles(sums[row][i], words[i], activation)
                                             : dot4(sums[row][i], weights_of(words[i]), activations_of(activation));
      }
      activations += kRows * kWord;
    }
    if (!step.is_last) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) store(rows.partial + row * rows.stride + (first + i) * kLanes, sums[row][i]);
      continue;
    }
    if (product.b_zero_point != nullptr) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sums[row][i] -= columns.zero_point[first + i] * rows.sum[row];
    }
    if (rows.a_zero_point != nullptr) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sums[row][i] -= columns.sum[first + i] * rows.a_zero_point[row];
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      float* totals = rows.totals + row * rows.stride + first * kLanes;
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        Floats term = converted<Floats>(sums[row][i]) * columns.scale[first + i];
        if (has_minimum) term = term + static_cast<float>(rows.sum[row]) * columns.minimum[first + i];
        store(totals + i * kLanes, load<Floats>(totals + i * kLanes) + term);
      }
    }
  }
}

template <class Stored, class Source, int... kRows>
JQUANT_INLINE void add_step_of(int row_count, const BlockProduct& product, const Step& step, const TileRows& rows,
                               const Source& weights, const BlockColumns<Stored>& columns) {
  typedef void (*AddStep)(const BlockProduct&, const Step&, const TileRows&, const Source&, const BlockColumns<Stored>&);
  constexpr AddStep functions[] = {add_step<smaller(kRows, Source::kMostRows), Stored, Source>...};
  functions[row_count - 1](product, step, rows, weights, columns);
}

template <class Stored, class Source>
JQUANT_INLINE void add_step_for(int row_count, const BlockProduct& product, const Step& step, const TileRows& rows,
                                const Source& weights, const BlockColumns<Stored>& columns) {
  if constexpr (kTileRows == 12)
    add_step_of<Stored, Source, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(row_count, product, step, rows, weights, columns);
  if constexpr (kTileRows == 8)
    add_step_of<Stored, Source, 1, 2, 3, 4, 5, 6, 7, 8>(row_count, product, step, rows, weights, columns);
  if constexpr (kTileRows == 4) add_step_of<Stored, Source, 1, 2, 3, 4>(row_count, product, step, rows, weights, columns);
}

// Where the intermediate results of a part lie in its memory.
template <class Stored>
struct BlockScratch {
  int64_t block_words;   // words of K in a block
  int64_t padded_depth;  // the bytes of a row in whole words and vectors
  int64_t tiles, rows_per_tile;
  int64_t strip_columns;  // whose sums are kept at a time
  int64_t padded_rows, activations, row_sums, starts, a_zero_points, panel, column_sums, partial, totals;
  int64_t bytes = 0;

  BlockScratch(const BlockProduct& product, const Part& part) {
    const int64_t rows = part.end_row - part.first_row, columns = part.end_column - part.first_column;
    block_words = (product.block_size + kWord - 1) / kWord;
    padded_depth = rounded_up(product.blocks * block_words * kWord, kBytes);
    tiles = (rows + kTileRows - 1) / kTileRows;
    rows_per_tile = (rows + tiles - 1) / tiles;
    constexpr int64_t kElement = 4, kColumns = kGroupColumns<Stored>;
    const int64_t groups = smaller(rounded_up(columns, kColumns), kSumsBytes / (rows * kElement)) / kColumns;
    strip_columns = groups > 1 ? groups * kColumns : kColumns;
    padded_rows = reserve(product.block_size % kWord ? kTileRows * padded_depth : 0);
    activations = reserve(rows * padded_depth + kTileLanes * kWord);
    row_sums = reserve(tiles * product.blocks * kTileLanes * kElement);
    starts = reserve(tiles * product.blocks * kTileLanes * kElement);
    a_zero_points = reserve(tiles * kTileLanes * kElement);
    panel = reserve(smaller(block_words, kStepWords) * kGroupVectors<Stored> * kBytes);
    column_sums = reserve(strip_columns * kElement);
    partial = reserve(block_words > kStepWords ? rows * strip_columns * kElement : 0);
    totals = reserve(rows * strip_columns * kElement);
  }

 private:
  int64_t reserve(int64_t size) {
    const int64_t start = bytes;
    bytes += rounded_up(size, kBytes);
    return start;
  }
};

// Packs up to `kTileRows` rows of A: the bytes of each word of K, for all rows, are adjacent.
//
// `packed` has `row_count` words for each word of K; as each store writes a whole vector, it needs some more.
JQUANT_INLINE void pack_activations(const char* const* rows, int row_count, int64_t depth, uint32_t flip, char* packed) {
  for (int64_t k = 0; k < depth; k += kBytes) {
    for (int first = 0; first < row_count; first += kLanes) {
      Words square[kLanes];
      for (int i = 0; i < kLanes; ++i)
        square[i] = first + i < row_count ? bytes_of_row(rows[first + i], k, depth, flip) : Words{};
      transpose(square);
      for (int i = 0; i < kLanes; ++i) store(packed + (i * row_count + first) * kWord, square[i]);
    }
    packed += kLanes * row_count * kWord;
  }
}

// The sums of a vector of rows of packed activations, from row `first` on, over some words of K.
JQUANT_INLINE Ints sums_of_rows(const char* packed, int row_count, int first, int64_t words) {
  const Weights ones = weights_of(splat_word(0x01010101));
  Ints sum = {};
  for (int64_t word = 0; word < words; ++word)
    sum = dot4(sum, ones, activations_of(load<Words>(packed + (word * row_count + first) * kWord)));
  return sum;
}

// A row of A in blocks of whole words, of which the padding is flipped to 0.
JQUANT_INLINE void pad_blocks(const BlockProduct& product, const char* row, int64_t block_words, uint32_t flip,
                              char* padded) {
  for (int64_t block = 0; block < product.blocks; ++block) {
    for (int64_t i = product.block_size; i < block_words * kWord; ++i) padded[i] = static_cast<char>(flip);
    __builtin_memcpy(padded, row, product.block_size);
    row += product.block_size;
    padded += block_words * kWord;
  }
}

// Packs the activations of a part tile by tile, and computes what corrects the sums of each block.
template <class Stored>
void prepare_activations(const BlockProduct& product, const Part& part, const BlockScratch<Stored>& places, char* scratch) {
  const int64_t depth = product.depth();
  const uint32_t flip = flip_of_activations(product.a_is_unsigned);
  const int32_t offset = product.b_zero_point == nullptr ? product.b_offset + Stored::kOffset : 0;
  int32_t* sums = reinterpret_cast<int32_t*>(scratch + places.row_sums);
  int32_t* starts = reinterpret_cast<int32_t*>(scratch + places.starts);
  int32_t* a_zero_points = reinterpret_cast<int32_t*>(scratch + places.a_zero_points);
  for (int64_t first = part.first_row; first < part.end_row; first += places.rows_per_tile) {
    const int rows = static_cast<int>(smaller(places.rows_per_tile, part.end_row - first));
    const char* row_data[kTileRows];
    for (int i = 0; i < rows; ++i) {
      row_data[i] = static_cast<const char*>(product.a) + (first + i) * depth;
      if (product.block_size % kWord == 0) continue;
      char* padded = scratch + places.padded_rows + i * places.padded_depth;
      pad_blocks(product, row_data[i], places.block_words, flip, padded);
      row_data[i] = padded;
    }
    char* packed = scratch + places.activations + (first - part.first_row) * places.padded_depth;
    pack_activations(row_data, rows, product.blocks * places.block_words * kWord, flip, packed);
    for (int i = 0; i < kTileLanes; ++i) {
      const Broadcast<uint8_t>& array = product.a_zero_point;
      const uint8_t zero_point = array && i < rows ? array.data[(first + i) * array.row_stride] : 0;
      a_zero_points[i] = static_cast<int8_t>(zero_point ^ (flip & 0xff));
    }
    for (int64_t block = 0; block < product.blocks; ++block) {
      for (int first_lane = 0; first_lane < kTileLanes; first_lane += kLanes) {
        const char* words = packed + block * places.block_words * rows * kWord;
        const Ints zero_points = load<Ints>(a_zero_points + first_lane) * static_cast<int32_t>(product.block_size);
        const Ints sum = sums_of_rows(words, rows, first_lane, places.block_words) - zero_points;
        store(sums + first_lane, sum);
        store(starts + first_lane, sum * -offset);
      }
      sums += kTileLanes;
      starts += kTileLanes;
    }
    a_zero_points += kTileLanes;
  }
}

// Applies the epilogue to the totals of `part`, whose rows are `stride` apart, and writes that part of the output. The
// totals are overwritten.
inline void finish(const BlockProduct& product, float* totals, int64_t stride, const Part& part) {
  const FloatEpilogue& epilogue = product.epilogue;
  const int64_t count = part.end_column - part.first_column, size = size_of(epilogue.output_type);
  for (int64_t row = part.first_row; row < part.end_row; ++row, totals += stride) {
    if (epilogue.row_scale) {
      with_row(epilogue.row_scale, row, part.first_column, [=](auto scale) {
        for_columns(count, [=](auto lane, int64_t column) {
          store(totals + column, load<typename decltype(lane)::Float>(totals + column) * scale(lane, column));
        });
      });
    }
    if (epilogue.bias) {
      with_row(epilogue.bias, row, part.first_column, [=](auto bias) {
        for_columns(count, [=](auto lane, int64_t column) {
          store(totals + column, load<typename decltype(lane)::Float>(totals + column) + bias(lane, column));
        });
      });
    }
    char* output = static_cast<char*>(product.output) + (row * product.columns + part.first_column) * size;
    if (epilogue.output_type == Type::kFloat32) {
      __builtin_memcpy(output, totals, count * size);
    } else {
      narrow(totals, count, epilogue.output_type, output);
    }
  }
}

// Adds the contributions of the group of `step` to all rows of a part.
template <class Stored>
JQUANT_INLINE void add_group(const BlockProduct& product, const Step& step, int64_t row_count,
                             const BlockScratch<Stored>& places, char* scratch) {
  const int64_t in_strip = step.column - step.strip;
  const bool has_column_sums = product.a_is_unsigned || product.a_zero_point;
  const bool is_direct = row_count <= Stored::kMostRows && !has_column_sums && is_inside<Stored>(product, step);
  const Panel<Stored> panel{scratch + places.panel};
  int32_t* column_sums = reinterpret_cast<int32_t*>(scratch + places.column_sums) + in_strip;
  prefetch_weights<Stored>(product, step);
  if (step.is_first) prefetch_columns<Stored>(product, step);
  if (!is_direct) expand(product, step, panel);
  if (has_column_sums) add_column_sums(panel, step, column_sums);
  BlockColumns<Stored> columns;
  if (step.is_last) {
    read_columns(product, step, columns);
    if (has_column_sums) __builtin_memcpy(columns.sum, column_sums, sizeof(columns.sum));
  }
  const int64_t first_word = step.block * places.block_words + (step.first_row - step.block * product.block_size) / kWord;
  for (int64_t tile = 0; tile < places.tiles; ++tile) {
    const int64_t first = tile * places.rows_per_tile;
    const int tile_rows = static_cast<int>(smaller(places.rows_per_tile, row_count - first));
    const int64_t in_sums = (tile * product.blocks + step.block) * kTileLanes;
    const int64_t in_totals = first * places.strip_columns + in_strip;
    TileRows rows;
    rows.activations = scratch + places.activations + first * places.padded_depth + first_word * tile_rows * kWord;
    rows.start = reinterpret_cast<const int32_t*>(scratch + places.starts) + in_sums;
    rows.sum = reinterpret_cast<const int32_t*>(scratch + places.row_sums) + in_sums;
    rows.a_zero_point = nullptr;
    if (has_column_sums)
      rows.a_zero_point = reinterpret_cast<const int32_t*>(scratch + places.a_zero_points) + tile * kTileLanes;
    rows.partial = reinterpret_cast<int32_t*>(scratch + places.partial) + in_totals;
    rows.totals = reinterpret_cast<float*>(scratch + places.totals) + in_totals;
    rows.stride = places.strip_columns;
    if (is_direct) {
      add_step_for(tile_rows, product, step, rows, weights_from<Stored>(product, step.first_row, step.column), columns);
    } else {
      add_step_for(tile_rows, product, step, rows, panel, columns);
    }
  }
}

template <class Stored>
void multiply_by(const BlockProduct& product, const Part& part, char* scratch) {
  const BlockScratch<Stored> places(product, part);
  const int64_t row_count = part.end_row - part.first_row;
  float* totals = reinterpret_cast<float*>(scratch + places.totals);
  prepare_activations(product, part, places, scratch);
  Step step;
  for (step.strip = part.first_column; step.strip < part.end_column; step.strip += places.strip_columns) {
    step.strip_end = smaller(step.strip + places.strip_columns, part.end_column);
    // The sum of -0 and the first contribution is that contribution, whatever its sign.
    for (int64_t i = 0; i < row_count * places.strip_columns; i += kLanes)
      store(totals + i, (product.blocks ? -0.0f : 0.0f) - Floats{});  // the sum with 0 would not be -0
    for (step.block = 0; step.block < product.blocks; ++step.block) {
      for (int64_t word = 0; word < places.block_words; word += kStepWords) {
        step.words = smaller(kStepWords, places.block_words - word);
        step.first_row = step.block * product.block_size + word * kWord;
        step.row_count = smaller(step.words * kWord, product.block_size - word * kWord);
        step.is_first = word == 0;
        step.is_last = word + step.words == places.block_words;
        for (step.column = step.strip; step.column < step.strip_end; step.column += kGroupColumns<Stored>)
          add_group(product, step, row_count, places, scratch);
      }
    }
    finish(product, totals, places.strip_columns, {part.first_row, part.end_row, step.strip, step.strip_end});
  }
}

// A part of the product. `scratch` is aligned to a vector.
inline void multiply_blocks(const BlockProduct& product, const Part& part, char* scratch) {
  if (product.b_is_words) {
    multiply_by<Nibbles>(product, part, scratch);
  } else {
    multiply_by<Int8s>(product, part, scratch);
  }
}

// The memory that `multiply_blocks` works in.
inline int64_t scratch_of_blocks(const BlockProduct& product, const Part& part) {
  return product.b_is_words ? BlockScratch<Nibbles>(product, part).bytes : BlockScratch<Int8s>(product, part).bytes;
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
