// Rows of top-k logprobs. Included behind the kernels.
#pragma once
#include "check.h"
#include "oracle.h"

namespace top_k {

#ifdef SHIM_THREADS
constexpr int CASES = 60;
#else
constexpr int CASES = 4000;
#endif
constexpr unsigned VOCAB = 151936;

// Rows in one buffer, with values between them that would show if they were read, in memory that ends with the last
// row.
class Batch {
 public:
  // `exact`: the truth where the whole distribution is known, else NaN.
  void add(const std::vector<float>& row, float chosen, unsigned vocab, double exact = NAN) {
    values_.insert(values_.end(), gaps_.below(3), NAN);
    ins_.push_back({unsigned(values_.size()), unsigned(row.size()), chosen, vocab});
    values_.insert(values_.end(), row.begin(), row.end());
    rows_.push_back(row);
    exact_.push_back(exact);
  }

  void turn_round() {
    std::reverse(ins_.begin(), ins_.end());
    std::reverse(rows_.begin(), rows_.end());
    std::reverse(exact_.begin(), exact_.end());
  }

  std::vector<TopKOut> run(unsigned blocks, unsigned threads, shim::Order order) const {
    auto values = std::unique_ptr<float, decltype(&std::free)>((float*)std::malloc(values_.size() * 4 + 1), std::free);
    std::copy(values_.begin(), values_.end(), values.get());
    std::vector<TopKOut> out(ins_.size());
    shim::launch({blocks, 1}, threads, order,
                 [&] { entropy_top_k(values.get(), ins_.data(), int(ins_.size()), out.data()); });
    return out;
  }

  // Runs it in grids of two shapes and compares every number with the oracle's.
  std::vector<TopKOut> check(Check& check, const std::string& what) {
    check.begin("top-k, " + what);
    const unsigned rows = unsigned(ins_.size());
    const auto out = run((rows + 3) / 4, TOP_K_THREADS, shim::Order::Forward);
    const auto again = run(2, 32, shim::Order::Backward);
    check.that(std::memcmp(out.data(), again.data(), rows * sizeof(TopKOut)) == 0, "any grid gives the same bits");
    for (unsigned i = 0; i < rows; i++) compare(check, out[i], i);
    return out;
  }

 private:
  void compare(Check& check, const TopKOut& got, unsigned i) const {
    const oracle::TopK want = oracle::top_k(rows_[i], ins_[i].chosen, ins_[i].vocab);
    const std::string where = "(row " + std::to_string(i) + ", k " + std::to_string(rows_[i].size()) + ", V " +
                              std::to_string(ins_[i].vocab) + ", chosen " + std::to_string(ins_[i].chosen) + ")";
    auto near = [&](const char* number, double got, double want, double tolerance) {
      check.near(number, got, want, tolerance * std::fmax(1, std::fabs(want)), where);
    };
    // On the edge of a condition, the order of additions decides.
    auto edge = [](double x) { return std::fabs(x) < 1e-13; };
    const bool unclear =
        edge(want.residual) || edge(want.residual + want.error) || edge(want.residual - want.cap - want.error);
    check.that(unclear || got.flags == want.flags,
               "flags " + std::to_string(got.flags) + " are not " + std::to_string(want.flags) + where);
    check.that(got.rank == want.rank,
               "rank " + std::to_string(got.rank) + " is not " + std::to_string(want.rank) + where);
    near("renormalized", got.renormalized, want.renormalized, 1e-6);
    near("varentropy", got.varentropy, want.varentropy, 1e-6);
    near("margin", got.margin, want.margin, 1e-6);
    near("confidence", got.confidence, want.confidence, 1e-6);
    near("tail mass", got.tail_mass, want.tail_mass, 1e-7);
    if (edge(want.residual + want.error)) return;
    check.near("lower", got.lower, want.lower, 1e-5, where);
    check.near("upper", got.upper, want.upper, 1e-5, where);
    check.near("estimate", got.estimate, want.estimate, 1e-5, where);
    check.that(std::isnan(got.upper) || (got.lower <= got.estimate && got.estimate <= got.upper), "in order " + where);
    if (std::isnan(exact_[i])) return;
    // As far as float32 logprobs can tell.
    check.that(got.lower <= exact_[i] + 2e-4 && got.renormalized <= exact_[i] + 2e-4,
               "the truth is not below " + where);
    check.that(!(got.upper < exact_[i] - 2e-4), "the truth is not above " + where);
  }

