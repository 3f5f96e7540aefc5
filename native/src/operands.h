// The operands of a call, checked: everything that the inner loops index by.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "elementwise.h"
#include "product.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace jquant {

namespace ffi = xla::ffi;

// XLA's threads, as `parallel_for` takes them.
class XlaThreads : public Threads {
 public:
  explicit XlaThreads(ffi::ThreadPool pool) : pool_(pool) {}
  int64_t count() const override { return pool_.num_threads(); }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool pool_;
};

// The sizes of a batch of products.
struct Sizes {
  int64_t batch, rows, columns;
};

// An array of three dimensions, (batch or 1, rows or 1, columns or 1), of which each matrix of the batch has a part.
struct BatchedArray {
  const void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, column_stride = 0;  // in elements

  template <class Element>
  Broadcast<Element> of_matrix(int64_t index) const {
    if (data == nullptr) return {};
    return {static_cast<const Element*>(data) + index * batch_stride, row_stride, column_stride};
  }
};

// Reads an array that broadcasts to `sizes`; an error if its shape or its type is another, or if the role is taken.
ffi::Error read_array(std::string_view role, const ffi::AnyBuffer& array, ffi::DataType type, const Sizes& sizes,
                      BatchedArray& target);

// The arrays of a product beside its factors: zero points, sums of columns, and the epilogue.
class BatchedArrays {
 public:
  // Reads the arrays of a call, each of which has a role, a word of `roles`:
  //   a_zero_point, b_zero_point   int32 or bytes, one for all or one for each row or column. Where the bytes of B are int8
  //                 and its zero points uint8, B holds unsigned integers less 128
  //   block_sums    int32, (batch or 1, blocks, columns); see `block_sums` below
  //   integer_bias  int32, added to the sum
  //   row_scale, column_scale, float_bias   float32, as in Epilogue::Scaling::kDequantize
  //   output_scale  float32: the multipliers of kRequantize are fl(fl(row_scale * column_scale) / output_scale)
  //   multiplier    float32, of kRequantize, instead of these three
  //   zero_point    int32 or of the type of the output, of kRequantize
  ffi::Error read(std::string_view roles, ffi::RemainingArgs operands, ffi::DataType b_type, ffi::DataType output_type,
                  const Sizes& sizes);

  Epilogue epilogue_of_matrix(int64_t index) const;

  // Gives a product of one matrix its zero points, block sums and epilogue.
  void add_to(Product& product, int64_t index) const;

  // Makes the matrices of a batch, each of one column or of one row, a single one with the rows or the columns of all. False
  // if the elements of an array would not follow each other, or if one for all columns would differ between them.
  bool join_rows(const Sizes& sizes) { return join(sizes, sizes.rows, &BatchedArray::row_stride); }
  bool join_columns(const Sizes& sizes) {
    const bool are_rows_alike = row_scale_.batch_stride == 0 && zero_point_.batch_stride == 0;
    return are_rows_alike && join(sizes, sizes.columns, &BatchedArray::column_stride);
  }

  BatchedArray a_zero_point, b_zero_point, block_sums;
  int64_t blocks = 0;

 private:
  // Computes the multipliers from the three scales, in the order of roundings of jquant/kernels/epilogue.py.
  void find_multipliers(const BatchedArray& output_scale, const Sizes& sizes);
  bool join(const Sizes& sizes, int64_t size, int64_t BatchedArray::* stride);

  BatchedArray integer_bias_, row_scale_, column_scale_, bias_, zero_point_;
  Epilogue::Scaling scaling_ = Epilogue::Scaling::kNone;
  Type output_type_ = Type::kInt32;
  std::vector<std::shared_ptr<const void>> memory_;  // of what was computed from the arrays of the call
};

// Reads the scale and the zero point, of one element each, of an array of bytes with `rank` dimensions.
ffi::Error read_quantized(const std::string& name, const ffi::AnyBuffer& array, size_t rank, const ffi::AnyBuffer& scale,
                          const ffi::AnyBuffer& zero_point, QuantizedBytes& target);

// The first of words with spaces between them; empty if there is none.
std::string_view first_word(std::string_view words);

// Calls `read(role, array)` for each word of `roles` and the array of the same position, until that fails; an error if there
// are not as many arrays as words.
template <class Read>
ffi::Error read_arrays_of_roles(std::string_view roles, ffi::RemainingArgs operands, const Read& read);

// "name: (sizes) of type", for messages.
std::string described(std::string_view name, const ffi::AnyBuffer& array);

ffi::Error invalid(const std::string& message);

bool is_byte(ffi::DataType type);

// A type of floats; kInt32 if it is another one.
Type type_of_floats(ffi::DataType type);

template <class Read>
ffi::Error read_arrays_of_roles(std::string_view roles, ffi::RemainingArgs operands, const Read& read) {
  size_t position = 0;
  for (std::string_view role = first_word(roles), rest = roles; !role.empty(); role = first_word(rest)) {
    rest.remove_prefix(role.data() + role.size() - rest.data());
    const auto array = operands.get<ffi::AnyBuffer>(position++);
    if (!array.has_value()) return invalid("there is no array for " + std::string(role));
    ffi::Error error = read(role, *array);
    if (error.failure()) return error;
  }
  if (position != operands.size()) return invalid("there are more arrays than words in " + std::string(roles));
  return ffi::Error::Success();
}

// `a / b`, and `a` to a multiple of `b`, rounded up. An attribute of a call may be so large that `a + b` would overflow.
inline int64_t quotient_rounded_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }
inline int64_t rounded_up(int64_t a, int64_t b) { return quotient_rounded_up(a, b) * b; }

}  // namespace jquant
