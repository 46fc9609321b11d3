// SPDX-License-Identifier: Apache-2.0
// Declarations and loads that the programs of this directory share: compiled ahead of each of them.
//
// It has no include, so that NVRTC needs no toolkit, and so that tests/cuda/shim.h, which has its own definitions, can
// compile the same text as C++.
#if defined(__CUDACC__)
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void

// Rows are read once, so the loads bypass the L1 cache. Volatile keeps the loads of a group together, ahead of their
// first use.
DEVICE uint4 load_16(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
#endif
