// CUDA's device language for g++: put before an unchanged .cu text with -include.
// __global__ and __shared__ stay as they are here; source.py rewrites them after preprocessing.
#pragma once
#include <cassert>
#include <cfloat>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#define CUDASIM 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDA_ARCH__ 900
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __constant__
#define __managed__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __noinline__ __attribute__((noinline))

// ---- vector types, with CUDA's alignments
#define SIM_VECTORS(T, NAME, ALIGN2, ALIGN4)                                               \
  struct NAME##1 { T x; };                                                                 \
  struct alignas(ALIGN2) NAME##2 { T x, y; };                                              \
  struct NAME##3 { T x, y, z; };                                                           \
  struct alignas(ALIGN4) NAME##4 { T x, y, z, w; };                                        \
  static inline NAME##1 make_##NAME##1(T x) { return {x}; }                                \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                        \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(unsigned char, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(unsigned short, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(unsigned, uint, 8, 16)
SIM_VECTORS(long long, longlong, 16, 16)
SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)
#undef SIM_VECTORS

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- the simulator (native/)
extern "C" {
extern uint3 sim_threadIdx, sim_blockIdx;
extern dim3 sim_blockDim, sim_gridDim;
int sim_barrier(int op, int predicate, const char* file, int line);
uint64_t sim_collective(int op, unsigned mask, uint64_t value, int arg, int width,
                        const char* file, int line);
unsigned sim_activemask();
void sim_atomic(const volatile void* p, int bytes, void* caller);
void* sim_dynamic_shared();
void* sim_shared(void* key, size_t bytes, size_t align, const char* name);
void sim_fail(const char* message);
long long sim_clock();
}
#define threadIdx sim_threadIdx
#define blockIdx sim_blockIdx
#define blockDim sim_blockDim
#define gridDim sim_gridDim
static constexpr int warpSize = 32;

struct __half;
struct __nv_bfloat16;

namespace cudasim {

// The order is that of native/sim.h.
enum Op {
  SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_XOR, BALLOT, ALL, ANY, SYNCWARP, MATCH_ANY,
  RED_ADD, RED_MIN, RED_MAX, RED_AND, RED_OR, RED_XOR
};
enum BarrierOp { BAR_SYNC, BAR_COUNT, BAR_AND, BAR_OR };

template <class T>
constexpr int kind_of() {
  return std::is_same<T, __half>::value            ? 'h'
         : std::is_same<T, __nv_bfloat16>::value   ? 'b'
         : std::is_floating_point<T>::value        ? 'f'
         : !std::is_integral<T>::value             ? 's'
         : std::is_signed<T>::value                ? 'i' : 'u';
}
template <class T> struct Size { static constexpr int value = sizeof(T); };
template <> struct Size<void> { static constexpr int value = 0; };

// What strict launches compare the arguments with, five numbers a parameter:
// kind (p, f, i, u, h, b, or s for a struct), bytes, and for a pointer kind, bytes, constness behind it.
template <class P>
void describe_one(int* out) {
  using Pointee = std::remove_cv_t<std::remove_pointer_t<P>>;
  constexpr bool pointer = std::is_pointer<P>::value;
  out[0] = pointer ? 'p' : kind_of<P>();
  out[1] = sizeof(P);
  out[2] = pointer ? kind_of<Pointee>() : 0;
  out[3] = pointer ? Size<Pointee>::value : 0;
  out[4] = pointer && std::is_const<std::remove_pointer_t<P>>::value;
}
template <class... P>
int describe(void (*)(P...), int* out) {
  int n = 0;
  (describe_one<P>(out + 5 * n++), ...);
  return n;
}

#define SIM_UNCHECKED __attribute__((no_sanitize("thread"), noinline))
template <class... P, size_t... I>
SIM_UNCHECKED void call(void (*kernel)(P...), void** args, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<P>*)args[I]...);
}
template <class... P>
SIM_UNCHECKED void invoke(void (*kernel)(P...), void** args) {
  call(kernel, args, std::index_sequence_for<P...>{});
}

template <class T>
uint64_t to_bits(T v) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "type of a collective");
  uint64_t bits = 0;
  std::memcpy(&bits, &v, sizeof(T));
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T v;
  std::memcpy(&v, &bits, sizeof(T));
  return v;
}

}  // namespace cudasim

// ---- barriers and warp collectives; the defaults record where the kernel called
#define SIM_AT const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define SIM_BARRIER(NAME, OP)                                     \
  static inline int NAME(int predicate, SIM_AT) {                 \
    return sim_barrier(cudasim::OP, predicate, file_, line_);     \
  }
