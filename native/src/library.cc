// What Python asks the library about itself.
#include "export.h"
#include "loops.h"

// The name of the instruction set that is used; null if JQUANT_NATIVE_ISA names none of this processor.
JQUANT_EXPORT const char* jquant_instruction_set() {
  const jquant::Loops* loops = jquant::chosen_loops();
  return loops ? loops->name : nullptr;
}
