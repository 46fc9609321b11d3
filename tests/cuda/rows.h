// SPDX-License-Identifier: Apache-2.0
// Whole rows of logits. Included behind the kernels.
#pragma once
#include "check.h"
#include "oracle.h"

namespace rows {

using shim::Order;

#ifdef SHIM_THREADS
// A thread of the system for each of the device: what the sanitizers need, at a size they can bear.
constexpr unsigned THREADS = 64;
constexpr int WIDE = 4095, WIDEST = 9001;
const std::vector<int> WIDTHS = {1, 9, 1023}, PLACES = {0, 400, 776};
const std::vector<double> SIGMAS = {4};
#else
constexpr unsigned THREADS = ROW_THREADS;
constexpr int WIDE = 50257, WIDEST = 151936;
const std::vector<int> WIDTHS = {1, 2, 7, 8, 9, 100, 1023, 4095}, PLACES = {0, 1, 9, 400, 775, 776};
const std::vector<double> SIGMAS = {0, 1, 4};
#endif

inline unsigned short to_bf16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const unsigned bits = as_bits(x);
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline unsigned short to_f16(float x) {
  if (std::isnan(x)) return 0x7e00;
  const unsigned sign = as_bits(x) >> 16 & 0x8000u;
  const float size = std::fabs(x);
  if (size >= 65520.0f) return (unsigned short)(sign | 0x7c00u);
  if (size < 0x1p-14f) return (unsigned short)(sign | unsigned(std::nearbyint(size * 0x1p24f)));
  const unsigned bits = as_bits(size);
  return (unsigned short)(sign | (((bits + 0xfffu + (bits >> 13 & 1)) >> 13) - (112u << 10)));
}

struct AsBf16 {
  typedef unsigned short Value;
  static constexpr const char* NAME = "bf16";
  static constexpr auto rows = entropy_rows_bf16;
  static constexpr auto split = entropy_split_bf16;
  static Value encode(float x) { return to_bf16(x); }
  static double decode(Value v) { return as_float(unsigned(v) << 16); }
};
struct AsF16 {
  typedef unsigned short Value;
  static constexpr const char* NAME = "f16";
  static constexpr auto rows = entropy_rows_f16;
  static constexpr auto split = entropy_split_f16;
  static Value encode(float x) { return to_f16(x); }
  static double decode(Value v) { return shim::half(v); }
};
struct AsF32 {
  typedef float Value;
  static constexpr const char* NAME = "f32";
  static constexpr auto rows = entropy_rows_f32;
  static constexpr auto split = entropy_split_f32;
  static Value encode(float x) { return x; }
  static double decode(Value v) { return v; }
};

// Rows of one launch, each a given number of values behind a 16-byte boundary, and in memory that ends where the row
// does, so that the address sanitizer sees a value too many.
template <class As> class Batch {
 public:
  void add(const std::vector<float>& logits, float temperature, int chosen, unsigned behind) {
    const std::size_t size = sizeof(typename As::Value);
    auto memory = std::unique_ptr<char, decltype(&std::free)>(
        (char*)std::malloc(behind * size + logits.size() * size + 1), std::free);
    if ((std::uintptr_t)memory.get() % 16) shim::fail("malloc gave what is not a multiple of 16");
    auto* values = (typename As::Value*)(memory.get() + behind * size);
    std::vector<double> exact;
    for (std::size_t i = 0; i < logits.size(); i++) {
      values[i] = As::encode(logits[i]);
      exact.push_back(As::decode(values[i]));
    }
    ins.push_back({(unsigned long long)values, 1 / temperature, int(logits.size()), chosen, 0});
    truths.push_back(oracle::row(exact, double(1 / temperature), chosen));
    memory_.push_back(std::move(memory));
  }

  std::vector<RowOut> by_rows(unsigned blocks, Order order) const {
    std::vector<RowOut> out(ins.size());
    shim::launch({blocks, 1}, THREADS, order, [&] { As::rows(ins.data(), int(ins.size()), out.data()); });
    return out;
  }

  std::vector<RowOut> by_splits(Check& check, unsigned splits, Order order) const {
    std::vector<RowOut> out(ins.size());
    std::vector<Sums> parts(ins.size() * splits);
    std::vector<unsigned> tickets(ins.size(), 0);
    shim::launch({splits, unsigned(ins.size())}, THREADS, order,
                 [&] { As::split(ins.data(), out.data(), parts.data(), tickets.data()); });
    for (unsigned ticket : tickets) check.that(ticket == 0, "a ticket is 0 again");
    return out;
  }

  void compare(Check& check, const std::vector<RowOut>& outs) const {
    for (std::size_t i = 0; i < outs.size(); i++) {
      const oracle::Row got = oracle::finish(outs[i], ins[i].inverse_temperature), want = truths[i];
      const std::string where = "(row " + std::to_string(i) + ", width " + std::to_string(ins[i].vocab) + ", 1/T " +
                                std::to_string(ins[i].inverse_temperature) + ")";
      auto relative = [](double tolerance, double value) { return tolerance * std::fmax(1, std::fabs(value)); };
      check.near("entropy", got.entropy, want.entropy, 5e-6, where);
      check.that(!(got.entropy < 0), "an entropy is never negative " + where);
      check.near("log z", got.log_z, want.log_z, relative(1e-6, want.log_z), where);
      check.near("p max", got.p_max, want.p_max, 3e-6, where);
      check.near("varentropy", got.varentropy, want.varentropy, relative(1e-5, want.varentropy), where);
      check.near("surprisal", got.surprisal, want.surprisal, relative(1e-6, want.surprisal), where);
    }
  }

  std::vector<RowIn> ins;
  std::vector<oracle::Row> truths;

 private:
  std::vector<std::unique_ptr<char, decltype(&std::free)>> memory_;
};

inline bool same_bits(const std::vector<RowOut>& a, const std::vector<RowOut>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(RowOut)) == 0;
}

