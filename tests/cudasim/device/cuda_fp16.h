// __half on the compiler's _Float16 (g++ 12 or later). Arithmetic rounds after every operation,
// as HADD and HMUL do.
#pragma once

struct __half_raw { unsigned short x; };

struct alignas(2) __half {
  _Float16 v;
  __half() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  __half(T f) : v((_Float16)(std::conditional_t<std::is_same<T, double>::value, double, float>)f) {}
  __half(const __half_raw& r) { __builtin_memcpy(&v, &r.x, 2); }
  operator float() const { return (float)v; }
  operator __half_raw() const {
    __half_raw r;
    __builtin_memcpy(&r.x, &v, 2);
    return r;
  }
  __half& operator+=(__half o) { v = v + o.v; return *this; }
  __half& operator-=(__half o) { v = v - o.v; return *this; }
  __half& operator*=(__half o) { v = v * o.v; return *this; }
  __half& operator/=(__half o) { v = v / o.v; return *this; }
};
typedef __half half;
struct alignas(4) __half2 { __half x, y; };
typedef __half2 half2;

#define SIM_HALF_OP(OP)                                   \
  static inline __half operator OP(__half a, __half b) {  \
    __half r;                                             \
    r.v = a.v OP b.v;                                     \
    return r;                                             \
  }
SIM_HALF_OP(+)
SIM_HALF_OP(-)
SIM_HALF_OP(*)
SIM_HALF_OP(/)
#undef SIM_HALF_OP

static inline float __half2float(__half h) { return (float)h.v; }
static inline __half __float2half(float f) { return __half(f); }
static inline __half __float2half_rn(float f) { return __half(f); }
static inline __half __double2half(double f) { return __half(f); }
static inline __half __hadd(__half a, __half b) { return a + b; }
static inline __half __hmul(__half a, __half b) { return a * b; }
static inline __half __hfma(__half a, __half b, __half c) {
  return __half(__builtin_fmaf((float)a, (float)b, (float)c));
}
static inline bool __hisnan(__half a) { return a.v != a.v; }
static inline int __hisinf(__half a) { return __builtin_isinf_sign((float)a); }
static inline unsigned short __half_as_ushort(__half h) {
  unsigned short u;
  __builtin_memcpy(&u, &h, 2);
  return u;
}
static inline __half __ushort_as_half(unsigned short u) {
  __half h;
  __builtin_memcpy(&h, &u, 2);
  return h;
}
static inline float __low2float(__half2 h) { return h.x; }
static inline float __high2float(__half2 h) { return h.y; }
static inline float2 __half22float2(__half2 h) { return make_float2(h.x, h.y); }
static inline __half2 __floats2half2_rn(float a, float b) { return {__half(a), __half(b)}; }
static inline __half2 __float22half2_rn(float2 f) { return {__half(f.x), __half(f.y)}; }
