// The product with block scales, one part of the output at a time.
//
// Weights are read from memory once for all rows of the part, a few rows of B at a time. With few rows of A, they are
// expanded in registers, and multiplied there; with more, in a panel that stays in the nearest cache. So do the sums of a
// strip of columns, from the first block to the last.
#pragma once

#include "block_rows.h"
#include "epilogue.h"
#include "stored_weights.h"

namespace jquant {
namespace JQUANT_NAMESPACE {

// With few rows of A, each step reads four rows of elements of B: with more, columns would take turns with other lines of
// memory so often that reading them takes twice as long, and with fewer, the sums would be stored more often.
constexpr int64_t kStepRows = 4;
constexpr int64_t kPanelWords = 16;         // of K, which are expanded at once
constexpr int64_t kTotalsBytes = 24 << 10;  // of a strip of more than one group of columns

// How many vectors of columns are multiplied by a tile of rows at once: four where the registers hold their sums.
constexpr int kMostRowsOfFour = kTileRows * kTilePanels / kWord;
constexpr int vectors_at_once(int rows) { return rows <= kMostRowsOfFour ? kWord : kTilePanels; }

// The most rows of a tile that multiplies weights as `Source` reads them.
template <class Source>
constexpr int kMostRowsBy = Source::kLeastVectors <= kTilePanels ? kTileRows : kMostRowsOfFour;

// A step along K: some words of a block, for some columns of a strip.
struct Step {
  int64_t block;
  int64_t first_row, row_count;  // of B
  int64_t words;                 // of K, of which the last may have fewer than four rows
  bool is_first, is_last;        // of the block
  int64_t strip;                 // the first column of the strip
  int64_t column, end_column;    // whole groups, of which the last may end beyond B
};

// What a step needs of a tile of rows.
struct TileRows {
  const char* activations;      // the words of the step, each of all rows
  const int32_t* start;         // of the sums of each row
  const int32_t* sum;           // of each row of A over the block, less its zero point
  const int32_t* a_zero_point;  // of the flipped bytes of A; null if they are all 0
  const int32_t* column_sums;   // over the block, of the bytes that weights are expanded to
  int32_t* partial_sums;        // of products, between the steps of a block
  float* totals;                // to which the contributions of the blocks are added
  int64_t stride;               // between the rows of both
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

// Of the columns of a step, those of whole groups that B has, with all rows of the step's words.
template <class Stored>
JQUANT_INLINE int64_t columns_inside(const BlockProduct& product, const Step& step) {
  if (step.row_count % kWord != 0) return 0;
  const int64_t last_row = step.row_count / Stored::kRowsPerElement - 1;
  const int64_t left = elements_left<Stored>(product, step) - last_row * product.columns;
  return smaller(step.end_column - step.column, left / kGroupColumns * kGroupColumns);
}

// Expands the weights of a step.
template <class Stored>
void expand(const BlockProduct& product, const Step& step, const Panel<Stored>& panel) {
  const Stored weights = weights_from<Stored>(product, step.first_row, step.column);
  const int64_t left = elements_left<Stored>(product, step), inside = columns_inside<Stored>(product, step);
  for (int64_t word = 0; word < step.words; ++word) {
    Words words[kWord];
    int64_t column = 0;
    for (; column < inside; column += kGroupColumns) {
      weights.read(word, column, words);
      panel.write(word, column, words);
    }
    for (; column < step.end_column - step.column; column += kGroupColumns) {
      weights.read_at_end(word, column, step.row_count, left, words);
      panel.write(word, column, words);
    }
  }
}

// Adds up the columns of a panel.
template <class Stored>
JQUANT_INLINE void add_column_sums(const Panel<Stored>& panel, const Step& step, int32_t* sums) {
  const Activations ones = activations_of(splat_word(0x01010101));
  for (int64_t column = 0; column < step.end_column - step.column; column += kGroupColumns) {
    Ints totals[kWord];
    for (int i = 0; i < kWord; ++i) totals[i] = step.is_first ? Ints{} : load<Ints>(sums + column + i * kLanes);
    for (int64_t word = 0; word < step.words; ++word) {
      Words words[kWord];
      panel.read(word, column, words);
      for (int i = 0; i < kWord; ++i) totals[i] = dot4(totals[i], weights_of(words[i]), ones);
    }
    for (int i = 0; i < kWord; ++i) store(sums + column + i * kLanes, totals[i]);
  }
}

// A vector of an array of shape (blocks, columns), from `index` on.
JQUANT_INLINE Floats floats_at(const BlockProduct& product, const BlockFloats& array, int64_t index) {
  constexpr int64_t kBlocksAhead = 2;  // that are prefetched
  const int64_t left = product.blocks * product.columns - index, ahead = kBlocksAhead * product.columns;
  if (array.type == Type::kFloat32) {
    prefetch(static_cast<const float*>(array.data) + index + ahead, sizeof(Floats));
    return load_floats<Type::kFloat32>(array.data, index, left);
  }
  prefetch(static_cast<const uint16_t*>(array.data) + index + ahead, sizeof(Halves));
  return array.type == Type::kBfloat16 ? load_floats<Type::kBfloat16>(array.data, index, left)
                                       : load_floats<Type::kFloat16>(array.data, index, left);
}

JQUANT_INLINE Ints zero_points_at(const BlockProduct& product, int64_t index) {
  const int64_t left = product.blocks * product.columns - index;
  const uint8_t* source = product.b_zero_point + index;
  if (product.b_zero_point_is_unsigned) return widened(load_at_most<SmallWords>(source, left));
  return widened(load_at_most<SmallInts>(source, left));
}

// Multiplies a tile of rows by the weights of a step, and at the end of a block adds its contribution to the totals.
//
// `offset` is how much more the expanded weights are than what they stand for, if B has zero points.
template <int kRows, class Source>
void add_step(const BlockProduct& product, const Step& step, const TileRows& tile, const Source& source, int32_t offset) {
  constexpr int kVectors = vectors_at_once(kRows);
  // Copies that no store can change.
  const TileRows rows = tile;
  const Source weights = source;
  const int64_t words = Source::kHasOneWord ? 1 : step.words, first = step.column - step.strip;
  const int64_t end = step.end_column - step.column;
  const bool is_first = step.is_first, is_last = step.is_last;
  for (int64_t column = 0; column < end; column += kVectors * kLanes) {
    const int64_t in_strip = first + column;
    Ints sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i)
        sums[row][i] =
            is_first ? Ints{} + rows.start[row] : load<Ints>(rows.partial_sums + row * rows.stride + in_strip + i * kLanes);
    }
    const char* activations = rows.activations;
    for (int64_t word = 0; word < words; ++word) {
      Words bytes_of_weights[kVectors];
      weights.read(word, column, bytes_of_weights);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) {
        uint32_t bytes;
        __builtin_memcpy(&bytes, activations + row * kWord, kWord);
        const Words activation = splat_word(bytes);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i)
          sums[row][i] = Source::kAreNibbles
                             ? dot4_of_nibbles(sums[row][i], bytes_of_weights[i], activation)
                             : dot4(sums[row][i], weights_of(bytes_of_weights[i]), activations_of(activation));
      }
      activations += kRows * kWord;
    }
    if (!is_last) {
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i)
          store(rows.partial_sums + row * rows.stride + in_strip + i * kLanes, sums[row][i]);
      continue;
    }
    const int64_t index = step.block * product.columns + step.column + column;
    if (product.b_zero_point != nullptr) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const Ints zero_points = zero_points_at(product, index + i * kLanes) + offset;
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) sums[row][i] -= zero_points * rows.sum[row];
      }
    }
    if (rows.a_zero_point != nullptr) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const Ints column_sums = load<Ints>(rows.column_sums + in_strip + i * kLanes);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) sums[row][i] -= column_sums * rows.a_zero_point[row];
      }
    }
    Floats terms[kRows][kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const Floats scale = floats_at(product, product.scale, index + i * kLanes);
#pragma GCC unroll 16
      for (int row = 0; row < kRows; ++row) terms[row][i] = converted<Floats>(sums[row][i]) * scale;
    }
    if (product.minimum) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        const Floats minimum = floats_at(product, product.minimum, index + i * kLanes);
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) terms[row][i] = terms[row][i] + static_cast<float>(rows.sum[row]) * minimum;
      }
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      float* totals = rows.totals + row * rows.stride + in_strip;
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) store(totals + i * kLanes, load<Floats>(totals + i * kLanes) + terms[row][i]);
    }
  }
}

