// Functions of C, which Python finds in the library by their names.
#pragma once

#if defined(_WIN32)
#define JQUANT_EXPORT extern "C" __declspec(dllexport)
#else
#define JQUANT_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Defines a function that XLA calls; the rest is as for XLA_FFI_DEFINE_HANDLER_SYMBOL.
#define JQUANT_HANDLER(name, ...)                              \
  JQUANT_EXPORT XLA_FFI_Error* name(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, __VA_ARGS__)
