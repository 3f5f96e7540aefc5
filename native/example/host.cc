// Runs a file of jquant.host.write without Python, by a plugin of PJRT for CPUs.
//
//   host PLUGIN LIBRARY FILE INPUTS OUTPUTS [CALLS]
//
// PLUGIN is a shared library with GetPjrtApi, LIBRARY that of jquant-native. INPUTS has the elements of all inputs of a
// call, in the order of the file, then those of the next call, and so on; OUTPUTS gets the results in the same way, without
// state. Then CALLS more calls are timed, with the same inputs again.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "jquant_native.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_ffi_extension.h"

namespace {

// The types in the order of PJRT_Buffer_Type, and the bytes of an element in the file.
constexpr char kTypes[] =
    "bool 1 int8 1 int16 2 int32 4 int64 8 uint8 1 uint16 2 uint32 4 uint64 8 float16 2 float32 4 float64 8 bfloat16 2 "
    "complex64 8 complex128 16 float8_e5m2 1 float8_e4m3fn 1 float8_e4m3b11fnuz 1 float8_e5m2fnuz 1 float8_e4m3fnuz 1 int4 "
    "1 "
    "uint4 1 token 0 int2 1 uint2 1 float8_e4m3 1 float8_e3m4 1 float8_e8m0fnu 1 float4_e2m1fn 1";

struct Array {
  std::string text;  // such as float32[3,64]
  PJRT_Buffer_Type type{};
  std::vector<int64_t> dims;
  uint64_t bytes = 0;
  const char* data = nullptr;  // a parameter, or the first value of state
  int64_t output = -1;         // of state: what takes its place
};

// A file of jquant.host.write; jquant/files/host_program.py describes it.
struct File {
  std::vector<std::string> functions;
  std::vector<Array> programs, arguments, outputs;
};

void require(bool is_met, const std::string& message) {
  if (!is_met) throw std::runtime_error(message);
}

Array read_array(std::istream& head) {
  Array array;
  head >> array.text;
  const std::string name = array.text.substr(0, array.text.find('['));
  std::istringstream types(kTypes);
  std::string known;
  for (int type = 1; known != name && types >> known >> array.bytes; ++type)
    array.type = static_cast<PJRT_Buffer_Type>(type);
  require(known == name, "this host knows no type " + name);
  std::istringstream sizes(array.text.substr(std::min(name.size() + 1, array.text.size())));
  for (int64_t size = 0; sizes >> size; sizes.ignore()) {
    const bool is_too_large = __builtin_mul_overflow(array.bytes, size, &array.bytes) || array.bytes >> 40;
    require(size >= 0 && !is_too_large, "the file is damaged: it has " + array.text);
    array.dims.push_back(size);
  }
  return array;
}

// Maps a file into memory, for good.
File read(const std::string& path) {
  FILE* stream = std::fopen(path.c_str(), "rb");
  require(stream && std::fseek(stream, 0, SEEK_END) == 0, path + " cannot be read");
  const uint64_t size = std::ftell(stream);
  void* map = size ? mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fileno(stream), 0) : MAP_FAILED;
  std::fclose(stream);
  require(map != MAP_FAILED, path + " is empty, or cannot be mapped into memory");
  const auto* bytes = static_cast<const char*>(map);
  const std::string text(bytes, std::min<uint64_t>(size, 1 << 24));
  std::istringstream head(text.substr(0, text.find("\nend\n")));
  std::string word, version;
  head >> word >> version;
  require(word == "jquant-host", path + " is no file of jquant.host.write");
  require(version == "1", path + " is of version " + version + " of the format; this host reads version 1");

