#include "operands.h"

#include <algorithm>
#include <sstream>

namespace jquant {
namespace {

// The sizes of an array that has been read: 1 where it has one element for all.
Sizes sizes_of(const BatchedArray& array, const Sizes& sizes) {
  return {array.batch_stride ? sizes.batch : 1, array.row_stride ? sizes.rows : 1, array.column_stride ? sizes.columns : 1};
}

// Gives `array`, of these sizes, elements of its own.
template <class Element>
Element* allocated(BatchedArray& array, const Sizes& sizes, std::vector<std::shared_ptr<const void>>& memory) {
  const auto count = static_cast<size_t>(sizes.batch * sizes.rows * sizes.columns);
  const std::shared_ptr<Element> elements(new Element[count], std::default_delete<Element[]>());
  memory.push_back(elements);
  array.data = elements.get();
  array.column_stride = sizes.columns == 1 ? 0 : 1;
  array.row_stride = sizes.rows == 1 ? 0 : sizes.columns;
  array.batch_stride = sizes.batch == 1 ? 0 : sizes.rows * sizes.columns;
  return elements.get();
}

template <class Byte>
void widen(const Byte* bytes, int64_t count, int32_t shift, int32_t* integers) {
  for (int64_t i = 0; i < count; ++i) integers[i] = bytes[i] - shift;
}

// Reads an array of integers that are int32 or bytes of one of two types, as int32.
ffi::Error read_integers(std::string_view role, const ffi::AnyBuffer& array, const Sizes& sizes, int32_t shift_of_unsigned,
                         BatchedArray& target, std::vector<std::shared_ptr<const void>>& memory) {
  const ffi::DataType type = is_byte(array.element_type()) ? array.element_type() : ffi::DataType::S32;
  ffi::Error error = read_array(role, array, type, sizes, target);
  if (error.failure() || type == ffi::DataType::S32) return error;
  const void* bytes = target.data;
  const Sizes own = sizes_of(target, sizes);
  const int64_t count = own.batch * own.rows * own.columns;
  int32_t* integers = allocated<int32_t>(target, own, memory);
  if (type == ffi::DataType::U8) {
    widen(static_cast<const uint8_t*>(bytes), count, shift_of_unsigned, integers);
  } else {
    widen(static_cast<const int8_t*>(bytes), count, 0, integers);
  }
  return ffi::Error::Success();
}

}  // namespace

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

Type type_of_floats(ffi::DataType type) {
  return type == ffi::DataType::F32    ? Type::kFloat32
         : type == ffi::DataType::F16  ? Type::kFloat16
         : type == ffi::DataType::BF16 ? Type::kBfloat16
                                       : Type::kInt32;
}

ffi::Error read_quantized(const std::string& name, const ffi::AnyBuffer& array, size_t rank, const ffi::AnyBuffer& scale,
                          const ffi::AnyBuffer& zero_point, QuantizedBytes& target) {
  const ffi::DataType type = array.element_type();
  if (!is_byte(type) || array.dimensions().size() != rank)
    return invalid(described(name, array) + " is no array of bytes with " + std::to_string(rank) + " dimensions");
  if (scale.element_type() != ffi::DataType::F32 || scale.element_count() != 1 || zero_point.element_type() != type ||
      zero_point.element_count() != 1)
    return invalid(described("the scale of " + name, scale) + " and " + described("its zero point", zero_point) +
                   " are not one float and one byte of the same type as " + name);
  target.is_signed = type == ffi::DataType::S8;
  target.scale = *static_cast<const float*>(scale.untyped_data());
  const void* data = zero_point.untyped_data();
  target.zero_point = target.is_signed ? *static_cast<const int8_t*>(data) : *static_cast<const uint8_t*>(data);
  return ffi::Error::Success();
}

std::string_view first_word(std::string_view words) {
  words.remove_prefix(std::min(words.find_first_not_of(' '), words.size()));
  return words.substr(0, words.find(' '));
}

ffi::Error BatchedArrays::read(std::string_view roles, ffi::RemainingArgs operands, ffi::DataType b_type,
                               ffi::DataType output_type, const Sizes& sizes) {
  bool has_multiplier = false;
  BatchedArray output_scale;
  const auto read_one = [&](std::string_view role, const ffi::AnyBuffer& array) {
    BatchedArray* target = nullptr;
    ffi::DataType type = ffi::DataType::F32;
    Sizes expected = sizes;
    if (role == "a_zero_point") {
      expected.columns = 1;
      return read_integers(role, array, expected, 0, a_zero_point, memory_);
    } else if (role == "b_zero_point") {
      expected.rows = 1;
      return read_integers(role, array, expected, b_type == ffi::DataType::S8 ? 128 : 0, b_zero_point, memory_);
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
    } else if (role == "output_scale") {
      expected.columns = 1;
      target = &output_scale;
    } else if (role == "zero_point") {
      expected.columns = 1;
      if (is_byte(array.element_type()) && array.element_type() != output_type)
        return invalid(described(role, array) + " is not of the type of the output");
      return read_integers(role, array, expected, 0, zero_point_, memory_);
    } else {
      return invalid("an array is called " + std::string(role));
    }
    return read_array(role, array, type, expected, *target);
  };
  ffi::Error error = read_arrays_of_roles(roles, operands, read_one);
  if (error.failure()) return error;

  const bool has_scales = row_scale_.data != nullptr || (column_scale_.data != nullptr && !has_multiplier);
  if (output_scale.data != nullptr && !has_scales) return invalid("output_scale without scales");
  if (has_scales && (row_scale_.data == nullptr || column_scale_.data == nullptr || has_multiplier))
    return invalid("row_scale and column_scale must both be there");
  if (output_scale.data != nullptr && bias_.data != nullptr)
    return invalid("output_scale and float_bias exclude each other");
  if (bias_.data != nullptr && !has_scales) return invalid("float_bias without scales");
  const bool is_rescaled = has_multiplier || output_scale.data != nullptr;
  if (zero_point_.data != nullptr && !is_rescaled) return invalid("zero_point without multiplier or output_scale");
  scaling_ = is_rescaled  ? Epilogue::Scaling::kRequantize
             : has_scales ? Epilogue::Scaling::kDequantize
                          : Epilogue::Scaling::kNone;
  if (output_scale.data != nullptr) find_multipliers(output_scale, sizes);

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

void BatchedArrays::find_multipliers(const BatchedArray& output_scale, const Sizes& sizes) {
  const BatchedArray a = row_scale_, b = column_scale_;
  Sizes all{1, 1, 1};
  for (const BatchedArray* array : {&a, &b, &output_scale}) {
    const Sizes own = sizes_of(*array, sizes);
    all = {std::max(all.batch, own.batch), std::max(all.rows, own.rows), std::max(all.columns, own.columns)};
  }
  row_scale_ = {};
  float* multiplier = allocated<float>(column_scale_, all, memory_);
  for (int64_t matrix = 0; matrix < all.batch; ++matrix) {
    const auto of_rows = a.of_matrix<float>(matrix), of_columns = b.of_matrix<float>(matrix);
    const auto of_output = output_scale.of_matrix<float>(matrix);
    for (int64_t row = 0; row < all.rows; ++row) {
      const float a_scale = of_rows.data[row * of_rows.row_stride];
      const float divisor = of_output.data[row * of_output.row_stride];
      const float* columns = of_columns.data + row * of_columns.row_stride;
      for (int64_t column = 0; column < all.columns; ++column)
        *multiplier++ = a_scale * columns[column * of_columns.column_stride] / divisor;
    }
  }
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
