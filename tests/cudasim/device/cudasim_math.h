// Bit tricks and mathematics of the device language. The fast intrinsics are as exact as libm.
#pragma once
#include <cmath>

namespace cudasim {
template <class D, class S>
D bits(S s) {
  static_assert(sizeof(D) == sizeof(S), "same size");
  D d;
  std::memcpy(&d, &s, sizeof d);
  return d;
}
}  // namespace cudasim

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= ((v >> i) & 1u) << (31 - i);
  return r;
}
static inline int __mul24(int a, int b) { return a * b; }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((uint64_t)a * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}

static inline float __int_as_float(int v) { return cudasim::bits<float>(v); }
static inline int __float_as_int(float v) { return cudasim::bits<int>(v); }
static inline float __uint_as_float(unsigned v) { return cudasim::bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return cudasim::bits<unsigned>(v); }
static inline double __longlong_as_double(long long v) { return cudasim::bits<double>(v); }
static inline long long __double_as_longlong(double v) { return cudasim::bits<long long>(v); }
static inline int __double2hiint(double d) { return (int)(cudasim::bits<uint64_t>(d) >> 32); }
static inline int __double2loint(double d) { return (int)cudasim::bits<uint64_t>(d); }
static inline double __hiloint2double(int h, int l) {
  return cudasim::bits<double>(((uint64_t)(uint32_t)h << 32) | (uint32_t)l);
}

#define __expf(x) expf(x)  // macros, since glibc declares these names itself
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return 1.f / sqrtf(a); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline double sinpi(double x) { return sin(M_PI * fmod(x, 2.)); }
static inline double cospi(double x) { return cos(M_PI * fmod(x, 2.)); }
// By Newton's method, from a first guess that is right to three digits (Winitzki, 2008).
static inline double erfinv(double y) {
  if (!(y > -1. && y < 1.)) return y == 1. || y == -1. ? y * HUGE_VAL : NAN;
  const double far = log(1. - y * y), half = 2. / (M_PI * .147) + far / 2.;
  double x = copysign(sqrt(sqrt(half * half - far / .147) - half), y);
  for (int i = 0; i < 4; ++i) {
    const double off = y > 0. ? (1. - y) - erfc(x) : erfc(-x) - (1. + y);
    x -= off / (M_2_SQRTPI * exp(-x * x));
  }
  return x;
}
static inline float erfinv(float y) { return (float)erfinv((double)y); }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline float rsqrt(float x) { return 1.f / sqrtf(x); }
static inline double rsqrt(double x) { return 1. / sqrt(x); }
static inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline long long clock64() { return sim_clock(); }
static inline void __nanosleep(unsigned) {}

#define SIM_ARITHMETIC                                                             \
  template <class A, class B, class = std::enable_if_t<std::is_arithmetic<A>::value && \
                                                       std::is_arithmetic<B>::value>>
SIM_ARITHMETIC static inline constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return (C)b < (C)a ? (C)b : (C)a;
}
SIM_ARITHMETIC static inline constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return (C)a < (C)b ? (C)b : (C)a;
}

// CUDA has the C++ overloads in the global namespace.
using std::abs; using std::fabs; using std::isfinite; using std::isinf; using std::isnan;
using std::signbit; using std::copysign; using std::fma; using std::fmax; using std::fmin;
using std::fmod; using std::remainder; using std::modf; using std::frexp; using std::ldexp;
using std::nextafter; using std::floor; using std::ceil; using std::rint; using std::nearbyint;
using std::round; using std::trunc; using std::sqrt; using std::cbrt; using std::hypot;
using std::pow; using std::exp; using std::exp2; using std::expm1; using std::log; using std::log2;
using std::log10; using std::log1p; using std::sin; using std::cos; using std::tan; using std::asin;
using std::acos; using std::atan; using std::atan2; using std::sinh; using std::cosh;
using std::tanh; using std::asinh; using std::acosh; using std::atanh; using std::erf;
using std::erfc; using std::lgamma; using std::tgamma;