  File file;
  const uint64_t start = (head.str().size() + 5 + 63) / 64 * 64;
  uint64_t end = start;
  while (head >> word) {
    if (word == "function") {
      head >> file.functions.emplace_back();
      continue;
    }
    Array array = read_array(head);
    if (word == "program" || word == "parameter" || word == "state") {
      uint64_t offset = 0;
      require(head >> offset && offset % 64 == 0 && offset < size, path + " is truncated, or damaged: " + array.text);
      array.data = bytes + start + offset;
      end = std::max(end, start + offset + (array.bytes + 63) / 64 * 64);
      if (word == "state") head >> array.output;
    }
    require(!head.fail() && (array.data || word == "input" || word == "output"),
            path + " is damaged: it has a line " + word);
    (word == "program" ? file.programs : word == "output" ? file.outputs : file.arguments).push_back(array);
  }
  require(end + 4 == size,
          path + " is truncated, or damaged: it has " + std::to_string(size) + " bytes, not " + std::to_string(end + 4));
  uint32_t low = 1, high = 0;  // Adler-32
  for (uint64_t i = 0; i < end; low %= 65521, high %= 65521)
    for (const uint64_t stop = std::min<uint64_t>(end, i + 5552); i < stop; ++i)
      high += low += static_cast<uint8_t>(bytes[i]);
  uint32_t sum = 0;
  std::memcpy(&sum, bytes + end, 4);
  require(sum == (high << 16 | low) && file.programs.size() == 1, path + " is damaged: its checksum differs");
  for (const Array& each : file.arguments)
    require(each.output < 0 || file.outputs.at(each.output).text == each.text,
            path + " is damaged: no output becomes " + each.text);
  return file;
}

double now() {  // in microseconds
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const PJRT_Api* api;

void check(PJRT_Error* error, const std::string& what) {
  if (!error) return;
  PJRT_Error_Message_Args message{PJRT_Error_Message_Args_STRUCT_SIZE, nullptr, error, nullptr, 0};
  api->PJRT_Error_Message(&message);
  throw std::runtime_error(what + ": " + std::string(message.message, message.message_size));
}

// Calls a function of PJRT: `set` fills its arguments in, which are returned with what the function wrote into them.
#define CALL(function, set) \
  call<function##_Args>(api->function, function##_Args_STRUCT_SIZE, #function, [&](auto& args) { set; })
template <typename Args, typename Function, typename Set>
Args call(Function* function, size_t size, const char* name, Set set) {
  Args args{};
  args.struct_size = size;
  set(args);
  check(function(&args), name);
  return args;
}

template <typename Function>
Function* symbol(const std::string& path, const char* name) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* found = library ? dlsym(library, name) : nullptr;
  require(found, path + " cannot be used: " + (library ? name : dlerror()));
  return reinterpret_cast<Function*>(found);
}

void register_functions(const std::string& path, const std::vector<std::string>& called) {
  const PJRT_Extension_Base* extension = api->extension_start;
  while (extension && extension->type != PJRT_Extension_Type_FFI) extension = extension->next;
  require(extension, "the plugin takes no functions of others: it lacks PJRT's extension for XLA's FFI");
  std::string known;
  for (auto* each = symbol<decltype(jquant_functions)>(path, "jquant_functions")(); each->name; ++each) {
    const std::string name = std::string(each->name) + "." + std::to_string(each->version);
    PJRT_FFI_Register_Handler_Args args{
        PJRT_FFI_Register_Handler_Args_STRUCT_SIZE, name.data(), name.size(), each->handler, "Host", 4, {}};
    check(reinterpret_cast<const PJRT_FFI*>(extension)->register_handler(&args), name);
    known += name + " ";
  }
  for (const std::string& name : called)
    require(known.find(name + " ") != std::string::npos, "the program calls " + name + "; " + path + " has " + known);
}

