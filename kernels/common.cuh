// Shared by all kernels. The loader puts this text before that of each .cu file, so there is no
// #include of it: CuPy's kernel cache does not look into included files and would serve stale code.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define SG_ALL_LANES 0xffffffffu

// Blocks of 256 threads that fill half of a multiprocessor: given to __launch_bounds__, it keeps
// registers low enough for 50 % occupancy, and no lower.
#if __CUDA_ARCH__ == 750
#define SG_HALF 2
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200
#define SG_HALF 3
#else
#define SG_HALF 4
#endif

// What sums of T are kept in: half-width types in float, bools (whether any is true) as counts, all
// others in themselves.
template <typename T> struct SgAcc { typedef T type; };
template <> struct SgAcc<bool> { typedef long long type; };
template <> struct SgAcc<__half> { typedef float type; };
template <> struct SgAcc<__nv_bfloat16> { typedef float type; };
#define SG_ACC(T) typename SgAcc<T>::type

template <typename T> __device__ __forceinline__ T sg_widen(T v) { return v; }
__device__ __forceinline__ float sg_widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float sg_widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> struct SgNarrow {
  static __device__ __forceinline__ T from(T v) { return v; }
};
template <> struct SgNarrow<__half> {
  static __device__ __forceinline__ __half from(float v) { return __float2half_rn(v); }
};
template <> struct SgNarrow<__nv_bfloat16> {
  static __device__ __forceinline__ __nv_bfloat16 from(float v) { return __float2bfloat16_rn(v); }
};

// V elements in one load or store. The address must be a multiple of its size; the words are named
// because a load of a struct of halves may otherwise be split into single halves.
template <int BYTES> struct SgWord;
template <> struct SgWord<2> { typedef unsigned short type; };
template <> struct SgWord<4> { typedef unsigned int type; };
template <> struct SgWord<8> { typedef uint2 type; };
template <> struct SgWord<16> { typedef uint4 type; };

template <typename T, int V>
__device__ __forceinline__ void sg_load(T (&to)[V], const T* from) {
  typedef typename SgWord<sizeof(T) * V>::type Word;
  const Word word = __ldg(reinterpret_cast<const Word*>(from));
  memcpy(&to[0], &word, sizeof(Word));
}

template <typename T, int V>
__device__ __forceinline__ void sg_store(T* to, const T (&from)[V]) {
  typedef typename SgWord<sizeof(T) * V>::type Word;
  Word word;
  memcpy(&word, &from[0], sizeof(Word));
  *reinterpret_cast<Word*>(to) = word;
}

// Counts and offsets are 64 bits wide everywhere: rows * width passes 2^31 long before memory ends.
__device__ __forceinline__ long long sg_thread() {
  return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ long long sg_threads() { return (long long)gridDim.x * blockDim.x; }
