// SPDX-License-Identifier: Apache-2.0
// Launches of the stand-in driver: the kernels of cuda/ by name, with a look at every address before one of them runs.
#pragma once
#include "shim.h"

#include "device.h"

#include <functional>

namespace kernels {
#include "load.cu"
#include "entropy.cu"
#include "read.cu"
}  // namespace kernels

namespace stand_in {

struct Launch {
  shim::Grid grid;
  unsigned threads;
  void** arguments;

  template <class T> T argument(int i) const {
    T value;
    std::memcpy(&value, arguments[i], sizeof value);
    return value;
  }
  void run(const std::function<void()>& kernel) const { shim::launch(grid, threads, shim::Order::Forward, kernel); }
};

// Collects what is wrong with the addresses of a launch.
class Addresses {
 public:
  explicit Addresses(const std::string& kernel) : kernel_(kernel) {}

  // `count` values at `at`, each `size` bytes and a multiple of `alignment`.
  bool hold(const std::string& what, std::uint64_t at, std::uint64_t count, std::uint64_t size,
            std::uint64_t alignment) {
    if (code_ != SUCCESS || count == 0) return code_ == SUCCESS;
    if (count > UINT64_MAX / size || !Device::get().holds(at, count * size))
      return wrong(ILLEGAL_ADDRESS, what + " is not in the device's memory");
    if (at % alignment) return wrong(MISALIGNED_ADDRESS, what + " is not aligned");
    return true;
  }
  int code() const { return code_; }

 private:
  bool wrong(int code, const std::string& what) {
    code_ = Device::get().fail(code, kernel_ + ": " + what);
    return false;
  }

  std::string kernel_;
  int code_ = SUCCESS;
};

// Whether the rows at argument 0 can be read as values of `size` bytes.
inline void check_rows(Addresses& addresses, std::uint64_t at, std::uint64_t count, std::uint64_t size) {
  if (!addresses.hold("rows", at, count, sizeof(kernels::RowIn), 8)) return;
  const auto* rows = (const kernels::RowIn*)at;
  for (std::uint64_t i = 0; i < count; i++) {
    const std::uint64_t width = rows[i].vocab > 0 ? rows[i].vocab : 0;
    if (!addresses.hold("row " + std::to_string(i), rows[i].at, width, size, size)) return;
  }
}

template <std::uint64_t SIZE, auto RUN> int rows(const std::string& name, const Launch& launch) {
  const auto count = launch.argument<int>(1);
  if (count < 0) return Device::get().fail(INVALID_VALUE, name + ": fewer rows than none");
  Addresses addresses(name);
  check_rows(addresses, launch.argument<std::uint64_t>(0), count, SIZE);
  addresses.hold("out", launch.argument<std::uint64_t>(2), count, sizeof(kernels::RowOut), 4);
  if (addresses.code() != SUCCESS) return addresses.code();
  launch.run([&] { RUN(launch.argument<const kernels::RowIn*>(0), count, launch.argument<kernels::RowOut*>(2)); });
  if (Device::get().is_wrong(name) && count) launch.argument<kernels::RowOut*>(2)->z *= 1.01f;
  return SUCCESS;
}

template <std::uint64_t SIZE, auto RUN> int split(const std::string& name, const Launch& launch) {
  const std::uint64_t count = launch.grid.y, splits = launch.grid.x;
  Addresses addresses(name);
  check_rows(addresses, launch.argument<std::uint64_t>(0), count, SIZE);
  addresses.hold("out", launch.argument<std::uint64_t>(1), count, sizeof(kernels::RowOut), 4);
  addresses.hold("parts", launch.argument<std::uint64_t>(2), count * splits, sizeof(kernels::Sums), 4);
  addresses.hold("tickets", launch.argument<std::uint64_t>(3), count, 4, 4);
  if (addresses.code() != SUCCESS) return addresses.code();
  launch.run([&] {
    RUN(launch.argument<const kernels::RowIn*>(0), launch.argument<kernels::RowOut*>(1),
        launch.argument<kernels::Sums*>(2), launch.argument<unsigned*>(3));
  });
  if (Device::get().is_wrong(name)) launch.argument<kernels::RowOut*>(1)->z *= 1.01f;
  return SUCCESS;
}

inline int read(const std::string& name, const Launch& launch) {
  const auto count = launch.argument<unsigned long long>(1);
  Addresses addresses(name);
  addresses.hold("data", launch.argument<std::uint64_t>(0), count, 16, 16);
  addresses.hold("out", launch.argument<std::uint64_t>(2), launch.grid.x, 4, 4);
  if (addresses.code() != SUCCESS) return addresses.code();
  launch.run([&] { kernels::read_sum(launch.argument<const uint4*>(0), count, launch.argument<unsigned*>(2)); });
  return SUCCESS;
}

struct Kernel {
  const char* name;
  unsigned most_threads;
  int (*launch)(const std::string& name, const Launch& launch);
};

constexpr Kernel KERNELS[] = {
    {"entropy_rows_bf16", kernels::ROW_THREADS, rows<2, kernels::entropy_rows_bf16>},
    {"entropy_rows_f16", kernels::ROW_THREADS, rows<2, kernels::entropy_rows_f16>},
    {"entropy_rows_f32", kernels::ROW_THREADS, rows<4, kernels::entropy_rows_f32>},
    {"entropy_split_bf16", kernels::ROW_THREADS, split<2, kernels::entropy_split_bf16>},
    {"entropy_split_f16", kernels::ROW_THREADS, split<2, kernels::entropy_split_f16>},
    {"entropy_split_f32", kernels::ROW_THREADS, split<4, kernels::entropy_split_f32>},
    {"read_sum", kernels::READ_THREADS, read},
};

}  // namespace stand_in