void run(const std::vector<std::string>& words) {
  const File file = read(words[2]);
  std::ifstream stream(words[3], std::ios::binary);
  require(stream.good(), words[3] + " cannot be read");
  const std::vector<char> inputs{std::istreambuf_iterator<char>(stream), {}};
  uint64_t step = 0;
  for (const Array& each : file.arguments) step += each.data ? 0 : each.bytes;
  require(step ? !inputs.empty() && inputs.size() % step == 0 : inputs.empty(),
          words[3] + " has " + std::to_string(inputs.size()) + " bytes; the inputs of a call have " + std::to_string(step));

  api = symbol<const PJRT_Api*()>(words[0], "GetPjrtApi")();
  CALL(PJRT_Plugin_Initialize, (void)args);
  register_functions(words[1], file.functions);
  PJRT_NamedValue devices{};
  devices.struct_size = PJRT_NamedValue_STRUCT_SIZE, devices.name = "cpu_device_count", devices.name_size = 16;
  devices.type = PJRT_NamedValue_kInt64, devices.int64_value = 1, devices.value_size = 1;
  PJRT_Client* client = CALL(PJRT_Client_Create, args.create_options = &devices; args.num_options = 1).client;
  PJRT_Device* device = *CALL(PJRT_Client_AddressableDevices, args.client = client).addressable_devices;

  const double started = now();
  const std::string options("\x1a\x04\x20\x01\x28\x01");  // CompileOptionsProto: one replica of one part
  const Array& module = file.programs[0];
  PJRT_Program program{PJRT_Program_STRUCT_SIZE, nullptr, const_cast<char*>(module.data), module.bytes, "mlir", 4};
  const auto compiled = CALL(PJRT_Client_Compile, args.client = client; args.program = &program;
                             args.compile_options = options.data(); args.compile_options_size = options.size());
  std::printf("compiled in %.0f ms\n", (now() - started) / 1e3);
  PJRT_Executable* executable =
      CALL(PJRT_LoadedExecutable_GetExecutable, args.loaded_executable = compiled.executable).executable;
  const size_t outputs = CALL(PJRT_Executable_NumOutputs, args.executable = executable).num_outputs;
  require(outputs == file.outputs.size(), words[2] + " is damaged: its program has " + std::to_string(outputs) + " outputs");

  const auto buffer = [&](const Array& array, const char* data) {
    const bool is_parameter = array.data && array.output < 0;  // which is used where it is mapped
    const auto made = CALL(PJRT_Client_BufferFromHostBuffer, args.client = client; args.device = device; args.data = data;
                           args.type = array.type; args.dims = array.dims.data(); args.num_dims = array.dims.size();
                           args.host_buffer_semantics = is_parameter ? PJRT_HostBufferSemantics_kImmutableZeroCopy
                                                                     : PJRT_HostBufferSemantics_kImmutableOnlyDuringCall);
    CALL(PJRT_Event_Destroy, args.event = made.done_with_host_buffer);
    return made.buffer;
  };
  const auto release = [](PJRT_Buffer* each) { CALL(PJRT_Buffer_Destroy, args.buffer = each); };
  std::ofstream written(words[4], std::ios::binary);
  std::vector<double> times;
  std::vector<PJRT_Buffer*> arguments(file.arguments.size()), results(outputs);
  std::vector<char> elements;
  const uint64_t calls = step ? inputs.size() / step : 1, timed = words.size() > 5 ? std::stoul(words[5]) : 0;
  for (uint64_t number = 0; number < calls + timed; ++number) {
    const double began = now();
    const char* data = inputs.data() + number % calls * step;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Array& each = file.arguments[i];
      if (!each.data || number == 0) arguments[i] = buffer(each, each.data ? each.data : data);
      data += each.data ? 0 : each.bytes;
    }
    PJRT_ExecuteOptions execute{};
    execute.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
    PJRT_Buffer *const *const list = arguments.data(), **const result = results.data();
    CALL(PJRT_LoadedExecutable_Execute, args.executable = compiled.executable; args.options = &execute;
         args.argument_lists = &list; args.num_devices = 1; args.num_args = arguments.size(); args.output_lists = &result);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Array& each = file.arguments[i];
      if (each.data && each.output < 0) continue;
      release(arguments[i]);
      if (each.data) arguments[i] = std::exchange(results[each.output], nullptr);
      require(!each.data || arguments[i], words[2] + " is damaged: one output becomes state twice");
    }
    for (size_t i = 0; i < outputs; ++i) {
      if (!results[i]) continue;
      elements.resize(file.outputs[i].bytes + 1);  // without elements there would be no address, which asks for the size
      const auto copied = CALL(PJRT_Buffer_ToHostBuffer, args.src = results[i]; args.dst = elements.data();
                               args.dst_size = elements.size() - 1);
      CALL(PJRT_Event_Await, args.event = copied.event);
      CALL(PJRT_Event_Destroy, args.event = copied.event);
      release(results[i]);
      if (number < calls) written.write(elements.data(), static_cast<std::streamsize>(elements.size() - 1));
    }
    if (number >= calls) times.push_back(now() - began);
  }
  require(written.flush().good(), words[4] + " cannot be written");
  std::sort(times.begin(), times.end());
  if (timed) std::printf("%zu calls: median %.1f us, least %.1f us\n", times.size(), times[timed / 2], times[0]);
}

}  // namespace

int main(int count, char** words) {
  try {
    require(count == 6 || count == 7, "usage: host PLUGIN LIBRARY FILE INPUTS OUTPUTS [CALLS]");
    run({words + 1, words + count});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "host: %s\n", error.what());
    return 1;
  }
}
