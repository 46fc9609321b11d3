// The truth about a row of logits, and what a row of top-k logprobs says, naively: float64, textbook formulas,
// bisection.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace oracle {

constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
constexpr double MASKED = -1.0000000150474662e30;  // the float nearest to -1e30

struct Row {
  double entropy, log_z, p_max, varentropy, surprisal;
};

// What the host makes of the sums of a row.
template <class Sums> Row finish(const Sums& sums, float inverse_temperature) {
  const double ln_2 = std::log(2.0), z = sums.z, s = sums.s, q = sums.q;
  if (sums.z == 0) return {NOT_A_NUMBER, -INFINITY, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER};
  return {
      ln_2 * (std::log2(z) - s / z),
      double(sums.top) * inverse_temperature + std::log(z),
      1 / z,
      ln_2 * ln_2 * (q / z - (s / z) * (s / z)),
      ln_2 * (std::log2(z) - sums.chosen),
  };
}

// All of it is NaN for a row with NaN or +inf; for one without a live logit, log z is -inf and the rest NaN.
inline Row row(const std::vector<double>& logits, double inverse_temperature, int chosen) {
  Row found = {NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER};
  std::vector<double> live;
  for (double x : logits) {
    if (std::isnan(x) || x == INFINITY) return found;
    if (x > MASKED) live.push_back(x);
  }
  const bool sampled = chosen >= 0 && chosen < int(logits.size());
  if (live.empty()) {
    found.log_z = -INFINITY;
    return found;
  }
  const double top = *std::max_element(live.begin(), live.end());
  double z = 0;
  for (double x : live) z += std::exp((x - top) * inverse_temperature);
  // Of a logit, relative to the top: huge logits would swallow ln z.
  auto ln_p = [&](double x) { return (x - top) * inverse_temperature - std::log(z); };
  auto weigh = [&](auto value) {
    double sum = 0;
    for (double x : live) {
      const double l = ln_p(x), p = std::exp(l);
      if (p > 0) sum += p * value(l);
    }
    return sum;
  };
  found.entropy = weigh([](double l) { return -l; });
  found.log_z = top * inverse_temperature + std::log(z);
  found.p_max = 1 / z;
  found.varentropy = weigh([&](double l) { return (l + found.entropy) * (l + found.entropy); });
  if (sampled) found.surprisal = logits[chosen] <= MASKED ? INFINITY : -ln_p(logits[chosen]);
  return found;
}

// What a row of top-k logprobs says, in nats; NaN where nothing can be said.
struct TopK {
  double renormalized = NOT_A_NUMBER, lower = NOT_A_NUMBER, upper = NOT_A_NUMBER, estimate = NOT_A_NUMBER;
  double tail_mass = NOT_A_NUMBER, varentropy = NOT_A_NUMBER, margin = NOT_A_NUMBER, confidence = NOT_A_NUMBER;
  unsigned rank = 0, flags = 0;
  // 1 - sum p over all known tokens, the most the tail can hold, and the error bar on both.
  double residual = NOT_A_NUMBER, cap = NOT_A_NUMBER, error = NOT_A_NUMBER;
};

inline double phi(double x) { return x > 0 ? -x * std::log(x) : 0; }

// Entropy of `mass` in as few tokens of at most `cap` as will hold it.
inline double concentrated(double mass, double cap) {
  if (mass <= 0) return 0;
  const double full = std::floor(mass / cap);
  return full * phi(cap) + phi(mass - full * cap);
}

// The share by which Phi(z) / phi(z) of the standard normal differs from -1/z far below zero: the asymptotic series.
inline double far_below(double z) {
  const double w = 1 / (z * z);
  return -w * (1 - 3 * w * (1 - 5 * w * (1 - 7 * w)));
}

// ln (Phi(z) / phi(z)).
inline double ln_mills(double z) {
  if (z > -25) return std::log(0.5 * std::erfc(-z / std::sqrt(2.0))) + 0.5 * z * z + 0.5 * std::log(2 * M_PI);
  return std::log1p(far_below(z)) - std::log(-z);
}

// Entropy of a tail of `mass` whose logits are a normal, cut where the likeliest k of `vocab` values begin, at `last`.
inline double log_normal(double mass, double last, double k, double vocab) {
  if (mass <= 0) return 0;
  auto bisect = [](double low, double high, auto is_low) {
    for (int i = 0; i < 200; i++) {
      const double middle = 0.5 * (low + high);
      (is_low(middle) ? low : high) = middle;
    }
    return 0.5 * (low + high);
  };
  const double t = bisect(-40, 40, [&](double t) { return 0.5 * std::erfc(t / std::sqrt(2.0)) > k / vocab; });
  auto ln_held = [&](double s) { return ln_mills(t - s) - ln_mills(t); };
  const double target = std::log(mass) - last - std::log(vocab - k);
  double high = 1;
  while (ln_held(high) > target && high < 1e18) high *= 2;
  const double s = bisect(0, high, [&](double s) { return ln_held(s) > target; }), z = t - s;
  // z + phi(z) / Phi(z), which cancel far below zero.
  const double above = z > -25 ? z + std::exp(-ln_mills(z)) : z * far_below(z) / (1 + far_below(z));
  return mass * (s * above - last);
}