static inline void __syncthreads(SIM_AT) { sim_barrier(cudasim::BAR_SYNC, 0, file_, line_); }
SIM_BARRIER(__syncthreads_count, BAR_COUNT)
SIM_BARRIER(__syncthreads_and, BAR_AND)
SIM_BARRIER(__syncthreads_or, BAR_OR)
static inline void __syncwarp(unsigned mask = 0xffffffffu, SIM_AT) {
  sim_collective(cudasim::SYNCWARP, mask, 0, 0, 32, file_, line_);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline unsigned __activemask() { return sim_activemask(); }

#define SIM_SHUFFLE(NAME, OP, ARG)                                                              \
  template <class T>                                                                            \
  static inline T NAME(unsigned mask, T v, ARG arg, int width = 32, SIM_AT) {                   \
    return cudasim::from_bits<T>(sim_collective(cudasim::OP, mask, cudasim::to_bits(v), (int)arg, \
                                                width, file_, line_));                          \
  }
SIM_SHUFFLE(__shfl_sync, SHFL_IDX, int)
SIM_SHUFFLE(__shfl_up_sync, SHFL_UP, unsigned)
SIM_SHUFFLE(__shfl_down_sync, SHFL_DOWN, unsigned)
SIM_SHUFFLE(__shfl_xor_sync, SHFL_XOR, int)

#define SIM_VOTE(NAME, OP, RESULT)                                                            \
  static inline RESULT NAME(unsigned mask, int predicate, SIM_AT) {                           \
    return (RESULT)sim_collective(cudasim::OP, mask, predicate != 0, 0, 32, file_, line_);    \
  }
SIM_VOTE(__ballot_sync, BALLOT, unsigned)
SIM_VOTE(__all_sync, ALL, int)
SIM_VOTE(__any_sync, ANY, int)
template <class T>
static inline unsigned __match_any_sync(unsigned mask, T v, SIM_AT) {
  return (unsigned)sim_collective(cudasim::MATCH_ANY, mask, cudasim::to_bits(v), 0, 32, file_,
                                  line_);
}
#define SIM_REDUCE(NAME, OP)                                                              \
  static inline unsigned NAME(unsigned mask, unsigned v, SIM_AT) {                        \
    return (unsigned)sim_collective(cudasim::OP, mask, v, 0, 32, file_, line_);           \
  }
SIM_REDUCE(__reduce_add_sync, RED_ADD)
SIM_REDUCE(__reduce_min_sync, RED_MIN)
SIM_REDUCE(__reduce_max_sync, RED_MAX)
SIM_REDUCE(__reduce_and_sync, RED_AND)
SIM_REDUCE(__reduce_or_sync, RED_OR)
SIM_REDUCE(__reduce_xor_sync, RED_XOR)
static inline int __reduce_add_sync(unsigned mask, int v, SIM_AT) {
  return (int)sim_collective(cudasim::RED_ADD, mask, (uint64_t)(int64_t)v, 0, 32, file_, line_);
}

// ---- atomics: one thread of the operating system, so read-modify-write needs no lock
namespace cudasim {
template <class T, class F>
SIM_UNCHECKED T atomic_update(T* p, F f) {
  sim_atomic(p, sizeof(T), __builtin_return_address(0));
  T old = *(volatile T*)p;
  *(volatile T*)p = f(old);
  return old;
}
}  // namespace cudasim
#define SIM_ATOMIC(NAME, EXPRESSION)                                                        \
  template <class T>                                                                        \
  static inline T NAME(T* p, std::common_type_t<T> v) {                                     \
    return cudasim::atomic_update(p, [=](T o) { (void)o; return (T)(EXPRESSION); });        \
  }                                                                                         \
  template <class T>                                                                        \
  static inline T NAME##_block(T* p, std::common_type_t<T> v) { return NAME(p, v); }        \
  template <class T>                                                                        \
  static inline T NAME##_system(T* p, std::common_type_t<T> v) { return NAME(p, v); }
SIM_ATOMIC(atomicAdd, o + v)
SIM_ATOMIC(atomicSub, o - v)
SIM_ATOMIC(atomicExch, v)
SIM_ATOMIC(atomicAnd, o & v)
SIM_ATOMIC(atomicOr, o | v)
SIM_ATOMIC(atomicXor, o ^ v)
SIM_ATOMIC(atomicMax, o < v ? v : o)
SIM_ATOMIC(atomicMin, v < o ? v : o)
SIM_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
SIM_ATOMIC(atomicDec, (o == 0 || o > v) ? v : o - 1)
template <class T>
static inline T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> v) {
  return cudasim::atomic_update(p, [=](T o) { return o == expected ? (T)v : o; });
}

// ---- loads and stores with a cache hint
#define SIM_LOAD(NAME) \
  template <class T>   \
  static inline T NAME(const T* p) { return *p; }
SIM_LOAD(__ldg)
SIM_LOAD(__ldca)
SIM_LOAD(__ldcg)
SIM_LOAD(__ldcs)
#define SIM_STORE(NAME) \
  template <class T>    \
  static inline void NAME(T* p, T v) { *p = v; }
SIM_STORE(__stcg)
SIM_STORE(__stcs)
SIM_STORE(__stwb)

#include "cudasim_math.h"