template <class Source, int... kRows>
JQUANT_INLINE void add_step_of(int row_count, const BlockProduct& product, const Step& step, const TileRows& rows,
                               const Source& weights, int32_t offset) {
  typedef void (*AddStep)(const BlockProduct&, const Step&, const TileRows&, const Source&, int32_t);
  constexpr AddStep functions[] = {add_step<smaller(kRows, kMostRowsBy<Source>), Source>...};
  functions[row_count - 1](product, step, rows, weights, offset);
}

template <class Source>
JQUANT_INLINE void add_step_for(int row_count, const BlockProduct& product, const Step& step, const TileRows& rows,
                                const Source& weights, int32_t offset) {
  if constexpr (kTileRows == 12)
    add_step_of<Source, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>(row_count, product, step, rows, weights, offset);
  if constexpr (kTileRows == 8) add_step_of<Source, 1, 2, 3, 4, 5, 6, 7, 8>(row_count, product, step, rows, weights, offset);
  if constexpr (kTileRows == 4) add_step_of<Source, 1, 2, 3, 4>(row_count, product, step, rows, weights, offset);
}

// Applies the epilogue to the totals of `part`, whose rows are `stride` apart, and writes that part of the output.
inline void finish(const BlockProduct& product, const float* totals, int64_t stride, const Part& part) {
  const FloatEpilogue& epilogue = product.epilogue;
  const int64_t columns = part.end_column - part.first_column, size = size_of(epilogue.output_type);
  for (int64_t row = part.first_row; row < part.end_row; ++row, totals += stride) {
    float scales[kLanes], biases[kLanes];
    const auto scale = row_of(epilogue.row_scale, row, part.first_column, 1.0f, scales);
    const auto bias = row_of(epilogue.bias, row, part.first_column, kNoBias, biases);
    char* output = static_cast<char*>(product.output) + (row * product.columns + part.first_column) * size;
    write_floats(epilogue.output_type, columns, output, [=](auto lane, int64_t column) {
      return load<typename decltype(lane)::Float>(totals + column) * scale(lane, column) + bias(lane, column);
    });
  }
}

