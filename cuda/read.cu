// SPDX-License-Identifier: Apache-2.0
// Reads memory as the kernels of entropy.cu do and computes almost nothing: the reference for their speed.
DEVICE unsigned words(uint4 v) { return v.x + v.y + v.z + v.w; }

constexpr int READ_THREADS = 512;

// out[block], one per block of the grid: the sum modulo 2^32 of the 32-bit words of data[0..count] that the block read.
// A sum of integers is exact in any order, and the compiler cannot remove a load.
KERNEL __launch_bounds__(READ_THREADS) read_sum(const uint4* data, unsigned long long count, unsigned* out) {
  __shared__ unsigned warps[READ_THREADS / 32];
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  unsigned sum = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
    uint4 v[4] = {load_16(data + i), load_16(data + i + stride), load_16(data + i + 2 * stride),
                  load_16(data + i + 3 * stride)};
    sum += words(v[0]) + words(v[1]) + words(v[2]) + words(v[3]);
  }
  for (; i < count; i += stride) sum += words(load_16(data + i));
#pragma unroll
  for (int far = 16; far; far >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, far);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; warp++) sum += warps[warp];
    out[blockIdx.x] = sum;
  }
}
