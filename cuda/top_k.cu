// Entropy of rows of top-k logprobs; compiled after entropy.cu.

// One row: values[start..start + k], in any order, the sampled token's logprob (NaN: unknown) and the vocabulary (0:
// unknown).
struct TopKIn {
  unsigned start, k;
  float chosen;
  unsigned vocab;
};

// In nats and as probabilities; NaN means unknown. `flags` are bits. src/entropy.rs documents each member: this
// computes the same as the CPU path there, with sums and exponentials in float64.
struct TopKOut {
  float renormalized, lower, upper, estimate, tail_mass, varentropy, margin, confidence;
  unsigned rank, flags;
};

static_assert(sizeof(TopKIn) == 16 && sizeof(TopKOut) == 40, "the host mirrors these");

enum Flag : unsigned {
  NAN_VALUE = 1,
  MASKED_VALUE = 2,
  NEGATIVE_RESIDUAL = 4,
  INCONSISTENT = 8,
  MISSING = 16,
  BF16_VALUES = 32,
  CHOSEN_OUTSIDE = 64,
};

// No vocabulary is larger, so an unknown one is bounded by this.
constexpr double LARGEST_VOCAB = 4294967296.0;
// The error of the tail mass of float32 logprobs, and what bfloat16 adds for each nat of the head's entropy.
constexpr double TAIL_ERROR = 1e-6, BF16_ERROR = 1.1 / 256.0;
constexpr double LEAST = 1e-300, ONE_BY_E = 0.36787944117144233;
constexpr int TOP_K_THREADS = 128;

// A summary of the values of a row. The first three members ignore masked values.
struct Look {
  float first, last;
  unsigned k, above, marks;
};
enum Mark : unsigned { LOW_BITS = 0xffff, SOME_NAN = 1 << 16, SOME_NOT_ZERO = 1 << 17, SOME_MASKED = 1 << 18 };

// Sums over the live values, with d = l - first: over all but those that equal the first, whose d is 0, and which
// `ties` counts. Added to a 1, the tail of a near-certain row would be rounded away.
struct Head {
  double z, s, q, logprobs;
  float second;
  unsigned ties;
};

DEVICE Look look(const float* values, unsigned k, float chosen) {
  Look a = {-infinity(), infinity(), 0, 0, 0};
  for (unsigned long long i = threadIdx.x % 32; i < k; i += 32) {
    float l = values[i];
    if (!(l < infinity())) {
      a.marks |= SOME_NAN;
    } else if (l <= MASKED) {
      a.marks |= SOME_MASKED;
    } else {
      if (l > a.first) a.first = l;
      if (l < a.last) a.last = l;
      a.k += 1;
      a.above += l > chosen;
      a.marks |= (as_bits(l) & LOW_BITS) | (l != 0.0f ? SOME_NOT_ZERO : 0u);
    }
  }
#pragma unroll
  for (int far = 16; far; far >>= 1) {
    float first = __shfl_xor_sync(ALL_LANES, a.first, far), last = __shfl_xor_sync(ALL_LANES, a.last, far);
    if (first > a.first) a.first = first;
    if (last < a.last) a.last = last;
    a.k += __shfl_xor_sync(ALL_LANES, a.k, far);
    a.above += __shfl_xor_sync(ALL_LANES, a.above, far);
    a.marks |= __shfl_xor_sync(ALL_LANES, a.marks, far);
  }
  return a;
}

DEVICE Head sum_head(const float* values, unsigned k, float first) {
  Head a = {0.0, 0.0, 0.0, 0.0, -infinity(), 0};
  for (unsigned long long i = threadIdx.x % 32; i < k; i += 32) {
    float l = values[i];
    if (l <= MASKED) continue;
    a.logprobs += (double)l;
    if (l == first) {
      a.ties += 1;
      continue;
    }
    if (l > a.second) a.second = l;
    double d = (double)l - (double)first;
    double e = exp(d);
    a.z += e;
    a.s += d * e;
    a.q += d * d * e;
  }
#pragma unroll
  for (int far = 16; far; far >>= 1) {
    a.z += __shfl_xor_sync(ALL_LANES, a.z, far);
    a.s += __shfl_xor_sync(ALL_LANES, a.s, far);
    a.q += __shfl_xor_sync(ALL_LANES, a.q, far);
    a.logprobs += __shfl_xor_sync(ALL_LANES, a.logprobs, far);
    float second = __shfl_xor_sync(ALL_LANES, a.second, far);
    if (second > a.second) a.second = second;
    a.ties += __shfl_xor_sync(ALL_LANES, a.ties, far);
  }
  return a;
}

