// SPDX-License-Identifier: Apache-2.0
// Entropy of whole rows of logits.
//
// Compiled after load.cu, as one program. The host mirrors the structs and finishes the rows in float64.
#if defined(__CUDACC__)
DEVICE float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
DEVICE float as_float(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned as_bits(float x) { return __float_as_uint(x); }
DEVICE float from_f16(unsigned short h) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(h));
  return y;
}
DEVICE unsigned max_bf16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
DEVICE unsigned max_f16x2(unsigned a, unsigned b) {
  unsigned y;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
#endif

// One row: the device address of its first value, aligned to the value only, 1/T, its width and the sampled token's id,
// or -1. 1/T is positive and finite, and large enough (1e-20) for a masked logit to count for nothing.
struct RowIn {
  unsigned long long at;
  float inverse_temperature;
  int vocab, chosen, unused;
};

// With m the greatest logit and d_i = (x_i - m) log2(e) / T, which is exactly 0 at the maximum and never above:
//   top = m, z = sum 2^d, s = sum d 2^d, q = sum d^2 2^d, chosen = d of the sampled token
// so that z >= 1, s <= 0 and the entropy ln 2 (log2 z - s/z) is a sum of two terms that are never negative.
// Logits at or below -1e30 are masked and add nothing. Without any other, z = 0 and top = -inf. A NaN or +inf anywhere
// makes z NaN. chosen is NaN for an id outside the row and -inf for a masked one.
struct RowOut {
  float top, z, s, q, chosen;
  float unused[3];
};

// The sums of one part of a row, relative to the greatest logit of that part.
struct Sums {
  float top, z, s, q;
};

static_assert(sizeof(RowIn) == 24 && sizeof(RowOut) == 32 && sizeof(Sums) == 16, "the host mirrors these");

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MASKED = -1e30f;
// The least float above MASKED. It is the initial `top`, so that a masked logit is below it and has no weight, while a
// logit of exactly this value counts.
constexpr float LEAST_LIVE = -0x1.93e592p99f;
// 2^-150 is flushed to zero. Without a floor a masked logit would be -inf times 0.
constexpr float FLOOR = -150.0f;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int ROW_THREADS = 512;

DEVICE float infinity() { return as_float(0x7f800000u); }
DEVICE float not_a_number() { return as_float(0x7fc00000u); }

// Moves the sums to a greater (or NaN) top.
DEVICE void raise_top(Sums& a, float top, float c) {
  float step = max_or_nan((a.top - top) * c, FLOOR);
  float scale = exp2_flushed(step);
  a.q = scale * (a.q + step * (2.0f * a.s + step * a.z));
  a.s = scale * (a.s + step * a.z);
  a.z = scale * a.z;
  a.top = top;
}

// Adds one logit that is not above `a.top` to sums of the same top.
DEVICE void add_below(Sums& part, float x, float c) {
  // Not as a fused x c - top c: that leaves a residue at the maximum.
  float d = max_or_nan((x - part.top) * c, FLOOR);
  float e = exp2_flushed(d);
  float de = d * e;
  part.z += e;
  part.s += de;
  part.q += d * de;
}

// The layout of values in the 32-bit words of a load: one, or a pair.
struct Bf16 {
  typedef unsigned short Value;
  static constexpr bool PAIRS = true;
  static constexpr unsigned MASKED_WORD = 0xff80ff80u;
  DEVICE float read(unsigned short v) { return as_float((unsigned)v << 16); }
  DEVICE float low(unsigned w) { return as_float(w << 16); }
  DEVICE float high(unsigned w) { return as_float(w & 0xffff0000u); }
  DEVICE unsigned greater(unsigned a, unsigned b) { return max_bf16x2(a, b); }
};
struct F16 {
  typedef unsigned short Value;
  static constexpr bool PAIRS = true;
  static constexpr unsigned MASKED_WORD = 0xfc00fc00u;
  DEVICE float read(unsigned short v) { return from_f16(v); }
  DEVICE float low(unsigned w) { return from_f16((unsigned short)w); }
  DEVICE float high(unsigned w) { return from_f16((unsigned short)(w >> 16)); }
  DEVICE unsigned greater(unsigned a, unsigned b) { return max_f16x2(a, b); }
};
struct F32 {
  typedef float Value;
  static constexpr bool PAIRS = false;
  static constexpr unsigned MASKED_WORD = 0xff800000u;
  DEVICE float read(float v) { return v; }
  DEVICE float low(unsigned w) { return as_float(w); }
  DEVICE float high(unsigned w) { return as_float(w); }
  DEVICE unsigned greater(unsigned a, unsigned b) { return as_bits(max_or_nan(as_float(a), as_float(b))); }
};

template <class Element> DEVICE void add_word(Sums& part, unsigned w, float c) {
  add_below(part, Element::low(w), c);
  if (Element::PAIRS) add_below(part, Element::high(w), c);
}

// Adds the first `live` of four loads; the others are masked words. One comparison with their greatest value is enough
// for all: it rarely rises. They are summed separately from the row, because many small terms would be rounded against a
// large total.
template <class Element> DEVICE void add_group(Sums& a, const uint4 (&v)[4], int live, float c) {
  unsigned words = Element::MASKED_WORD;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned four = Element::greater(Element::greater(v[i].x, v[i].y), Element::greater(v[i].z, v[i].w));
    words = i ? Element::greater(words, four) : four;
  }
  float top = Element::low(words);
  if (Element::PAIRS) top = max_or_nan(top, Element::high(words));
  if (!(top <= a.top)) raise_top(a, top, c);  // a NaN goes in too, and stays
  Sums part = {a.top, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (i >= live) break;
    add_word<Element>(part, v[i].x, c);
    add_word<Element>(part, v[i].y, c);
    add_word<Element>(part, v[i].z, c);
    add_word<Element>(part, v[i].w, c);
  }
  a.z += part.z;
  a.s += part.s;
  a.q += part.q;
}

