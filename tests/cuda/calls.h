// SPDX-License-Identifier: Apache-2.0
// What the calls of the stand-in driver have in common.
#pragma once
#include "launches.h"

#define API extern "C" __attribute__((visibility("default"))) int

namespace stand_in {

// The context of the thread.
inline thread_local void* current = nullptr;

inline int before(Call call) { return Device::get().before(call, current); }

// The streams that are always there: the default one, and the two special handles for it.
inline bool is_stream(void* stream) { return std::uintptr_t(stream) <= 2 || Device::get().is(stream, 's'); }

// A call with nothing to do, because all is done already, once its handles have been looked at.
inline int settled(bool valid, Call call) {
  if (int code = before(call)) return code;
  return valid ? SUCCESS : INVALID_HANDLE;
}

// A call that asks whether the device is through.
inline int asked(bool valid) {
  if (int code = settled(valid, Call::Sync)) return code;
  return Device::get().hangs() ? NOT_READY : SUCCESS;
}

// A call that returns when the device is through, which is never where it hangs. `code` is what it found before.
inline int awaited(int code) {
  if (code == SUCCESS) Device::get().wait();
  return code;
}

}  // namespace stand_in

using stand_in::Call;
using stand_in::Device;
using stand_in::Kind;
using namespace stand_in;