// One batch through both kernels, in grids of several shapes: all near the truth, and the same bits whatever the order.
template <class As>
void both(Check& check, const std::string& what, const Batch<As>& batch, std::vector<unsigned> splits) {
  check.begin(std::string(As::NAME) + " rows, " + what);
  const auto together = batch.by_rows(unsigned(batch.ins.size()), Order::Forward);
  batch.compare(check, together);
  check.that(same_bits(together, batch.by_rows(2, Order::Forward)), "any grid gives the same bits");
  check.that(same_bits(together, batch.by_rows(3, Order::Backward)), "any order gives the same bits");
  check.begin(std::string(As::NAME) + " split, " + what);
  for (unsigned blocks : splits) {
    const auto apart = batch.by_splits(check, blocks, Order::Forward);
    batch.compare(check, apart);
    check.that(same_bits(apart, batch.by_splits(check, blocks, Order::Backward)), "the last block merges in one order");
  }
}

inline std::vector<float> logits(Numbers& numbers, int width, double sigma, double mean) {
  std::vector<float> row(width);
  for (float& x : row) x = float(mean + sigma * numbers.gauss());
  return row;
}

template <class As> void widths_and_temperatures(Check& check) {
  Numbers numbers(1);
  Batch<As> batch;
  unsigned behind = 0;
  for (int width : WIDTHS) {
    for (double sigma : SIGMAS) {
      for (float temperature : {0.05f, 0.6f, 1.0f, 5.0f}) {
        std::vector<float> row = logits(numbers, width, sigma, -20 + 40 * numbers.unit());
        if (width > 8 && sigma > 1) {
          for (int i = 3; i < width; i += 17) row[i] = i % 2 ? -INFINITY : -3.4e38f;
        }
        const int chosen = int(numbers.below(width + 2)) - 1;
        batch.add(row, temperature, chosen, behind++ % 8);
      }
    }
  }
  both(check, "widths and temperatures", batch, {3});
}

template <class As> void wide(Check& check) {
  Numbers numbers(2);
  Batch<As> batch;
  batch.add(logits(numbers, WIDE, 3, 5), 1, WIDE - 1, 1);
  batch.add(logits(numbers, WIDEST, 4, 0), 0.6f, 0, 0);
  batch.add(logits(numbers, WIDEST, 1, 10), 5, 77, 3);
  batch.add(std::vector<float>(WIDEST, 2.5f), 1, 5, 0);
  std::vector<float> rising(WIDE);  // each group raises the top
  for (int i = 0; i < WIDE; i++) rising[i] = float(30.0 * i / WIDE);
  batch.add(rising, 1, 9, 2);
  both(check, "wide", batch, {1, 40});
}

// A masked logit, NaN and +inf at the start, in the middle and at the end of rows, at every alignment.
template <class As> void odd_values(Check& check) {
  Numbers numbers(3);
  Batch<As> batch;
  const int width = 777;
  unsigned behind = 0;
  for (float odd : {NAN, INFINITY, -INFINITY, -3.4e38f, 60000.0f}) {
    for (int at : PLACES) {
      std::vector<float> row = logits(numbers, width, 2, 0);
      row[at] = odd;
      batch.add(row, 0.7f, at, behind++ % 8);
    }
  }
  for (float masked : {-INFINITY, -3.4e38f}) {
    for (int width : {1, 8, 100, 777}) {
      std::vector<float> row(width, masked);
      batch.add(row, 1, 0, behind++ % 8);
      row[width / 2] = -12;
      batch.add(row, 1, width / 2, behind++ % 8);
      row[0] = NAN;
      batch.add(row, 1, width / 2, behind++ % 8);
    }
  }
  both(check, "odd values", batch, {5});
  const auto outs = batch.by_rows(4, Order::Forward);
  for (std::size_t i = 0; i < outs.size(); i++) {
    const oracle::Row& truth = batch.truths[i];
    check.that((outs[i].z == 0) == (truth.log_z == -INFINITY), "z is 0 without a live logit, and only there");
    check.that((outs[i].top == -INFINITY) == (truth.log_z == -INFINITY),
               "top is -inf without a live logit, and only there");
    check.that(std::isnan(outs[i].z) == std::isnan(truth.log_z), "z is NaN for NaN and +inf, and for nothing else");
  }
}

