// The functions of the library, for a host that registers them with XLA by itself.
#ifndef JQUANT_NATIVE_H_
#define JQUANT_NATIVE_H_

#ifdef __cplusplus
#define JQUANT_EXTERN_C extern "C"
#else
#define JQUANT_EXTERN_C
#endif
#if defined(_WIN32)
#define JQUANT_EXPORT JQUANT_EXTERN_C __declspec(dllexport)
#else
#define JQUANT_EXPORT JQUANT_EXTERN_C __attribute__((visibility("default")))
#endif

// A function that programs call under the target "name.version", for CPUs.
struct jquant_function {
  const char* name;
  int version;
  void* handler;  // an XLA_FFI_Handler, of xla/ffi/api/c_api.h
};

// All functions, in each version that the library knows; the last one has no name.
JQUANT_EXPORT const struct jquant_function* jquant_functions(void);

// The name of the instruction set that the functions use; null if JQUANT_NATIVE_ISA names none of this processor.
JQUANT_EXPORT const char* jquant_instruction_set(void);

#endif  // JQUANT_NATIVE_H_
