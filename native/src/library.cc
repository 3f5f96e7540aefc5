// What a host asks the library about itself.
#include "export.h"
#include "jquant_native.h"
#include "loops.h"
#include "xla/ffi/api/c_api.h"

extern "C" {
XLA_FFI_Error* jquant_block_product(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_coded_block_product(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_concatenate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_convolution(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_dynamic_quantize(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_elementwise(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_product(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jquant_weight_only(XLA_FFI_CallFrame* frame);
}

const jquant_function* jquant_functions() {
  // Version 2 of a product or a convolution also takes an output_scale, and zero points of bytes.
#define JQUANT_FUNCTION(name, version)            \
  {                                               \
    #name, version, reinterpret_cast<void*>(name) \
  }
  static const jquant_function functions[] = {
      JQUANT_FUNCTION(jquant_block_product, 1),
      JQUANT_FUNCTION(jquant_coded_block_product, 1),
      JQUANT_FUNCTION(jquant_concatenate, 1),
      JQUANT_FUNCTION(jquant_convolution, 1),
      JQUANT_FUNCTION(jquant_convolution, 2),
      JQUANT_FUNCTION(jquant_dynamic_quantize, 1),
      JQUANT_FUNCTION(jquant_elementwise, 1),
      JQUANT_FUNCTION(jquant_product, 1),
      JQUANT_FUNCTION(jquant_product, 2),
      JQUANT_FUNCTION(jquant_weight_only, 1),
      {nullptr, 0, nullptr},
  };
  return functions;
}

const char* jquant_instruction_set() {
  const jquant::Loops* loops = jquant::chosen_loops();
  return loops ? loops->name : nullptr;
}
