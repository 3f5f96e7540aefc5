// The operands of a call, checked: everything that the inner loops index by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

// The arrays of an epilogue, with which each matrix of the batch is completed.
class BatchedEpilogue {
 public:
  // Reads the arrays that follow the first `skipped` operands, each of which has a role, a word of `roles`:
  //   term          int32, subtracted from the sum
  //   factor        int32, a factor of the term before it
  //   integer_bias  int32, added
  //   row_scale, column_scale, float_bias   float32, as in Epilogue::Scaling::kDequantize
  //   multiplier    float32, of kRequantize
  //   zero_point    int32, of kRequantize
  ffi::Error read(std::string_view roles, ffi::RemainingArgs operands, ffi::DataType output_type, const Sizes& sizes);

  Epilogue of_matrix(int64_t index) const;

 private:
  BatchedArray terms_[Epilogue::kMostTerms][Epilogue::kMostFactors];
  BatchedArray integer_bias_, row_scale_, column_scale_, bias_, zero_point_;
  Epilogue::Scaling scaling_ = Epilogue::Scaling::kNone;
  Type output_type_ = Type::kInt32;
};

// "name: (sizes) of type", for messages.
std::string described(std::string_view name, const ffi::AnyBuffer& array);

ffi::Error invalid(std::string message);

bool is_byte(ffi::DataType type);

}  // namespace jquant
