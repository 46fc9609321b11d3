// SPDX-License-Identifier: Apache-2.0
// The device of the stand-in driver: what it was told to be, what memory it gave out, and how it fails. It is not a
// GPU.
#pragma once
#include <array>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

namespace stand_in {

// Codes of the driver API that the stand-in gives of its own accord. STAND_IN_INIT and STAND_IN_FAIL give any number.
enum Code : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  UNSUPPORTED_PTX_VERSION = 222,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_OUT_OF_RESOURCES = 701,
  REGISTERED_ALREADY = 712,
  NOT_REGISTERED = 713,
  MISALIGNED_ADDRESS = 716,
};

// What calls STAND_IN_FAIL can name. The others count as none.
enum class Call { Launch, Copy, Alloc, Load, Sync, Other };
constexpr std::array<const char*, 5> CALLS = {"launch", "copy", "alloc", "load", "sync"};

enum class Kind { Device, Pinned, Registered };

// After one of these, CUDA says, the process must be restarted: every further call returns the same.
inline bool is_sticky(int code) {
  return code == 214 || code == 220 || code == 700 || code == 702 || code == 710 || (code >= 714 && code <= 719) ||
         code == 721;
}

class Device {
 public:
  static Device& get() {
    // Never destroyed: the process may still free memory while it ends.
    static Device& device = *new Device;
    return device;
  }

  int init() {
    if (init_ != SUCCESS) return init_;
    if (count == 0) return NO_DEVICE;
    initialized_ = true;
    return SUCCESS;
  }

  // What a call that needs no context returns before it does anything.
  int before() const { return initialized_ ? SUCCESS : NOT_INITIALIZED; }

  // What any other call returns before it does anything, unless that is SUCCESS.
  int before(Call call, const void* context) {
    if (!initialized_) return NOT_INITIALIZED;
    if (const int lost = lost_) return lost;
    if (!context) return INVALID_CONTEXT;
    if (call == Call::Other) return SUCCESS;
    const unsigned long number = ++calls_[std::size_t(call)];
    for (const Fault& fault : faults_) {
      if (fault.call == call && fault.number == number) return fail(fault.code);
    }
    if (call == Call::Launch && number >= hang_) hangs_ = true;
    return SUCCESS;
  }

  // Whether it neither answers nor fails.
  // Whether the numbers of this kernel are to be wrong.
  bool is_wrong(const std::string& kernel) const { return kernel == wrong_; }

  bool hangs() const { return hangs_; }

  // Waits until it is through with all it was told: at once, or never.
  void wait() const { hangs_.wait(true); }

  int fail(int code) {
    if (is_sticky(code)) {
      int none = SUCCESS;
      lost_.compare_exchange_strong(none, code);
    }
    return code;
  }

  // A mistake that a real device would answer with this code, and with no word of explanation.
  int fail(int code, const std::string& why) {
    std::fprintf(stderr, "stand-in driver (not a GPU): %s: error %d\n", why.c_str(), code);
    return fail(code);
  }