// The edge between masked and live, which only f32 can hold.
inline void edge_of_masked(Check& check) {
  check.begin("f32 rows, edge of masked");
  Batch<AsF32> batch;
  const float least = std::nextafter(-1e30f, 0.0f);
  batch.add({-1e30f, -1e30f, -1e30f}, 1, 1, 0);
  batch.add({-1e30f, least, -1e30f}, 1, 1, 1);
  batch.add({least, least, -1e30f, -INFINITY}, 0.05f, 2, 2);
  batch.add({least, 3e38f, -1e29f, 3e38f}, 0.05f, 1, 3);
  batch.add({1, 2, 3}, 1e6f, 2, 3);
  batch.add({1, 2, -1e30f}, 1e6f, 2, 3);
  batch.add({1, 2, 3}, 1e-6f, 2, 3);
  const auto outs = batch.by_rows(1, Order::Forward);
  batch.compare(check, outs);
  check.that(outs[0].z == 0 && outs[0].top == -INFINITY, "-1e30 is masked");
  check.that(outs[1].z == 1 && outs[1].top == least && outs[1].chosen == 0, "the next float is not");
  check.that(outs[2].z == 2 && outs[2].chosen == -INFINITY, "a masked sampled token is infinitely unlikely");
}

template <class As> void known(Check& check) {
  check.begin(std::string(As::NAME) + " known");
  Batch<As> batch;
  batch.add({0, 0, 0, 0}, 1, -1, 0);
  batch.add({100, -100, -100, -100}, 1, 4, 0);
  batch.add({100, -100, -100, -100}, 1, 1, 0);
  batch.add({-INFINITY, 3, -INFINITY, 3}, 1, 0, 1);
  batch.add({}, 1, 0, 0);
  const auto outs = batch.by_rows(5, Order::Forward);
  auto entropy = [&](int i) { return oracle::finish(outs[i], 1).entropy; };
  check.near("uniform over 4", entropy(0), std::log(4), 1e-7);
  check.that(entropy(1) >= 0 && entropy(1) < 1e-12, "one-hot is about 0 and not below");
  check.that(outs[1].z == 1, "the likeliest of one-hot has all of it");
  check.near("two of four", entropy(3), std::log(2), 1e-7);
  check.that(std::isnan(outs[0].chosen) && std::isnan(outs[1].chosen), "an id outside the row is unknown");
  check.near("one-hot's other", oracle::finish(outs[2], 1).surprisal, 200, 1e-4);
  check.that(outs[3].chosen == -INFINITY, "a masked token is infinitely unlikely");
  check.that(outs[4].z == 0 && outs[4].top == -INFINITY && std::isnan(outs[4].chosen), "an empty row has nothing");
  Numbers numbers(5);
  Batch<As> three;
  for (int i = 0; i < 3; i++) three.add(logits(numbers, 100, 2, 0), 1, -1, 0);
  const auto threes = three.by_rows(3, Order::Forward);
  for (const RowOut& out : threes) {
    const double entropy = oracle::finish(out, 1).entropy;
    check.that(entropy >= 0 && entropy <= std::log(100.0) + 1e-6, "[3, 100]: between 0 and ln V");
  }
}

inline void read(Check& check) {
  check.begin("read");
  constexpr unsigned threads = std::min(THREADS, unsigned(READ_THREADS));
  for (std::size_t count : {0, 1, 31, 1000, 8191}) {
    auto memory = std::unique_ptr<uint4, decltype(&std::free)>((uint4*)std::malloc(count * 16 + 1), std::free);
    const unsigned blocks = 3;
    std::vector<unsigned> want(blocks, 0);
    for (std::size_t i = 0; i < count; i++) {
      const unsigned x = unsigned(i);
      memory.get()[i] = {x, 3 * x, 5, x * x};
      want[i / threads % blocks] += x + 3 * x + 5 + x * x;
    }
    std::vector<unsigned> got(blocks, 1);
    shim::launch({blocks, 1}, threads, Order::Forward, [&] { read_sum(memory.get(), count, got.data()); });
    for (unsigned block = 0; block < blocks; block++)
      check.that(got[block] == want[block], "each word is added once");
  }
}

template <class As> void each(Check& check) {
  known<As>(check);
  odd_values<As>(check);
  widths_and_temperatures<As>(check);
  wide<As>(check);
}

inline void all(Check& check) {
  each<AsBf16>(check);
  each<AsF16>(check);
  each<AsF32>(check);
  edge_of_masked(check);
}

}  // namespace rows
