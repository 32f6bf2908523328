// __nv_bfloat16 as the upper half of a float: g++ 12 has no arithmetic on its own __bf16.
#pragma once

struct __nv_bfloat16_raw { unsigned short x; };

struct alignas(2) __nv_bfloat16 {
  unsigned short u;
  __nv_bfloat16() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  __nv_bfloat16(T value) {
    float f = (float)value;
    unsigned b = cudasim::bits<unsigned>(f);
    // Round to nearest even; a NaN becomes CUDA's canonical one.
    u = f != f ? 0x7fff : (unsigned short)((b + 0x7fffu + ((b >> 16) & 1u)) >> 16);
  }
  __nv_bfloat16(const __nv_bfloat16_raw& r) : u(r.x) {}
  operator float() const { return cudasim::bits<float>((unsigned)u << 16); }
  operator __nv_bfloat16_raw() const { return {u}; }
};
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };

#define SIM_BF16_OP(OP)                                                        \
  static inline __nv_bfloat16 operator OP(__nv_bfloat16 a, __nv_bfloat16 b) {  \
    return __nv_bfloat16((float)a OP (float)b);                                \
  }                                                                            \
  static inline __nv_bfloat16& operator OP##=(__nv_bfloat16& a, __nv_bfloat16 b) { \
    return a = a OP b;                                                         \
  }
SIM_BF16_OP(+)
SIM_BF16_OP(-)
SIM_BF16_OP(*)
SIM_BF16_OP(/)
#undef SIM_BF16_OP

static inline float __bfloat162float(__nv_bfloat16 b) { return (float)b; }
static inline __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
static inline __nv_bfloat16 __double2bfloat16(double f) { return __nv_bfloat16((float)f); }
static inline bool __hisnan(__nv_bfloat16 a) { return (float)a != (float)a; }
static inline int __hisinf(__nv_bfloat16 a) { return __builtin_isinf_sign((float)a); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.u; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short u) {
  return __nv_bfloat16(__nv_bfloat16_raw{u});
}
static inline float __low2float(__nv_bfloat162 b) { return b.x; }
static inline float __high2float(__nv_bfloat162 b) { return b.y; }
static inline float2 __bfloat1622float2(__nv_bfloat162 b) { return make_float2(b.x, b.y); }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
