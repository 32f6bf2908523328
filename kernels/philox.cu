// Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), the same bits as sparsegrad/backends/philox.py makes on the CPU.
//
//   uniform    multiples of 2^-53, 2^-24, 2^-11 or 2^-8 (double, float, fp16, bf16) in [0, 1)
//   normal     the inverse of the distribution function at 52 (double) or 32 random bits
//   integers   low + the upper half of 64 random bits times span (0 stands for 2^64)
//   dropout    x * scale where a word is at least `least`, else 0
//
// Mapping   A thread makes a block of four words: four numbers, or two of 64 bits. They lie side by
//           side and are written (x: read) V at a time, up to 16 bytes.
// Bytes     n s written; dropout n s read besides. Integer work: 10 rounds of two 32 x 32 -> 64
//           multiplications a block, about 100 instructions for 16 bytes.
// Numbers   Normal numbers are computed in double, whose operations are spelled out (__dmul_rn, ...)
//           so that none is fused, and with a logarithm of our own: every processor that follows
//           IEEE 754 gets the same bits. On cards with few double units that is slow, 1/64 of the
//           rate of float.
// Replaces  cuRAND, whose numbers the CPU does not have; a mask that is kept for the backward pass.

struct SgWords { unsigned int w[4]; };

__device__ __forceinline__ SgWords sg_philox(unsigned long long at, unsigned long long seed) {
  unsigned int c0 = (unsigned int)at, c1 = (unsigned int)(at >> 32), c2 = 0u, c3 = 0u;
  unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
  #pragma unroll
  for (int r = 0; r < 10; ++r) {
    const unsigned int high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned int high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  SgWords out = {{c0, c1, c2, c3}};
  return out;
}

// Words that a number takes, and how many numbers a block makes.
template <typename T> struct SgNumbers { static const int count = 4; };
template <> struct SgNumbers<double> { static const int count = 2; };
template <> struct SgNumbers<long long> { static const int count = 2; };

__device__ __forceinline__ unsigned long long sg_pair(const SgWords& words, int i) {
  return (unsigned long long)words.w[2 * i + 1] << 32 | words.w[2 * i];
}

// `count` numbers to out[first...], as far as there are n; one store of all where they fit.
template <typename T, int COUNT>
__device__ __forceinline__ void sg_put(T* out, long long first, long long n, const T (&v)[COUNT]) {
  if (first + COUNT <= n) {
    sg_store<T, COUNT>(out + first, v);
  } else {
    #pragma unroll  // an index that is not known would put v into memory
    for (int i = 0; i < COUNT; ++i) {
      if (first + i < n) out[first + i] = v[i];
    }
  }
}

// ---- uniform
template <typename T> struct SgFraction;
template <> struct SgFraction<double> {
  static __device__ __forceinline__ double of(const SgWords& words, int i) {
    return __dmul_rn((double)(sg_pair(words, i) >> 11), 1.1102230246251565e-16);
  }
};
template <> struct SgFraction<float> {
  static __device__ __forceinline__ float of(const SgWords& words, int i) {
    return (float)(words.w[i] >> 8) * 5.9604644775390625e-8f;
  }
};
template <> struct SgFraction<__half> {
  static __device__ __forceinline__ __half of(const SgWords& words, int i) {
    return __float2half_rn((float)(words.w[i] >> 21) * 4.8828125e-4f);
  }
};
template <> struct SgFraction<__nv_bfloat16> {
  static __device__ __forceinline__ __nv_bfloat16 of(const SgWords& words, int i) {
    return __float2bfloat16_rn((float)(words.w[i] >> 24) * 3.90625e-3f);
  }
};

template <typename T>
__global__ void __launch_bounds__(256, SG_HALF)
sg_random_uniform(unsigned long long seed, unsigned long long offset, long long n,
                  T* __restrict__ out) {
  const int count = SgNumbers<T>::count;
  for (long long b = sg_thread(); b * count < n; b += sg_threads()) {
    const SgWords words = sg_philox(offset + (unsigned long long)b, seed);
    T v[count];
    #pragma unroll
    for (int i = 0; i < count; ++i) v[i] = SgFraction<T>::of(words, i);
    sg_put(out, b * count, n, v);
  }
}

// ---- normal: coefficients and their sources stand in philox.py
template <int N>
__device__ __forceinline__ double sg_polynomial(double x, const double (&c)[N]) {
  double out = c[0];
  #pragma unroll
  for (int i = 1; i < N; ++i) out = __dadd_rn(__dmul_rn(out, x), c[i]);
  return out;
}

__device__ __forceinline__ double sg_log(double x) {
  const double c[7] = {1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
                       2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
                       6.666666666666735130e-01};
  const long long bits = __double_as_longlong(x);
  const double mantissa =
      __longlong_as_double((bits & 0xFFFFFFFFFFFFFll) | 0x3FE0000000000000ll);  // in [0.5, 1)
  const bool small = mantissa < 0.7071067811865476;
  const double f = __dadd_rn(small ? __dmul_rn(mantissa, 2.0) : mantissa, -1.0);
  const double k = (double)((int)(bits >> 52) - 1022 - (small ? 1 : 0));
  const double s = __ddiv_rn(f, __dadd_rn(f, 2.0)), z = __dmul_rn(s, s);
  const double half = __dmul_rn(__dmul_rn(f, f), 0.5);
  const double inner =
      __dadd_rn(__dmul_rn(s, __dadd_rn(half, __dmul_rn(z, sg_polynomial(z, c)))),
                __dmul_rn(k, 1.90821492927058770002e-10));
  return __dadd_rn(__dmul_rn(k, 6.93147180369123816490e-01),
                   -__dadd_rn(__dadd_rn(half, -inner), -f));
}

__device__ __forceinline__ double sg_inverse_normal(double u) {
  const double q = __dadd_rn(u, -0.5);
  if (fabs(q) <= 0.425) {
    const double a[8] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                         45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                         133.14166789178437745, 3.387132872796366608};
    const double b[8] = {5226.495278852545925, 28729.085735721942674, 39307.89580009271061,
                         21213.794301586595867, 5394.1960214247511077, 687.1870074920579083,
                         42.313330701600911252, 1.0};
    const double x = __dadd_rn(0.180625, -__dmul_rn(q, q));
    return __dmul_rn(q, __ddiv_rn(sg_polynomial(x, a), sg_polynomial(x, b)));
  }
  const double beyond = __dadd_rn(1.0, -u);
  const double r = __dsqrt_rn(-sg_log(u < beyond ? u : beyond));
  double out;
  if (r <= 5.0) {
    const double a[8] = {7.7454501427834140764e-4, 0.0227238449892691845833,
                         0.24178072517745061177, 1.27045825245236838258, 3.64784832476320460504,
                         5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734};
    const double b[8] = {1.05075007164441684324e-9, 5.475938084995344946e-4,
                         0.0151986665636164571966, 0.14810397642748007459, 0.68976733498510000455,
                         1.6763848301838038494, 2.05319162663775882187, 1.0};
    const double x = __dadd_rn(r, -1.6);
    out = __ddiv_rn(sg_polynomial(x, a), sg_polynomial(x, b));
  } else {
    const double a[8] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                         0.0012426609473880784386, 0.026532189526576123093, 0.29656057182850489123,
                         1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772};
    const double b[8] = {2.04426310338993978564e-15, 1.4215117583164458887e-7,
                         1.8463183175100546818e-5, 7.868691311456132591e-4, 0.0148753612908506148525,
                         0.13692988092273580531, 0.59983220655588793769, 1.0};
    const double x = __dadd_rn(r, -5.0);
    out = __ddiv_rn(sg_polynomial(x, a), sg_polynomial(x, b));
  }
  return q < 0.0 ? -out : out;
}

