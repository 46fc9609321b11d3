// SPDX-License-Identifier: Apache-2.0
// Counting what fails, and keeping the worst error of each kind.
#pragma once
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>

class Check {
 public:
  // Names the numbers that follow.
  void begin(const std::string& what) { what_ = what; }

  void that(bool holds, const std::string& what) {
    checks_++;
    if (!holds) report(what);
  }

  // Equal where infinite or not a number; else `got` within `tolerance` of `want`.
  void near(const char* number, double got, double want, double tolerance, const std::string& where = "") {
    checks_++;
    const bool same = got == want || (std::isnan(got) && std::isnan(want));
    const double error = same ? 0 : std::fabs(got - want);
    auto& [worst, allowed] = worst_[what_ + " " + number];
    if (error > 0 && error / tolerance > worst / allowed) worst = error, allowed = tolerance;
    if (!(error <= tolerance)) {
      char text[160];
      std::snprintf(text, sizeof text, "%s is %.9g, not %.9g (%.1e allowed) %s", number, got, want, tolerance,
                    where.c_str());
      report(text);
    }
  }

  // Prints the worst errors; 0 if all held.
  int end() const {
    for (const auto& [name, worst] : worst_) {
      if (worst.error > 0) std::printf("%-52s worst %.1e of %.1e\n", name.c_str(), worst.error, worst.allowed);
    }
    std::printf("%zu checks, %zu failed\n", checks_, failed_);
    return failed_ ? 1 : 0;
  }

 private:
  void report(const std::string& what) {
    if (failed_++ < 20) std::printf("FAILED %s: %s\n", what_.c_str(), what.c_str());
  }

  std::string what_;
  struct Worst {
    double error = 0, allowed = 1;
  };
  std::map<std::string, Worst> worst_;
  std::size_t checks_ = 0, failed_ = 0;
};

// Numbers from a seed, the same on every machine.
class Numbers {
 public:
  explicit Numbers(unsigned seed) : bits_(seed) {}
  double unit() { return double(bits_() >> 11) * 0x1p-53; }
  unsigned below(unsigned end) { return unsigned(unit() * end); }
  double gauss() { return std::sqrt(-2 * std::log(1 - unit())) * std::cos(2 * M_PI * unit()); }

 private:
  std::mt19937_64 bits_;
};