// This thread's share of values[0..count] of a row; all threads of the block take part.
template <class Element> DEVICE Sums scan(const typename Element::Value* values, int count, float c) {
  const int size = (int)sizeof(*values), per_load = 16 / size, threads = (int)blockDim.x, thread = (int)threadIdx.x;
  Sums a = {LEAST_LIVE, 0.0f, 0.0f, 0.0f};
  // Before the first 16-byte boundary and after the last, fewer than 16 values in total: one per thread.
  int head = (int)((16u - ((unsigned long long)values & 15u)) & 15u) / size;
  if (head > count) head = count;
  int loads = (count - head) / per_load;
  int rest = count - head - loads * per_load;
  if (thread < head + rest) {
    float x = Element::read(values[thread < head ? thread : count - rest + (thread - head)]);
    if (!(x <= a.top)) raise_top(a, x, c);
    add_below(a, x, c);
  }
  const uint4* at = (const uint4*)(values + head);
  int i = thread;
  for (; i + 3 * threads < loads; i += 4 * threads) {
    uint4 v[4] = {load_16(at + i), load_16(at + i + threads), load_16(at + i + 2 * threads),
                  load_16(at + i + 3 * threads)};
    add_group<Element>(a, v, 4, c);
  }
  if (i < loads) {
    uint4 v[4];
    int live = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      v[j].x = v[j].y = v[j].z = v[j].w = Element::MASKED_WORD;
      if (i + j * threads < loads) {
        v[j] = load_16(at + i + j * threads);
        live = j + 1;
      }
    }
    add_group<Element>(a, v, live, c);
  }
  return a;
}

// The sums of all lanes, in every lane.
DEVICE Sums merge_warp(Sums a, float c) {
  float top = a.top;
#pragma unroll
  for (int far = 16; far; far >>= 1) top = max_or_nan(top, __shfl_xor_sync(ALL_LANES, top, far));
  raise_top(a, top, c);
#pragma unroll
  for (int far = 16; far; far >>= 1) {
    a.z += __shfl_xor_sync(ALL_LANES, a.z, far);
    a.s += __shfl_xor_sync(ALL_LANES, a.s, far);
    a.q += __shfl_xor_sync(ALL_LANES, a.q, far);
  }
  return a;
}

