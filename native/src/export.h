// Functions of C, which a host finds in the library by their names.
#pragma once

#include "jquant_native.h"

// Defines a function that XLA calls; the rest is as for XLA_FFI_DEFINE_HANDLER_SYMBOL.
#define JQUANT_HANDLER(name, ...)                              \
  JQUANT_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, __VA_ARGS__)
