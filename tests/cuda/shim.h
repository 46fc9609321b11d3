// SPDX-License-Identifier: Apache-2.0
// The text of cuda/*.cu as C++20 on the host: what NVRTC has built in, and a way to run a grid.
//
// A block runs either as fibres of the calling thread (fast, and the same every time; any number of threads may launch
// at once), or, with SHIM_THREADS, as one std::thread a CUDA thread, which is what the sanitizers see through. Blocks
// run one after another. Their order, and with fibres that of warps and lanes, can be turned round: a missing barrier
// shows in one of the two.
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>
#ifdef SHIM_THREADS
#include <barrier>
#include <thread>
#else
#include <ucontext.h>
#endif

struct uint4 {
  unsigned x, y, z, w;
};

namespace shim {

struct Grid {
  unsigned x = 1, y = 1;
};
enum class Order { Forward, Backward };

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "shim: %s\n", what);
  std::abort();
}

inline thread_local Grid thread_index, block_index, block_size, grid_size;

// What a lane offers to the others of its warp. Two of them, in turn: a lane may be one shuffle ahead, but never two.
struct Offer {
  std::uint64_t bits[2];
};

class Block;
struct Thread {
  unsigned index = 0;
  unsigned shuffles = 0;
  Block* block = nullptr;
};
inline thread_local Thread* self = nullptr;

#ifdef SHIM_THREADS

class Block {
 public:
  explicit Block(unsigned threads) : offers(threads), all_(threads) {
    for (unsigned warp = 0; warp < threads / 32; warp++) warps_.push_back(std::make_unique<std::barrier<>>(32));
  }
  void wait_for_warp() { warps_[self->index / 32]->arrive_and_wait(); }
  void wait_for_block() { all_.arrive_and_wait(); }
  void leave() { all_.arrive_and_drop(); }

  std::vector<Offer> offers;

 private:
  std::barrier<> all_;
  std::vector<std::unique_ptr<std::barrier<>>> warps_;
};

template <class Kernel> void run_block(unsigned threads, Grid at, Grid grid, Order, const Kernel& kernel) {
  Block block(threads);
  std::vector<std::thread> running;
  for (unsigned index = 0; index < threads; index++) {
    running.emplace_back([&, index] {
      Thread thread{index, 0, &block};
      self = &thread;
      thread_index = {index, 0}, block_index = at, block_size = {threads, 1}, grid_size = grid;
      kernel();
      block.leave();
    });
  }
  for (std::thread& thread : running) thread.join();
}

#else

// Fibres of one host thread. They are kept from block to block: a first entry costs system calls, a switch does not.
class Block {
 public:
  std::vector<Offer> offers;

  void run(unsigned threads, Order order, void (*body)(const void*), const void* kernel) {
    while (fibres_.size() < threads) add();
    offers.resize(fibres_.size());
    body_ = body, kernel_ = kernel;
    for (unsigned index = 0; index < threads; index++) fibres_[index]->at = At::Ready;
    const unsigned warps = threads / 32;
    for (bool running = true; running;) {
      for (unsigned i = 0; i < warps; i++) run_warp(32 * (order == Order::Forward ? i : warps - 1 - i), order);
      running = false;
      for (unsigned index = 0; index < threads; index++) {
        if (fibres_[index]->at == At::Block) fibres_[index]->at = At::Ready, running = true;
      }
    }
  }
  void wait_for_warp() { wait(At::Warp); }
  void wait_for_block() { wait(At::Block); }

 private:
  enum class At { Ready, Warp, Block, End };
  // Not a power of two: the tops of all stacks would share a few lines of the cache.
  static constexpr std::size_t STACK = (32 << 10) + 9 * 64;

  struct Fibre {
    Thread thread;
    At at = At::End;
    bool entered = false;
    ucontext_t entry;
    jmp_buf place;
    std::unique_ptr<char[]> stack;
  };

  // As far as the lanes come without the other warps.
  void run_warp(unsigned first, Order order) {
    for (;;) {
      unsigned at_warp = 0;
      for (unsigned i = 0; i < 32; i++) {
        Fibre& fibre = *fibres_[first + (order == Order::Forward ? i : 31 - i)];
        if (fibre.at == At::Ready) resume(fibre);
        at_warp += fibre.at == At::Warp;
      }
      if (at_warp == 0) return;
      if (at_warp != 32) fail("a shuffle that not all lanes of the warp take part in");
      for (unsigned lane = 0; lane < 32; lane++) fibres_[first + lane]->at = At::Ready;
    }
  }

  void resume(Fibre& fibre) {
    self = &fibre.thread;
    thread_index = {fibre.thread.index, 0};
    running_ = &fibre;
    if (_setjmp(scheduler_)) return;
    if (fibre.entered) _longjmp(fibre.place, 1);
    fibre.entered = true;
    setcontext(&fibre.entry);
  }