  int allocate(std::uint64_t* at, std::size_t bytes, Kind kind) {
    if (bytes == 0) return INVALID_VALUE;
    std::unique_lock lock(memory);
    if (kind == Kind::Device && bytes > memory_ - used_) return OUT_OF_MEMORY;
    void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!block) return OUT_OF_MEMORY;
    // Not zeros, which would hide that nothing was written.
    std::memset(block, 0xEE, bytes);
    *at = std::uint64_t(block);
    blocks_[*at] = {bytes, kind};
    if (kind == Kind::Device) used_ += bytes;
    return SUCCESS;
  }

  int release(std::uint64_t at, Kind kind) {
    if (at == 0 && kind == Kind::Device) return SUCCESS;
    std::unique_lock lock(memory);
    auto block = blocks_.find(at);
    if (block == blocks_.end() || block->second.kind != kind) return INVALID_VALUE;
    if (kind == Kind::Device) used_ -= block->second.bytes;
    std::memset((void*)at, 0xDD, block->second.bytes);
    std::free((void*)at);
    blocks_.erase(block);
    return SUCCESS;
  }

  int enroll(std::uint64_t at, std::size_t bytes) {
    if (at == 0 || bytes == 0) return INVALID_VALUE;
    std::unique_lock lock(memory);
    return blocks_.try_emplace(at, Block{bytes, Kind::Registered}).second ? SUCCESS : REGISTERED_ALREADY;
  }

  int expel(std::uint64_t at) {
    std::unique_lock lock(memory);
    auto block = blocks_.find(at);
    if (block == blocks_.end() || block->second.kind != Kind::Registered) return NOT_REGISTERED;
    blocks_.erase(block);
    return SUCCESS;
  }

  // Whether the device may touch these bytes; under `memory`.
  bool holds(std::uint64_t at, std::uint64_t bytes) const {
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) return false;
    --block;
    const std::uint64_t behind = at - block->first;
    return behind <= block->second.bytes && bytes <= block->second.bytes - behind;
  }

  void free_and_total(std::size_t* free, std::size_t* total) {
    std::shared_lock lock(memory);
    *free = memory_ - used_, *total = memory_;
  }

  // Streams, events, modules and functions, so that one that was destroyed is known.
  void* make(char kind) {
    std::lock_guard lock(handles_mutex_);
    void* handle = new char(kind);
    handles_.insert({handle, kind});
    return handle;
  }
  bool is(void* handle, char kind) {
    std::lock_guard lock(handles_mutex_);
    return handles_.count({handle, kind});
  }
  // The memory of a handle stays, so that no later one has its address.
  bool unmake(void* handle, char kind) {
    std::lock_guard lock(handles_mutex_);
    return handles_.erase({handle, kind});
  }

  void note(const std::string& line) {
    if (journal_.empty()) return;
    std::lock_guard lock(handles_mutex_);
    if (std::FILE* file = std::fopen(journal_.c_str(), "a")) {
      std::fprintf(file, "%s\n", line.c_str());
      std::fclose(file);
    }
  }

  int count, driver;
  // Shared while a launch or a copy runs, so that nobody frees what it reads.
  std::shared_mutex memory;

 private:
  struct Block {
    std::size_t bytes;
    Kind kind;
  };
  struct Fault {
    Call call;
    unsigned long number;
    int code;
  };

  Device() {
    auto number = [](const char* name, unsigned long long otherwise) {
      const char* text = std::getenv(name);
      return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
    };
    count = int(number("STAND_IN_DEVICES", 1));
    driver = int(number("STAND_IN_DRIVER", 12000));
    init_ = int(number("STAND_IN_INIT", SUCCESS));
    memory_ = number("STAND_IN_MEMORY", 1ull << 30);
    hang_ = number("STAND_IN_HANG", ULONG_MAX);
    if (const char* kernel = std::getenv("STAND_IN_WRONG")) wrong_ = kernel;
    if (const char* path = std::getenv("STAND_IN_JOURNAL")) journal_ = path;
    std::string faults = std::getenv("STAND_IN_FAIL") ? std::getenv("STAND_IN_FAIL") : "";
    for (std::size_t at = 0; at < faults.size();) {
      const std::size_t end = std::min(faults.find(',', at), faults.size());
      faults_.push_back(parse(faults.substr(at, end - at)));
      at = end + 1;
    }
  }

  static Fault parse(const std::string& text) {
    for (std::size_t call = 0; call < CALLS.size(); call++) {
      unsigned long number = 0;
      int code = 0, end = 0;
      if (std::sscanf(text.c_str(), (std::string(CALLS[call]) + ":%lu=%d%n").c_str(), &number, &code, &end) == 2 &&
          std::size_t(end) == text.size() && number > 0) {
        return {Call(call), number, code};
      }
    }
    std::fprintf(stderr, "stand-in driver: STAND_IN_FAIL wants CALL:NUMBER=CODE, not %s\n", text.c_str());
    std::abort();
  }

  int init_;
  std::size_t memory_, used_ = 0;
  unsigned long hang_;
  std::string wrong_;
  std::string journal_;
  std::vector<Fault> faults_;
  std::array<std::atomic<unsigned long>, 5> calls_{};
  std::atomic<bool> initialized_{false}, hangs_{false};
  std::atomic<int> lost_{SUCCESS};
  std::map<std::uint64_t, Block> blocks_;
  std::mutex handles_mutex_;
  std::set<std::pair<void*, char>> handles_;
};

}  // namespace stand_in