// The products of a part.
template <class Stored>
class BlockPart {
 public:
  // The memory of a part, of which a strip is as wide as its totals fit into the nearest cache.
  static BlockScratch scratch_of(const BlockProduct& product, const Part& part) {
    const int64_t rows = part.end_row - part.first_row, columns = part.end_column - part.first_column;
    const int64_t in_cache = kTotalsBytes / (rows * static_cast<int64_t>(sizeof(float)));
    const int64_t groups = smaller(rounded_up(columns, kGroupColumns), in_cache) / kGroupColumns;
    return BlockScratch(product, part, (groups > 1 ? groups : 1) * kGroupColumns, kPanelWords);
  }

  BlockPart(const BlockProduct& product, const Part& part, char* scratch)
      : product_(product),
        part_(part),
        scratch_(scratch),
        places_(scratch_of(product, part)),
        rows_(part.end_row - part.first_row),
        has_column_sums_(product.a_is_unsigned || product.a_zero_point),
        is_direct_(rows_ <= kMostRowsBy<Stored> && !has_column_sums_ && product.block_size % kWord == 0),
        offset_(product.b_offset + Stored::kOffset) {}

  void multiply() {
    prepare_rows(product_, part_, places_, product_.b_zero_point ? 0 : offset_, scratch_);
    float* totals = at<float>(places_.totals);
    for (int64_t strip = part_.first_column; strip < part_.end_column; strip += places_.strip_columns) {
      const int64_t strip_end = smaller(strip + places_.strip_columns, part_.end_column);
      // The sum of -0 and the first contribution is that contribution, whatever its sign.
      for (int64_t i = 0; i < rows_ * places_.strip_columns; i += kLanes)
        store(totals + i, splat(product_.blocks ? -0.0f : 0.0f));
      for (int64_t block = 0; block < product_.blocks; ++block) add_block(block, strip, strip_end);
      finish(product_, totals, places_.strip_columns, {part_.first_row, part_.end_row, strip, strip_end});
    }
  }