  void wait(At at) {
    Fibre& fibre = *running_;
    fibre.at = at;
    if (!_setjmp(fibre.place)) _longjmp(scheduler_, 1);
  }

  static void enter() {
    Block& block = *self->block;
    for (;;) {
      block.body_(block.kernel_);
      block.wait(At::End);
    }
  }

  void add() {
    auto fibre = std::make_unique<Fibre>();
    fibre->thread = {static_cast<unsigned>(fibres_.size()), 0, this};
    fibre->stack.reset(new char[STACK]);
    getcontext(&fibre->entry);
    fibre->entry.uc_stack.ss_sp = fibre->stack.get();
    fibre->entry.uc_stack.ss_size = STACK;
    fibre->entry.uc_link = nullptr;
    makecontext(&fibre->entry, &Block::enter, 0);
    fibres_.push_back(std::move(fibre));
  }

  std::vector<std::unique_ptr<Fibre>> fibres_;
  Fibre* running_ = nullptr;
  jmp_buf scheduler_;
  void (*body_)(const void*) = nullptr;
  const void* kernel_ = nullptr;
};

template <class Kernel> void run_block(unsigned threads, Grid at, Grid grid, Order order, const Kernel& kernel) {
  static thread_local Block block;
  block_index = at, block_size = {threads, 1}, grid_size = grid;
  block.run(threads, order, [](const void* kernel) { (*static_cast<const Kernel*>(kernel))(); }, &kernel);
}

#endif

// Runs `kernel`, a call of a kernel with its arguments, in every thread of the grid.
template <class Kernel> void launch(Grid grid, unsigned threads, Order order, const Kernel& kernel) {
  if (threads == 0 || threads % 32 != 0) fail("a block that is not whole warps");
  const std::uint64_t blocks = std::uint64_t(grid.x) * grid.y;
  for (std::uint64_t i = 0; i < blocks; i++) {
    const std::uint64_t block = order == Order::Forward ? i : blocks - 1 - i;
    run_block(threads, Grid{unsigned(block % grid.x), unsigned(block / grid.x)}, grid, order, kernel);
  }
}

inline float half(unsigned bits) {
  const unsigned exponent = bits >> 10 & 31, fraction = bits & 1023, sign = (bits & 0x8000u) << 16;
  const unsigned wide = exponent == 0 ? 0 : exponent == 31 ? 255 : exponent + 112;
  unsigned size = wide << 23 | fraction << 13;
  if (exponent == 0) {
    const float subnormal = float(fraction) * 0x1p-24f;
    std::memcpy(&size, &subnormal, sizeof size);
  }
  size |= sign;
  float x;
  std::memcpy(&x, &size, sizeof x);
  return x;
}

}  // namespace shim

#define threadIdx shim::thread_index
#define blockIdx shim::block_index
#define blockDim shim::block_size
#define gridDim shim::grid_size

#ifdef SHIM_THREADS
#define __shared__ static
#else
#define __shared__ static thread_local
#endif
#define __launch_bounds__(threads)
#define DEVICE static inline
#define KERNEL extern "C" void

inline void __syncthreads() { shim::self->block->wait_for_block(); }
// Blocks run one after another here: there is nothing to fence.
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* at, unsigned by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }

template <class T> T __shfl_xor_sync(unsigned, T mine, unsigned far) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  shim::Thread& thread = *shim::self;
  std::vector<shim::Offer>& offers = thread.block->offers;
  const unsigned turn = thread.shuffles++ % 2;
  std::memcpy(&offers[thread.index].bits[turn], &mine, sizeof mine);
  thread.block->wait_for_warp();
  T theirs;
  std::memcpy(&theirs, &offers[thread.index ^ far].bits[turn], sizeof theirs);
  return theirs;
}

inline float as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline unsigned as_bits(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
// The device's is an approximation to 2^-22 of the same.
inline float exp2_flushed(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
inline float max_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : a > b ? a : b; }
inline float from_f16(unsigned short bits) { return shim::half(bits); }

inline unsigned max_bf16x2(unsigned a, unsigned b) {
  auto max = [](unsigned a, unsigned b) { return as_bits(max_or_nan(as_float(a), as_float(b))) & 0xffff0000u; };
  return max(a << 16, b << 16) >> 16 | max(a & 0xffff0000u, b & 0xffff0000u);
}
inline unsigned max_f16x2(unsigned a, unsigned b) {
  auto max = [](unsigned a, unsigned b) {
    const float x = shim::half(a), y = shim::half(b);
    return std::isnan(x) || std::isnan(y) ? 0x7fffu : x > y ? a : b;
  };
  return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16;
}

inline uint4 load_16(const uint4* at) {
  if (reinterpret_cast<std::uintptr_t>(at) % 16)
    shim::fail("a 16-byte load from an address that is not a multiple of 16");
  uint4 v;
  std::memcpy(&v, at, sizeof v);
  return v;
}