  Numbers gaps_{99};
  std::vector<float> values_;
  std::vector<TopKIn> ins_;
  std::vector<std::vector<float>> rows_;
  std::vector<double> exact_;
};

enum Family { GAUSSIAN, ZIPF, ONE_HOT, UNIFORM, TWO_LEVEL, FAMILIES };

struct Distribution {
  std::vector<double> logprobs;  // falling
  double entropy = 0;
  std::vector<float> head(std::size_t k) const {
    return {logprobs.begin(), logprobs.begin() + std::min(k, logprobs.size())};
  }
};

// `shape`: 0 to 1, what each family makes of it.
inline Distribution distribution(Family family, int size, double temperature, double shape, Numbers& numbers) {
  std::vector<double> x;
  for (int i = 0; i < size; i++) {
    const double logit = family == GAUSSIAN  ? (0.1 + 8 * shape) * numbers.gauss()
                         : family == ZIPF    ? -(0.5 + 2.5 * shape) * std::log(i + 1.0)
                         : family == ONE_HOT ? (i == 0 ? 1 + 60 * shape : numbers.unit())
                         : family == UNIFORM ? 0
                                             : (i < 1 + 40 * shape ? 3 : 0);
    x.push_back(logit / temperature);
  }
  std::sort(x.rbegin(), x.rend());
  const double top = x[0];
  double z = 0;
  for (double l : x) z += std::exp(l - top);
  Distribution found;
  for (double l : x) found.logprobs.push_back(l - top - std::log(z));
  for (double l : found.logprobs) found.entropy += oracle::phi(std::exp(l));
  return found;
}

inline void families(Check& check) {
  Numbers numbers(11);
  Batch batch;
  for (int i = 0; i < CASES; i++) {
    const Family family = Family(numbers.below(FAMILIES));
    const int size = 1 + int(numbers.below(i % 4 ? 400 : 3000));
    const Distribution full = distribution(family, size, std::exp(-3 + 7.6 * numbers.unit()), numbers.unit(), numbers);
    const unsigned masked = numbers.below(4) ? 0 : numbers.below(150);
    const std::size_t k = 1 + numbers.below(200);
    std::vector<float> row = full.head(k);
    row.resize(std::min<std::size_t>(k, size + masked), numbers.below(2) ? -INFINITY : -3.4e38f);
    // Now a likely token, now any, now none.
    double left = numbers.unit();
    int likely = 0;
    while (likely < size - 1 && (left -= std::exp(full.logprobs[likely])) > 0) likely++;
    const int sampled = i % 2 ? likely : int(numbers.below(size));
    const float chosen = numbers.below(10) ? float(full.logprobs[sampled]) : NAN;
    if (numbers.below(5) == 0) {
      for (std::size_t j = row.size(); j > 1; j--) std::swap(row[j - 1], row[numbers.below(unsigned(j))]);
    }
    const unsigned vocab = numbers.below(6) ? unsigned(size) + masked : 0;
    batch.add(row, chosen, vocab, full.entropy);
  }
  batch.check(check, "families");
  batch.turn_round();
  batch.check(check, "rows in another order");
}

inline void rounded_to_bf16(Check& check) {
  Numbers numbers(12);
  Batch batch;
  for (int i = 0; i < CASES / 10; i++) {
    const Distribution full = distribution(GAUSSIAN, 30 + int(numbers.below(1000)), 1, numbers.unit(), numbers);
    std::vector<float> row = full.head(20);
    for (float& l : row) l = as_float(unsigned(rows::to_bf16(l)) << 16);
    batch.add(row, row[numbers.below(20)], unsigned(full.logprobs.size()));
  }
  for (const TopKOut& out : batch.check(check, "bf16"))
    check.that(out.flags & BF16_VALUES, "bf16 is known by its bits");
}

inline void wide(Check& check) {
  Numbers numbers(13);
  Batch batch;
#ifdef SHIM_THREADS
  const int size = 5000;
#else
  const int size = VOCAB;
#endif
  for (Family family : {GAUSSIAN, ZIPF, UNIFORM, ONE_HOT}) {
    const Distribution full = distribution(family, size, 1, 0.2, numbers);
    for (int k : {1, 4, 5, 31, 32, 33, 1023, 1024, 1025, 4000, size - 1, size}) {
      batch.add(full.head(k), float(full.logprobs[k / 2]), unsigned(size), full.entropy);
    }
  }
  batch.check(check, "wide");
}

inline void odd(Check& check) {
  const float inf = INFINITY, quarter = std::log(0.25f);
  Batch batch;
  auto row = [&](std::initializer_list<float> values, float chosen, unsigned vocab) {
    batch.add(values, chosen, vocab);
  };
  row({}, -0.25f, 100);
  row({-3.4e38f, -inf}, -0.25f, 100);
  row({NAN}, -0.1f, 100);
  row({-0.1f, NAN}, -0.1f, 100);
  row({-inf, inf}, -0.1f, 100);
  row({inf, -1}, -0.1f, 0);
  row({quarter, quarter}, quarter, 4);  // uniform over 4: ln 4 for certain, and ln 2 on its own
  row({quarter, quarter, quarter, quarter}, quarter, 4);
  row({quarter, quarter, quarter, quarter}, -3, 4);       // a sampled token that cannot be
  row({quarter, quarter, quarter, quarter}, quarter, 3);  // more values than tokens
  row({-0.5f, -0.6f, -0.7f}, -0.5f, 100);                 // sums above one
  row({-9, -9}, -9, 4);                                   // two more cannot hold the rest
  row({1e-7f, -20}, 1e-7f, 100);                          // above one by rounding
  row({0, -3.4e38f}, 0, 10);                              // zeros alone are no evidence of bf16
  row({0, -17.25f}, 0, 10);
  row({0}, 0, 10);
  row({0}, 0, 1);
  row({-0.5f}, -2, 0);
  row({-0.6875f}, -0.6875f, 2);  // bf16, and one more token: beyond 1/e more of it would be less
  row({-0.5f}, -0.5f, VOCAB);
  // A tail that ends within a few of the 3072 other tokens: the spread has almost no limit.
  batch.add(std::vector<float>(1024, std::log(1 / 1026.5f)), NAN, 4096);
  row({-0.4f, -2, -2.5f, -3.25f, -4.1f, -6}, -2.5f, VOCAB);
  row({-4.1f, -6, -2.5f, -3.25f, -0.4f, -2}, -2.5f, VOCAB);
  row({-0.4f, -2, -2.5f, -3.25f, -4.1f, -6}, -inf, VOCAB);
  row({-0.4f, -2, -2.5f, -3.25f, -4.1f, -6}, inf, VOCAB);
  row({-0.4f, -2, -2.5f, -3.25f, -4.1f, -6}, -6.5f, 7);
  row({-2, -2, -2, -2, -2, -2}, -2, 0);
  row({-50, -51, -52, -53, -54}, -52, VOCAB);  // far from any distribution
  row({-690, -720, -800}, -720, 1000);
  row({-0.01f, -5, -6, -7, -8, -9}, -3e29f, VOCAB);
  const auto out = batch.check(check, "odd rows");
  check.that(out[0].flags == MISSING && std::isnan(out[0].renormalized) && out[0].rank == 0, "an empty row is missing");
  check.that(out[1].flags == (MISSING | MASKED_VALUE), "and so is one of masked values alone");
  check.near("top-2 of uniform 4", out[6].renormalized, std::log(2), 1e-6);
  check.near("its interval", out[6].lower, std::log(4), 1e-4);
  check.near("its interval", out[6].upper, std::log(4), 1e-4);
  check.that(out[7].lower == out[7].renormalized && out[7].upper == out[7].renormalized, "a whole row is exact");
  check.that(out[8].flags & INCONSISTENT && out[9].flags & INCONSISTENT && out[11].flags & INCONSISTENT,
             "what cannot be is said");
  check.that(out[10].flags == (INCONSISTENT | NEGATIVE_RESIDUAL) && std::isnan(out[10].lower),
             "only the row on its own is left");
}

// Each of the far terms is near the last bit of a head's sum.
inline void far_tails(Check& check) {
  Numbers numbers(14);
  Batch batch;
  for (double log_temperature : {-1.729, -1.598, -1.781}) {
    for (double shape : {0.13, 0.15}) {
      const Distribution full = distribution(TWO_LEVEL, 458, std::exp(log_temperature), shape, numbers);
      for (int k : {20, 64, 126, 400}) batch.add(full.head(k), float(full.logprobs[0]), 458, full.entropy);
    }
  }
  // One token has nearly all: what is left must not be taken from 1, nor added to it.
  const float first = -1e-15f;
  std::vector<float> certain = {first};
  double rest = 0, surprise = 0;
  for (int i = 0; i < 19; i++) {
    const double l = double(certain.emplace_back(-36 - float(i) * 0.3f));
    rest += std::exp(l);
    surprise -= l * std::exp(l);
  }
  batch.add(certain, first, VOCAB);
  const auto out = batch.check(check, "far tails");
  const double tail = -std::expm1(double(first)) - rest, alone = std::log1p(rest) + surprise / (1 + rest);
  check.near("a certain row's tail", out.back().tail_mass, tail, 1e-6 * tail);
  check.near("a certain row's entropy", out.back().renormalized, alone, 1e-6 * alone);
}

// Any bits at all: nothing outside the row is read, and a number is there or flagged to be missing.
inline void any_bits(Check& check) {
  check.begin("top-k, any bits");
  Numbers numbers(15);
  const float odd[] = {0,       -0.0f, -INFINITY, INFINITY, NAN, -3.4e38f, 3.4e38f, -1e30f,
                       -1e-45f, 1e-7f, 1,         88,       -40, -87.5f,   -104,    -750};
  Batch batch;
  std::vector<bool> nan;
  for (int i = 0; i < CASES / 4; i++) {
    std::vector<float> row(numbers.below(40));
    bool has_nan = false;
    for (float& l : row) {
      const unsigned kind = numbers.below(12);
      l = kind < 9    ? float(-20 * numbers.unit())
          : kind < 10 ? as_float(unsigned(numbers.unit() * 0x1p32))
                      : odd[numbers.below(std::size(odd))];
      has_nan = has_nan || std::isnan(l) || l == INFINITY;
    }
    batch.add(row, odd[numbers.below(std::size(odd))], numbers.below(2) ? unsigned(numbers.unit() * 0x1p32) : 0);
    nan.push_back(has_nan);
  }
  const auto out = batch.run(7, TOP_K_THREADS, shim::Order::Forward);
  for (std::size_t i = 0; i < out.size(); i++) {
    check.that(bool(out[i].flags & NAN_VALUE) == nan[i], "NaN is flagged, and nothing else is");
    check.that(!(out[i].flags & (NAN_VALUE | MISSING)) == !std::isnan(out[i].renormalized), "measured or flagged");
  }
}

inline void all(Check& check) {
  odd(check);
  families(check);
  rounded_to_bf16(check);
  wide(check);
  far_tails(check);
  any_bits(check);
}

}  // namespace top_k
