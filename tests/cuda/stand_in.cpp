// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1. IT IS NOT A GPU and measures nothing: it lets the host code over the driver API run
// where there is none.
//
// Device memory is memory of the process, everything is done when a call returns, and a launch runs the text of
// cuda/*.cu through the shim, by the name of the kernel, after a look at every address it would touch. A mistake that a
// device answers with 700 or 716 gets that, and a line on stderr; from then on every call that concerns the device
// fails with the same code, as on a real one.
//
// The environment is read when the library is first called:
//   STAND_IN_DEVICES  how many devices there are (1); 0 makes cuInit return 100
//   STAND_IN_INIT     what cuInit returns (0)
//   STAND_IN_DRIVER   the driver's version (12000), which decides what PTX it takes
//   STAND_IN_MEMORY   bytes of device memory (1 GiB)
//   STAND_IN_FAIL     CALL:NUMBER=CODE, more of them separated by commas: the NUMBER-th such call, counted from 1,
//                     fails with CODE. CALL: launch, copy (memset too), alloc (pinned and registered too), load (of a
//                     module), sync (of a context, a stream or an event, and queries of the last two)
//   STAND_IN_WRONG    a kernel; the first number of each of its launches is wrong by a hundredth
//   STAND_IN_JOURNAL  a file that gets a line a launch: kernel, blocks across, blocks down, threads a block
//   STAND_IN_HANG     NUMBER: from the NUMBER-th launch on nothing is done any more, and no call fails. Queries say 600,
//                     not ready; a call that waits for the device does so for ever: the synchronising ones, copies
//                     without a stream, and what frees memory, a module or a context
#include "calls.h"
#include "errors.h"
#include "modules.h"

namespace {

constexpr int MOST_DEVICES = 16;

// The primary context of each device, known by its address.
struct Context {
  int retained = 0;
  unsigned flags = 0;
} contexts[MOST_DEVICES];
std::mutex contexts_mutex;

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < std::min(Device::get().count, MOST_DEVICES); }

int copy(std::uint64_t device, std::size_t bytes, void* stream, const std::function<void()>& act) {
  if (int code = before(Call::Copy)) return code;
  if (!is_stream(stream)) return INVALID_HANDLE;
  std::shared_lock lock(Device::get().memory);
  if (bytes && !Device::get().holds(device, bytes)) return INVALID_VALUE;
  if (!Device::get().hangs()) act();
  return SUCCESS;
}

int make(void** handle, char kind) {
  if (int code = before(Call::Other)) return code;
  *handle = Device::get().make(kind);
  return SUCCESS;
}

}  // namespace

API cuInit(unsigned) { return Device::get().init(); }
API cuDriverGetVersion(int* version) { return *version = Device::get().driver, SUCCESS; }

API cuDeviceGetCount(int* count) { return *count = Device::get().count, Device::get().before(); }
API cuDeviceGet(int* device, int ordinal) {
  if (int code = Device::get().before()) return code;
  return *device = ordinal, is_device(ordinal) ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetName(char* name, int size, int device) {
  std::snprintf(name, std::size_t(size), "stand-in %d (not a GPU)", device);
  return is_device(device) ? SUCCESS : INVALID_DEVICE;
}
// GPU-7374616e-642d-696e-2064-657669636530 for the first: its letters are "stand-in device0".
API cuDeviceGetUuid_v2(char* uuid, int device) {
  char text[17];
  std::snprintf(text, sizeof text, "stand-in device%x", unsigned(device) % 16);
  std::memcpy(uuid, text, 16);
  return is_device(device) ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceGetUuid(char* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 1: *value = 1024; break;  // threads a block
    case 10: *value = 32; break;   // threads a warp
    case 16: *value = 4; break;    // multiprocessors
    case 19: *value = 1; break;    // can map host memory
    case 41: *value = 1; break;    // one address space
    case 75: *value = 8; break;    // compute capability
    case 76: *value = 0; break;
    case 115: *value = 1; break;  // memory pools
    default: *value = 0;
  }
  return is_device(device) ? SUCCESS : INVALID_DEVICE;
}
API cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  std::size_t free;
  Device::get().free_and_total(&free, bytes);
  return is_device(device) ? SUCCESS : INVALID_DEVICE;
}

API cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  if (int code = Device::get().before(Call::Other, &contexts[device])) return code;
  std::lock_guard lock(contexts_mutex);
  contexts[device].retained++;
  *context = &contexts[device];
  return SUCCESS;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
  if (!is_device(device)) return INVALID_DEVICE;
  Device::get().wait();
  std::lock_guard lock(contexts_mutex);
  if (contexts[device].retained == 0) return INVALID_CONTEXT;
  contexts[device].retained--;
  return SUCCESS;
}
API cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
  if (!is_device(device)) return INVALID_DEVICE;
  std::lock_guard lock(contexts_mutex);
  return contexts[device].flags = flags, SUCCESS;
}
API cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!is_device(device)) return INVALID_DEVICE;
  std::lock_guard lock(contexts_mutex);
  return *flags = contexts[device].flags, *active = contexts[device].retained > 0, SUCCESS;
}