// The widest range in which a logprob matters, finite on both sides.
DEVICE double held(double x) {
  return x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
}
DEVICE double between(double x, double low, double high) { return !(x > low) ? low : x < high ? x : high; }

// M(z) = Phi(z) / phi(z) of the standard normal.
DEVICE double mills(double z) { return 1.2533141373155003 * erfcx(z * -0.70710678118654752); }

// The mean surprisal, beyond -l_k, of a tail whose logits are a normal cut at the quantile t: with z below t such that
// M(z) = x = r M(t) / (n p_k), it is (t - z) (z + 1 / x). src/entropy/tail.rs has the derivation.
DEVICE double excess(double x, double t) {
  // The series for a wide spread, off by less than t x^3.
  if (!(x * 512.0 > 1.0)) return 1.0 + x * (t - 2.0 * x);
  const double ln_x = log(x), inverse = 1.0 / x;
  double z = x < 1.2533141373155003 ? x - inverse : sqrt(2.0 * (ln_x - 0.22579135264472744));
  // Newton in ln M, which is convex with the slope z + 1/M.
#pragma unroll 1
  for (int step = 0; step < 60; step++) {
    const double ratio = mills(z), far = (ln_x - log(ratio)) / (z + 1.0 / ratio);
    z += far;
    if (fabs(far) <= 1e-10) break;
  }
  return (t - z) * (z + inverse);
}

DEVICE TopKOut unmeasured(unsigned flags) {
  float none = not_a_number();
  return {none, none, none, none, none, none, none, none, 0, flags};
}

// The unknown tail of a row: `n` tokens of at most `p_last` each, with a mass between `least` and `most`. `truncated` is
// the entropy of the known tokens.
struct Tail {
  double n, p_last, last, least, most, truncated;
};

// As many tokens at the cap as the least mass fills, and one with the remainder.
DEVICE double least_entropy(const Tail& tail) {
  const double full = floor(tail.least / tail.p_last);
  double remainder = tail.least - full * tail.p_last;
  if (!(remainder > 0.0)) remainder = 0.0;
  // -x ln x falls beyond 1/e: there more mass means less entropy.
  if (remainder > ONE_BY_E) {
    double more = remainder + (tail.most - tail.least);
    remainder = more < tail.p_last ? more : tail.p_last;
  }
  return tail.truncated - full * tail.p_last * tail.last - remainder * log(remainder > LEAST ? remainder : LEAST);
}

// A uniform tail, with the possible mass that is nearest to n/e.
DEVICE double greatest_entropy(const Tail& tail) {
  double mass = tail.n * ONE_BY_E;
  if (!(mass > tail.least)) mass = tail.least;
  if (!(tail.most > mass)) mass = tail.most;
  const double each = mass / (tail.n > 1.0 ? tail.n : 1.0);
  return tail.truncated - mass * log(each > LEAST ? each : LEAST);
}

// A log-normal tail of the given mass.
DEVICE double likely_entropy(const Tail& tail, double mass, double k, double vocab) {
  const double t = k < 0.5 * vocab ? -normcdfinv(k / vocab) : normcdfinv((vocab - k) / vocab);
  return tail.truncated + mass * (excess(mass * mills(t) / (tail.p_last * (vocab - k)), t) - tail.last);
}