 private:
  JQUANT_INLINE void add_block(int64_t block, int64_t strip, int64_t strip_end) {
    const int64_t most = is_direct_ ? kStepRows * Stored::kRowsPerElement / kWord : kPanelWords;
    for (int64_t word = 0; word < places_.block_words; word += most) {
      Step step;
      step.block = block;
      step.words = smaller(most, places_.block_words - word);
      step.first_row = block * product_.block_size + word * kWord;
      step.row_count = smaller(step.words * kWord, product_.block_size - word * kWord);
      step.is_first = word == 0;
      step.is_last = word + step.words == places_.block_words;
      step.strip = step.column = strip;
      step.end_column = strip + rounded_up(strip_end - strip, kGroupColumns);
      const int64_t first_word = block * places_.block_words + word;
      if (is_direct_) add_directly(step, first_word);
      if (step.column < step.end_column) add_by_panel(step, first_word);
    }
  }

  // Multiplies weights where they are, and leaves the columns that are not all there.
  JQUANT_INLINE void add_directly(Step& step, int64_t first_word) {
    Step inside = step;
    inside.end_column = step.column + columns_inside<Stored>(product_, step);
    add_step_for(static_cast<int>(rows_), product_, inside, tile_rows(step, 0, first_word),
                 weights_from<Stored>(product_, step.first_row, step.column), offset_);
    step.column = inside.end_column;
  }

  JQUANT_INLINE void add_by_panel(const Step& step, int64_t first_word) {
    const Panel<Stored> panel{at<char>(places_.panel), step.words};
    expand(product_, step, panel);
    if (has_column_sums_) add_column_sums(panel, step, at<int32_t>(places_.column_sums) + (step.column - step.strip));
    for (int64_t tile = 0; tile < places_.tiles; ++tile) {
      const int64_t rows = smaller(places_.rows_per_tile, rows_ - tile * places_.rows_per_tile);
      add_step_for(static_cast<int>(rows), product_, step, tile_rows(step, tile, first_word), panel, offset_);
    }
  }

  template <class Element>
  Element* at(int64_t place) const {
    return reinterpret_cast<Element*>(scratch_ + place);
  }

  JQUANT_INLINE TileRows tile_rows(const Step& step, int64_t tile, int64_t first_word) const {
    const int64_t first = tile * places_.rows_per_tile, count = smaller(places_.rows_per_tile, rows_ - first);
    const int64_t in_sums = (tile * product_.blocks + step.block) * kTileLanes;
    TileRows rows;
    rows.activations = at<char>(places_.activations) + first * places_.row_bytes + first_word * count * kWord;
    rows.start = at<int32_t>(places_.starts) + in_sums;
    rows.sum = at<int32_t>(places_.row_sums) + in_sums;
    rows.a_zero_point = has_column_sums_ ? at<int32_t>(places_.a_zero_points) + tile * kTileLanes : nullptr;
    rows.column_sums = at<int32_t>(places_.column_sums);
    rows.partial_sums = at<int32_t>(places_.partial_sums) + first * places_.strip_columns;
    rows.totals = at<float>(places_.totals) + first * places_.strip_columns;
    rows.stride = places_.strip_columns;
    return rows;
  }

  const BlockProduct& product_;
  const Part& part_;
  char* const scratch_;
  const BlockScratch places_;
  const int64_t rows_;
  const bool has_column_sums_, is_direct_;
  const int32_t offset_;
};

// A part of the product. `scratch` is aligned to a vector.
inline void multiply_blocks(const BlockProduct& product, const Part& part, char* scratch) {
  if (product.b_are_codes) {
    BlockPart<Codes>(product, part, scratch).multiply();
  } else if (product.b_is_words) {
    BlockPart<Nibbles>(product, part, scratch).multiply();
  } else {
    BlockPart<Int8s>(product, part, scratch).multiply();
  }
}

// The memory that `multiply_blocks` works in.
inline int64_t scratch_of_blocks(const BlockProduct& product, const Part& part) {
  return product.b_is_words ? BlockPart<Nibbles>::scratch_of(product, part).bytes
                            : BlockPart<Int8s>::scratch_of(product, part).bytes;
}

}  // namespace JQUANT_NAMESPACE
}  // namespace jquant
