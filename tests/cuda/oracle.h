// SPDX-License-Identifier: Apache-2.0
// The truth about a row of logits, naively: float64, textbook formulas.
#pragma once
#include <algorithm>
#include <cmath>
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

}  // namespace oracle