enum Flag : unsigned {
  NAN_VALUE = 1,
  MASKED_VALUE = 2,
  NEGATIVE = 4,
  INCONSISTENT = 8,
  MISSING = 16,
  BF16 = 32,
  OUTSIDE = 64
};

// `vocab` 0 is unknown: then no larger than 2^32.
inline TopK top_k(const std::vector<float>& row, double chosen, unsigned vocab) {
  TopK found;
  std::vector<double> head;
  bool bf16 = true, nonzero = false;
  for (float l : row) {
    if (std::isnan(l) || l == INFINITY) {
      found.flags = NAN_VALUE;
      return found;
    }
    if (l <= MASKED) continue;
    head.push_back(l);
    unsigned bits;
    std::memcpy(&bits, &l, sizeof bits);
    bf16 = bf16 && bits % 65536 == 0;
    nonzero = nonzero || l != 0;
  }
  const bool masked = head.size() < row.size();
  if (masked) found.flags |= MASKED_VALUE;
  if (head.empty()) {
    found.flags |= MISSING;
    return found;
  }
  bf16 = bf16 && nonzero;
  if (bf16) found.flags |= BF16;
  std::sort(head.rbegin(), head.rend());
  const double first = head.front(), last = head.back(), k = double(head.size());

  // The row on its own.
  double scale = 0, total = 0, square = 0;
  for (double l : head) scale += std::exp(l - first), total += l;
  auto inside = [&](double l) { return l - first - std::log(scale); };
  found.renormalized = 0;
  for (double l : head) found.renormalized -= inside(l) * std::exp(inside(l));
  for (double l : head) square += std::exp(inside(l)) * std::pow(inside(l) + found.renormalized, 2);
  found.varentropy = square;
  found.confidence = -total / k;
  const bool known = chosen > MASKED && chosen < INFINITY, outside = known && chosen < last;
  if (outside) found.flags |= OUTSIDE;
  if (known && !outside)
    found.rank = 1 + unsigned(std::count_if(head.begin(), head.end(), [&](double l) { return l > chosen; }));

  // The row within its vocabulary.
  const double size = vocab ? vocab : 4294967296.0;
  const double slots = masked ? 0 : std::max(0.0, size - k);
  const bool whole = slots == 0;
  found.margin = head.size() > 1 ? std::exp(first) - std::exp(head[1]) : whole ? std::exp(first) : NOT_A_NUMBER;
  double truncated = 0, residual = -std::expm1(first), n = slots;
  for (double l : head) truncated -= l * std::exp(l);
  for (std::size_t i = 1; i < head.size(); i++) residual -= std::exp(head[i]);
  found.tail_mass = whole ? 0 : std::max(residual, 0.0);
  if (outside && !whole) {
    truncated += phi(std::exp(chosen));
    residual -= std::exp(chosen);
    n -= 1;
  }
  const double error = 1e-6 + (bf16 ? 1.1 / 256 * truncated : 0), cap = std::exp(last);
  found.residual = residual, found.cap = n * cap, found.error = error;
  const bool too_much = residual < -error;
  if (whole ? too_much : residual < 0) found.flags |= NEGATIVE;
  if (too_much || residual > n * cap + error || k > size || (outside && whole)) found.flags |= INCONSISTENT;
  if (too_much) return found;
  if (whole) {
    found.lower = found.upper = found.estimate = found.renormalized;
    return found;
  }
  auto fit = [&](double mass) { return std::min(std::max(0.0, mass), n * cap); };
  const double least = fit(residual - error), most = fit(residual + error);
  found.lower = truncated + std::min(concentrated(least, cap), concentrated(most, cap));
  // Of all masses in reach, the one whose uniform tail has the most entropy.
  const double peak = std::max(std::min(n / std::exp(1.0), most), least);
  const double upper = truncated + (peak > 0 ? peak * (std::log(n) - std::log(peak)) : 0);
  found.lower = std::min(found.lower, upper);
  if (vocab == 0) return found;
  found.upper = upper;
  const double estimate = truncated + log_normal(fit(residual), last, k, size);
  found.estimate = std::min(std::max(estimate, found.lower), found.upper);
  return found;
}

}  // namespace oracle