// What context a thread has is its own affair and works after the device is lost.
API cuCtxGetCurrent(void** context) {
  return *context = current, Device::get().before();
}
API cuCtxSetCurrent(void* context) {
  if (int code = Device::get().before()) return code;
  const bool known = !context || (context >= contexts && context < contexts + MOST_DEVICES);
  if (known) current = context;
  return known ? SUCCESS : INVALID_CONTEXT;
}
API cuCtxGetDevice(int* device) {
  if (int code = before(Call::Other)) return code;
  return *device = int((Context*)current - contexts), SUCCESS;
}
API cuCtxSetFlags(unsigned flags) {
  if (int code = before(Call::Other)) return code;
  std::lock_guard lock(contexts_mutex);
  return ((Context*)current)->flags = flags, SUCCESS;
}
API cuCtxSynchronize() { return awaited(before(Call::Sync)); }

API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Device::get().free_and_total(free, total);
  return before(Call::Other);
}
API cuMemAlloc_v2(std::uint64_t* at, std::size_t bytes) {
  if (int code = before(Call::Alloc)) return code;
  return Device::get().allocate(at, bytes, Kind::Device);
}
API cuMemFree_v2(std::uint64_t at) {
  if (int code = awaited(before(Call::Other))) return code;
  return Device::get().release(at, Kind::Device);
}
API cuMemAllocAsync(std::uint64_t* at, std::size_t bytes, void* stream) {
  return is_stream(stream) ? cuMemAlloc_v2(at, bytes) : INVALID_HANDLE;
}
API cuMemFreeAsync(std::uint64_t at, void* stream) {
  if (int code = settled(is_stream(stream), Call::Other)) return code;
  return Device::get().hangs() ? SUCCESS : Device::get().release(at, Kind::Device);
}
API cuMemHostAlloc(void** at, std::size_t bytes, unsigned) {
  if (int code = before(Call::Alloc)) return code;
  return Device::get().allocate((std::uint64_t*)at, bytes, Kind::Pinned);
}
API cuMemFreeHost(void* at) {
  if (int code = awaited(before(Call::Other))) return code;
  return Device::get().release(std::uint64_t(at), Kind::Pinned);
}
API cuMemHostRegister_v2(void* at, std::size_t bytes, unsigned) {
  if (int code = before(Call::Alloc)) return code;
  return Device::get().enroll(std::uint64_t(at), bytes);
}
API cuMemHostUnregister(void* at) {
  if (int code = awaited(before(Call::Other))) return code;
  return Device::get().expel(std::uint64_t(at));
}
API cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void* stream) {
  return copy(to, bytes, stream, [=] { std::memcpy((void*)to, from, bytes); });
}
API cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void* stream) {
  return copy(from, bytes, stream, [=] { std::memcpy(to, (const void*)from, bytes); });
}
API cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return awaited(cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr));
}
API cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  return awaited(cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr));
}
API cuMemsetD8Async(std::uint64_t at, unsigned char value, std::size_t bytes, void* stream) {
  return copy(at, bytes, stream, [=] { std::memset((void*)at, value, bytes); });
}

API cuStreamCreate(void** stream, unsigned) { return make(stream, 's'); }
API cuStreamCreateWithPriority(void** stream, unsigned, int) { return make(stream, 's'); }
API cuStreamDestroy_v2(void* stream) {
  if (int code = before(Call::Other)) return code;
  return Device::get().unmake(stream, 's') ? SUCCESS : INVALID_HANDLE;
}
API cuStreamSynchronize(void* stream) { return awaited(settled(is_stream(stream), Call::Sync)); }
API cuStreamQuery(void* stream) { return asked(is_stream(stream)); }
API cuStreamWaitEvent(void* stream, void* event, unsigned) {
  return settled(is_stream(stream) && Device::get().is(event, 'e'), Call::Other);
}
API cuEventCreate(void** event, unsigned) { return make(event, 'e'); }
API cuEventRecord(void* event, void* stream) {
  return settled(Device::get().is(event, 'e') && is_stream(stream), Call::Other);
}
API cuEventQuery(void* event) { return asked(Device::get().is(event, 'e')); }
API cuEventSynchronize(void* event) { return awaited(settled(Device::get().is(event, 'e'), Call::Sync)); }
API cuEventDestroy_v2(void* event) {
  if (int code = before(Call::Other)) return code;
  return Device::get().unmake(event, 'e') ? SUCCESS : INVALID_HANDLE;
}

API cuGetErrorName(int code, const char** name) { return error_text(code, name, &ErrorName::name); }
API cuGetErrorString(int code, const char** text) { return error_text(code, text, &ErrorName::text); }