template <typename T> struct SgNormal {  // from the first word, or pair
  static __device__ __forceinline__ T of(const SgWords& words) {
    const double u = __dmul_rn(__dadd_rn((double)words.w[0], 0.5), 2.3283064365386963e-10);
    return SgNarrow<T>::from((float)sg_inverse_normal(u));
  }
};
template <> struct SgNormal<double> {
  static __device__ __forceinline__ double of(const SgWords& words) {
    const double bits = (double)(sg_pair(words, 0) >> 12);
    return sg_inverse_normal(__dmul_rn(__dadd_rn(bits, 0.5), 2.220446049250313e-16));
  }
};

template <typename T>
__global__ void __launch_bounds__(256, SG_HALF)
sg_random_normal(unsigned long long seed, unsigned long long offset, long long n,
                 T* __restrict__ out) {
  const int count = SgNumbers<T>::count;
  for (long long b = sg_thread(); b * count < n; b += sg_threads()) {
    SgWords words = sg_philox(offset + (unsigned long long)b, seed);
    #pragma unroll 1  // long code, once
    for (long long e = b * count; e < min(n, (b + 1) * count); ++e) {
      out[e] = SgNormal<T>::of(words);
      words.w[0] = words.w[count == 2 ? 2 : 1];  // the next number's words
      words.w[1] = words.w[count == 2 ? 3 : 2];
      words.w[2] = words.w[3];
    }
  }
}

// ---- integers
template <typename T>
__global__ void __launch_bounds__(256, SG_HALF)
sg_random_integers(unsigned long long seed, unsigned long long offset, long long n,
                   unsigned long long low, unsigned long long span, T* __restrict__ out) {
  for (long long b = sg_thread(); b * 2 < n; b += sg_threads()) {
    const SgWords words = sg_philox(offset + (unsigned long long)b, seed);
    T v[2];
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned long long drawn = sg_pair(words, i);
      v[i] = (T)((span ? __umul64hi(drawn, span) : drawn) + low);  // modulo 2^64
    }
    sg_put(out, b * 2, n, v);
  }
}

// ---- dropout
template <typename T, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_dropout(unsigned long long seed, unsigned long long offset, long long n,
           unsigned long long least, SG_ACC(T) scale, const T* __restrict__ x,
           T* __restrict__ out) {
  for (long long b = sg_thread(); b * 4 < n; b += sg_threads()) {
    const SgWords words = sg_philox(offset + (unsigned long long)b, seed);
    #pragma unroll
    for (int part = 0; part < 4; part += V) {
      const long long first = b * 4 + part;
      T v[V];
      if (first + V <= n) {
        sg_load<T, V>(v, x + first);
        #pragma unroll
        for (int i = 0; i < V; ++i) {
          const bool kept = words.w[part + i] >= least;
          v[i] = SgNarrow<T>::from(kept ? sg_widen(v[i]) * scale : SG_ACC(T)(0));
        }
        sg_store<T, V>(out + first, v);
      } else {
        #pragma unroll
        for (int i = 0; i < V; ++i) {
          if (first + i < n) {
            const bool kept = words.w[part + i] >= least;
            const SG_ACC(T) wide = sg_widen(x[first + i]) * scale;
            out[first + i] = SgNarrow<T>::from(kept ? wide : SG_ACC(T)(0));
          }
        }
      }
    }
  }
}