// The sums of all threads of the block, in its first warp.
DEVICE Sums merge_block(Sums a, Sums* warps, float c) {
  int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32);
  a = merge_warp(a, c);
  if (lane == 0) warps[warp] = a;
  __syncthreads();
  if (warp == 0) {
    Sums none = {LEAST_LIVE, 0.0f, 0.0f, 0.0f};
    a = merge_warp(lane < (int)(blockDim.x / 32) ? warps[lane] : none, c);
  }
  __syncthreads();  // the next row writes `warps`
  return a;
}

template <class Element> DEVICE RowOut report(const RowIn& row, Sums a, float c) {
  float chosen = not_a_number();
  if (row.chosen >= 0 && row.chosen < row.vocab) {
    float x = Element::read(((const typename Element::Value*)row.at)[row.chosen]);
    chosen = x <= MASKED ? -infinity() : (x - a.top) * c;
  }
  return {a.z == 0.0f ? -infinity() : a.top, a.z, a.s, a.q, chosen, {0.0f, 0.0f, 0.0f}};
}

// One block per row, for many rows. Any grid.
template <class Element> DEVICE void rows_of(const RowIn* rows, int count, RowOut* out) {
  __shared__ Sums warps[ROW_THREADS / 32];
  for (unsigned i = blockIdx.x; i < (unsigned)count; i += gridDim.x) {
    RowIn row = rows[i];
    float c = LOG2_E * row.inverse_temperature;
    Sums a = scan<Element>((const typename Element::Value*)row.at, row.vocab, c);
    a = merge_block(a, warps, c);
    if (threadIdx.x == 0) out[i] = report<Element>(row, a, c);
  }
}

// gridDim.x blocks per row and gridDim.y rows, for few rows. `parts` has an entry per block. The last block of a row to
// finish merges them, always in the same order. `tickets` has an entry per row, 0 before and after.
template <class Element> DEVICE void split_rows_of(const RowIn* rows, RowOut* out, Sums* parts, unsigned* tickets) {
  __shared__ Sums warps[ROW_THREADS / 32];
  __shared__ unsigned ticket;
  RowIn row = rows[blockIdx.y];
  float c = LOG2_E * row.inverse_temperature;
  const int splits = (int)gridDim.x;
  // Each part is whole cache lines if the row is aligned to one.
  long long width = (((long long)row.vocab + splits - 1) / splits + 63) & ~63ll;
  long long from = blockIdx.x * width, until = from + width;
  if (until > row.vocab) until = row.vocab;
  if (from > until) from = until;
  Sums a = scan<Element>((const typename Element::Value*)row.at + from, (int)(until - from), c);
  a = merge_block(a, warps, c);
  Sums* row_parts = parts + (long long)blockIdx.y * splits;
  if (threadIdx.x == 0) {
    row_parts[blockIdx.x] = a;
    __threadfence();
    ticket = atomicAdd(&tickets[blockIdx.y], 1u);
  }
  __syncthreads();
  if (ticket != (unsigned)splits - 1u || threadIdx.x >= 32) return;
  __threadfence();
  a = {LEAST_LIVE, 0.0f, 0.0f, 0.0f};
  for (int i = (int)threadIdx.x; i < splits; i += 32) {
    // Other blocks wrote these, so the loads bypass the cache of this multiprocessor.
    const volatile float* at = &row_parts[i].top;
    Sums part = {at[0], at[1], at[2], at[3]};
    float top = max_or_nan(a.top, part.top);
    raise_top(a, top, c);
    raise_top(part, top, c);
    a.z += part.z;
    a.s += part.s;
    a.q += part.q;
  }
  a = merge_warp(a, c);
  if (threadIdx.x == 0) {
    out[blockIdx.y] = report<Element>(row, a, c);
    tickets[blockIdx.y] = 0u;
  }
}

#define ROW_KERNELS(name, Element)                                                                       \
  KERNEL __launch_bounds__(ROW_THREADS) entropy_rows_##name(const RowIn* rows, int count, RowOut* out) { \
    rows_of<Element>(rows, count, out);                                                                  \
  }                                                                                                      \
  KERNEL __launch_bounds__(ROW_THREADS)                                                                  \
      entropy_split_##name(const RowIn* rows, RowOut* out, Sums* parts, unsigned* tickets) {             \
    split_rows_of<Element>(rows, out, parts, tickets);                                                   \
  }
ROW_KERNELS(bf16, Bf16)
ROW_KERNELS(f16, F16)
ROW_KERNELS(f32, F32)