// The statistics of a row from its sums, in the same steps as src/entropy/bounds.rs and src/entropy/report.rs.
DEVICE TopKOut conclude(const TopKIn& row, const Look& seen, const Head& head) {
  const double first = seen.first, last = seen.last, k = seen.k, none = (double)not_a_number();
  const double vocab = row.vocab ? (double)row.vocab : LARGEST_VOCAB;
  const bool masked = seen.marks & SOME_MASKED, bf16 = !(seen.marks & LOW_BITS) && (seen.marks & SOME_NOT_ZERO);
  const bool known = row.chosen > MASKED && row.chosen < infinity(), outside = known && row.chosen < seen.last;
  // A row with masked tokens is the whole distribution. Of the tail, only a sampled token outside the row is known.
  const bool whole = masked || !(vocab > k), moved = outside && !whole;
  const double n = whole ? 0.0 : vocab - k - (moved ? 1.0 : 0.0);

  const double z = head.z + (double)(head.ties - 1);
  double mean = head.s / (1.0 + z);
  if (!(mean < 0.0)) mean = 0.0;
  const double renormalized = log1p(z) - mean, square = head.q / (1.0 + z) - mean * mean;

  const double p_first = exp(held(first)), p_last = exp(held(last)),
               p_chosen = moved ? exp(held((double)row.chosen)) : 0.0;
  const double truncated = -p_first * (first + (head.s + first * z)) - (moved ? p_chosen * (double)row.chosen : 0.0);
  // 1 - sum p without subtracting a near-one p_1 from 1.
  const double outside_row = -expm1(held(first)) - z * p_first, residual = outside_row - p_chosen;
  const double error = (bf16 ? BF16_ERROR : 0.0) * truncated + TAIL_ERROR, cap = n * p_last;
  const bool too_much = residual<-error, too_little = residual> cap + error;

  const Tail tail = {n,        p_last, last, between(residual - error, 0.0, cap), between(residual + error, 0.0, cap),
                     truncated};
  double upper = greatest_entropy(tail), lower = least_entropy(tail);
  if (!(lower < upper)) lower = upper;
  double estimate = lower;
  if (!whole) estimate = fmin(fmax(likely_entropy(tail, between(residual, 0.0, cap), k, vocab), lower), upper);
  if (whole) {
    lower = estimate = upper = renormalized;
  } else if (!row.vocab) {
    estimate = upper = none;
  }
  if (too_much) lower = estimate = upper = none;

  TopKOut out;
  out.renormalized = (float)renormalized;
  out.lower = (float)lower;
  out.upper = (float)upper;
  out.estimate = (float)estimate;
  out.tail_mass = whole || !(outside_row > 0.0) ? 0.0f : (float)outside_row;
  out.varentropy = square > 0.0 ? (float)square : 0.0f;
  const double second = head.ties > 1 ? first : (double)head.second;
  out.margin = (float)(seen.k > 1 ? 0.0 - p_first * expm1(held(second - first)) : whole ? exp(first) : none);
  out.confidence = (float)(-head.logprobs / k);
  out.rank = known && !outside ? seen.above + 1 : 0;
  out.flags = (masked ? MASKED_VALUE : 0u) | ((whole ? too_much : residual < 0.0) ? NEGATIVE_RESIDUAL : 0u) |
              (too_much || too_little || k > vocab || (outside && whole) ? INCONSISTENT : 0u) |
              (bf16 ? BF16_VALUES : 0u) | (outside ? CHOSEN_OUTSIDE : 0u);
  return out;
}

// One warp per row. Any grid.
KERNEL __launch_bounds__(TOP_K_THREADS)
    entropy_top_k(const float* values, const TopKIn* rows, int count, TopKOut* out) {
  const unsigned warps = blockDim.x / 32;
  for (unsigned i = blockIdx.x * warps + threadIdx.x / 32; i < (unsigned)count; i += gridDim.x * warps) {
    const TopKIn row = rows[i];
    const float* own = values + row.start;
    const Look seen = look(own, row.k, row.chosen);
    TopKOut found;
    if (seen.marks & SOME_NAN) {
      found = unmeasured(NAN_VALUE);
    } else if (seen.k == 0) {
      found = unmeasured(MISSING | (seen.marks & SOME_MASKED ? MASKED_VALUE : 0u));
    } else {
      const Head head = sum_head(own, row.k, seen.first);
      found = conclude(row, seen, head);
    }
    if (threadIdx.x % 32 == 0) out[i] = found;
  }
}
