#include "operands.h"

#include <algorithm>
#include <sstream>

namespace jquant {

ffi::Error read_array(std::string_view role, const ffi::AnyBuffer& array, ffi::DataType type, const Sizes& sizes,
                      BatchedArray& target) {
  if (target.data != nullptr) return invalid("two arrays are called " + std::string(role));
  const auto dimensions = array.dimensions();
  const int64_t expected[] = {sizes.batch, sizes.rows, sizes.columns};
  bool fits = array.element_type() == type && dimensions.size() == 3;
  for (size_t i = 0; fits && i < 3; ++i) fits = dimensions[i] == 1 || dimensions[i] == expected[i];
  if (!fits) {
    std::ostringstream message;
    message << described(role, array) << " does not broadcast to (" << sizes.batch << ", " << sizes.rows << ", "
            << sizes.columns << "), or has another type";
    return invalid(message.str());
  }
  target.data = array.untyped_data();
  target.column_stride = dimensions[2] == 1 ? 0 : 1;
  target.row_stride = dimensions[1] == 1 ? 0 : dimensions[2];
  target.batch_stride = dimensions[0] == 1 ? 0 : dimensions[1] * dimensions[2];
  return ffi::Error::Success();
}

ffi::Error invalid(const std::string& message) { return ffi::Error::InvalidArgument("jquant-native: " + message); }

std::string described(std::string_view name, const ffi::AnyBuffer& array) {
  std::ostringstream text;
  text << name << ", of shape (";
  const auto dimensions = array.dimensions();
  for (size_t i = 0; i < dimensions.size(); ++i) text << (i ? ", " : "") << dimensions[i];
  text << ") and type " << static_cast<int>(array.element_type()) << ",";
  return text.str();
}

bool is_byte(ffi::DataType type) { return type == ffi::DataType::S8 || type == ffi::DataType::U8; }

std::string_view first_word(std::string_view words) {
  words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
  return words.substr(0, words.find(' '));
}

ffi::Error BatchedArrays::read(std::string_view roles, ffi::RemainingArgs operands, ffi::DataType output_type,
                               const Sizes& sizes) {
  bool has_multiplier = false;
  const auto read_one = [&](std::string_view role, const ffi::AnyBuffer& array) {
    BatchedArray* target = nullptr;
    ffi::DataType type = ffi::DataType::F32;
    Sizes expected = sizes;
    if (role == "a_zero_point") {
      type = ffi::DataType::S32;
      expected.columns = 1;
      target = &a_zero_point;
    } else if (role == "b_zero_point") {
      type = ffi::DataType::S32;
      expected.rows = 1;
      target = &b_zero_point;
    } else if (role == "block_sums") {
      if (array.dimensions().size() == 3) blocks = array.dimensions()[1];
      const bool has_all_columns = array.dimensions().size() == 3 && array.dimensions()[2] == sizes.columns;
      if (!has_all_columns) return invalid(described(role, array) + " does not have a sum for each column");
      type = ffi::DataType::S32;
      expected.rows = blocks;
      target = &block_sums;
    } else if (role == "integer_bias") {
      type = ffi::DataType::S32;
      target = &integer_bias_;
    } else if (role == "row_scale") {
      expected.columns = 1;
      target = &row_scale_;
    } else if (role == "column_scale") {
      target = &column_scale_;
    } else if (role == "float_bias") {
      target = &bias_;
    } else if (role == "multiplier") {
      if (column_scale_.data != nullptr) return invalid("multiplier and column_scale exclude each other");
      has_multiplier = true;
      target = &column_scale_;
    } else if (role == "zero_point") {
      type = ffi::DataType::S32;
      expected.columns = 1;
      target = &zero_point_;
    } else {
      return invalid("an array is called " + std::string(role));
    }
    return read_array(role, array, type, expected, *target);
  };
  ffi::Error error = read_arrays_of_roles(roles, operands, read_one);
  if (error.failure()) return error;

  const bool has_scales = row_scale_.data != nullptr || (column_scale_.data != nullptr && !has_multiplier);
  if (has_scales && (row_scale_.data == nullptr || column_scale_.data == nullptr || has_multiplier))
    return invalid("row_scale and column_scale must both be there");
  if (bias_.data != nullptr && !has_scales) return invalid("float_bias without scales");
  if (zero_point_.data != nullptr && !has_multiplier) return invalid("zero_point without multiplier");
  scaling_ = has_scales       ? Epilogue::Scaling::kDequantize
             : has_multiplier ? Epilogue::Scaling::kRequantize
                              : Epilogue::Scaling::kNone;

  const struct {
    ffi::DataType type;
    Type meaning;
    Epilogue::Scaling scaling;
  } outputs[] = {
      {ffi::DataType::S32, Type::kInt32, Epilogue::Scaling::kNone},
      {ffi::DataType::F32, Type::kFloat32, Epilogue::Scaling::kDequantize},
      {ffi::DataType::F16, Type::kFloat16, Epilogue::Scaling::kDequantize},
      {ffi::DataType::BF16, Type::kBfloat16, Epilogue::Scaling::kDequantize},
      {ffi::DataType::S8, Type::kInt8, Epilogue::Scaling::kRequantize},
      {ffi::DataType::U8, Type::kUint8, Epilogue::Scaling::kRequantize},
  };
  for (const auto& output : outputs) {
    if (output.type == output_type && output.scaling == scaling_) {
      output_type_ = output.meaning;
      return ffi::Error::Success();
    }
  }
  return invalid("the arrays " + std::string(roles) + " do not lead to an output of this type");
}

void BatchedArrays::add_to(Product& product, int64_t index) const {
  product.a_zero_point = a_zero_point.of_matrix<int32_t>(index);
  product.b_zero_point = b_zero_point.of_matrix<int32_t>(index);
  product.block_sums = block_sums.of_matrix<int32_t>(index).data;
  product.blocks = blocks;
  product.epilogue = epilogue_of_matrix(index);
}

bool BatchedArrays::join(const Sizes& sizes, int64_t size, int64_t BatchedArray::* stride) {
  BatchedArray* const arrays[] = {&a_zero_point,  &b_zero_point, &integer_bias_, &row_scale_,
                                  &column_scale_, &bias_,        &zero_point_};
  for (BatchedArray* array : arrays) {
    const bool is_of_matrix = array->batch_stride != 0, is_of_element = array->row_stride != 0 || array->column_stride != 0;
    if (sizes.batch > 1 && size > 1 && is_of_matrix != is_of_element) return false;
    if (sizes.batch > 1 && size == 1) array->*stride = array->batch_stride;
    array->batch_stride = 0;
  }
  return true;
}

Epilogue BatchedArrays::epilogue_of_matrix(int64_t index) const {
  Epilogue epilogue;
  epilogue.integer_bias = integer_bias_.of_matrix<int32_t>(index);
  epilogue.scaling = scaling_;
  epilogue.row_scale = row_scale_.of_matrix<float>(index);
  epilogue.column_scale = column_scale_.of_matrix<float>(index);
  epilogue.bias = bias_.of_matrix<float>(index);
  epilogue.zero_point = zero_point_.of_matrix<int32_t>(index);
  epilogue.output_type = output_type_;
  return epilogue;
}

}  // namespace jquant
