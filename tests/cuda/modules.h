// SPDX-License-Identifier: Apache-2.0
// Modules of the stand-in driver, and launches of what is in them.
#pragma once
#include "calls.h"

namespace stand_in {

struct Module {
  std::string ptx;
};

inline std::mutex loaded_mutex;
inline std::map<void*, Module> modules;
inline std::map<void*, const Kernel*> functions;

// The PTX version that a driver takes at most: 8.0 with CUDA 12.0, 7.x with 11.x.
inline bool takes(int driver, const std::string& ptx) {
  int major = 0, minor = 0;
  const std::size_t at = ptx.find("\n.version ");
  if (at == std::string::npos || std::sscanf(ptx.c_str() + at, "\n.version %d.%d", &major, &minor) != 2) return false;
  const int most_major = driver / 1000 - 4, most_minor = driver % 1000 / 10;
  return major < most_major || (major == most_major && minor <= most_minor);
}

}  // namespace stand_in

API cuModuleLoadData(void** module, const void* image) {
  if (int code = before(Call::Load)) return code;
  const std::string ptx = (const char*)image;
  if (ptx.find("\n.version ") == std::string::npos) return INVALID_PTX;
  if (!takes(Device::get().driver, ptx)) return UNSUPPORTED_PTX_VERSION;
  *module = Device::get().make('m');
  std::lock_guard lock(loaded_mutex);
  modules[*module] = {ptx};
  return SUCCESS;
}
API cuModuleLoadDataEx(void** module, const void* image, unsigned, void*, void**) {
  return cuModuleLoadData(module, image);
}
API cuModuleUnload(void* module) {
  if (int code = awaited(before(Call::Other))) return code;
  std::lock_guard lock(loaded_mutex);
  modules.erase(module);
  return Device::get().unmake(module, 'm') ? SUCCESS : INVALID_HANDLE;
}
API cuModuleGetFunction(void** function, void* module, const char* name) {
  if (int code = before(Call::Other)) return code;
  if (!Device::get().is(module, 'm')) return INVALID_HANDLE;
  std::lock_guard lock(loaded_mutex);
  const bool entry = modules[module].ptx.find(".entry " + std::string(name) + "(") != std::string::npos;
  for (const Kernel& kernel : KERNELS) {
    if (!entry || std::strcmp(kernel.name, name)) continue;
    *function = Device::get().make('f');
    functions[*function] = &kernel;
    return SUCCESS;
  }
  return NOT_FOUND;
}
// The kernels have no variables of their own.
API cuModuleGetGlobal_v2(std::uint64_t*, std::size_t*, void* module, const char*) {
  if (int code = before(Call::Other)) return code;
  return Device::get().is(module, 'm') ? NOT_FOUND : INVALID_HANDLE;
}
API cuFuncGetAttribute(int* value, int attribute, void* function) {
  if (int code = before(Call::Other)) return code;
  if (!Device::get().is(function, 'f')) return INVALID_HANDLE;
  std::lock_guard lock(loaded_mutex);
  // The most threads a block. Registers and local memory, for one, it has none.
  return *value = attribute == 0 ? int(functions[function]->most_threads) : 0, SUCCESS;
}
API cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, void* stream, void** arguments, void** extra) {
  if (int code = before(Call::Launch)) return code;
  if (!Device::get().is(function, 'f') || !is_stream(stream)) return INVALID_HANDLE;
  const Kernel* kernel;
  {
    std::lock_guard lock(loaded_mutex);
    kernel = functions[function];
  }
  const std::string name = kernel->name;
  if (!grid_x || !grid_y || grid_z != 1 || grid_y > 65535 || grid_x > 0x7fffffff || block_y != 1 || block_z != 1 ||
      shared || extra || !arguments) {
    return Device::get().fail(INVALID_VALUE, name + ": no such grid");
  }
  if (block_x == 0 || block_x % 32)
    return Device::get().fail(INVALID_VALUE, name + ": a block that is not whole warps");
  if (block_x > kernel->most_threads)
    return Device::get().fail(LAUNCH_OUT_OF_RESOURCES, name + ": too many threads a block");
  Device::get().note(name + " " + std::to_string(grid_x) + " " + std::to_string(grid_y) + " " +
                     std::to_string(block_x));
  // Behind whatever hangs, with the copies of its results.
  if (Device::get().hangs()) return SUCCESS;
  std::shared_lock lock(Device::get().memory);
  return kernel->launch(name, {{grid_x, grid_y}, block_x, arguments});
}
