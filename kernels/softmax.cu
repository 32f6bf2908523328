// Softmax within segments, and its gradient (segments.cuh: how).
//
//   softmax        softmax or log_softmax within each segment, in one pass
//   softmax_grad   out * (g - sum(g * out)), or g - exp(out) * sum(g), likewise
//   ..._apply      the same in the long ones
//
// Mapping   The first 8 entries of a lane stay in registers (of the gradient 4, fp64 2): segments of
//           no more are read once. Of longer ones, maximum and sum are found together, online.
// Long      Each piece of a segment adds up the states of all its pieces, unless they have been
//           joined before (`whole`), as those of very many are.
// Bytes     twice n width s, and a third time what does not fit in registers; the gradient three
//           times n width s.
// Replaces  search, gather, exp, two scatters with atomics, divide: about eight passes of n width.

// The softmax of a value, or its logarithm, where the state is that of the whole segment.
template <typename A>
__device__ __forceinline__ A sg_softmax_of(A v, const SgState<A, 2>& state, bool logarithm) {
  return logarithm ? v - state.shift() - log(state.sum) : exp(v - state.shift()) / state.sum;
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax(const T* __restrict__ values, const I* __restrict__ offsets, long long segments,
                   long long n, int width, int columns, int lanes, int tile, int logarithm,
                   T* __restrict__ out, long long apart, SG_ACC(T)* __restrict__ partial_or_null,
                   I* __restrict__ owner_or_null) {
  typedef SG_ACC(T) A;
  const int HELD = sizeof(A) == 4 ? 8 : 2;
  const int lane = threadIdx.x & 31, step = lanes / columns;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    const T* from = values + work.at;
    SgState<A, 2> state;
    A held[HELD];
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      held[r] = e < work.count ? A(sg_widen(__ldg(from + (long long)e * width))) : state.missing();
    }
    state.add(held);
    const int rest = work.stride + HELD * step;
    sg_add_run<T, SgState<A, 2>, A>(state, from, nullptr, rest, work.count, step, width);
    sg_merge_lanes(state, columns, lanes);

    T* to = out + work.at;
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      if (e < work.count)
        to[(long long)e * width] = SgNarrow<T>::from(sg_softmax_of(held[r], state, logarithm));
    }
    for (int e = rest; e < work.count; e += step)
      to[(long long)e * width] = SgNarrow<T>::from(
          sg_softmax_of(A(sg_widen(__ldg(from + (long long)e * width))), state, logarithm));
  }
  sg_parts<SgState<A, 2>, A>(values, (const T*)nullptr, offsets, segments, n, width, columns, tile,
                             (const T*)nullptr, apart, partial_or_null, owner_or_null);
}

// The gradient, where `total` is the sum over the segment of g * y, or of g.
template <typename A>
__device__ __forceinline__ A sg_softmax_grad_of(A g, A y, A total, bool logarithm) {
  return logarithm ? g - exp(y) * total : y * (g - total);
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_grad(const T* __restrict__ g, const T* __restrict__ y,
                        const I* __restrict__ offsets, long long segments, long long n, int width,
                        int columns, int lanes, int tile, int logarithm, T* __restrict__ out,
                        long long apart, SG_ACC(T)* __restrict__ partial_or_null,
                        I* __restrict__ owner_or_null) {
  typedef SG_ACC(T) A;
  const int HELD = sizeof(A) == 4 ? 4 : 2;
  const int lane = threadIdx.x & 31, step = lanes / columns;
  const long long total = segments * ((width + columns - 1) / columns);
  for (long long base = (sg_thread() - lane) / lanes; base < total; base += sg_threads() / lanes) {
    const SgSegmentWork work = sg_segment_work(offsets, base + lane / lanes, segments, width,
                                               columns, lanes, tile);
    SgState<A, 0> state;
    A held_g[HELD], held_y[HELD];
    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      const long long at = work.at + (long long)e * width;
      held_g[r] = e < work.count ? A(sg_widen(__ldg(g + at))) : A(0);
      held_y[r] = e < work.count ? A(sg_widen(__ldg(y + at))) : A(0);
    }
    #pragma unroll
    for (int r = 0; r < HELD; ++r) state.number += logarithm ? held_g[r] : held_g[r] * held_y[r];
    const int rest = work.stride + HELD * step;
    sg_add_run<T, SgState<A, 0>, A>(state, g + work.at, logarithm ? nullptr : y + work.at, rest,
                                    work.count, step, width);
    sg_merge_lanes(state, columns, lanes);

    #pragma unroll
    for (int r = 0; r < HELD; ++r) {
      const int e = work.stride + r * step;
      if (e < work.count)
        out[work.at + (long long)e * width] =
            SgNarrow<T>::from(sg_softmax_grad_of(held_g[r], held_y[r], state.number, logarithm));
    }
    for (int e = rest; e < work.count; e += step) {
      const long long at = work.at + (long long)e * width;
      out[at] = SgNarrow<T>::from(sg_softmax_grad_of(A(sg_widen(__ldg(g + at))),
                                                     A(sg_widen(__ldg(y + at))), state.number,
                                                     logarithm));
    }
  }
  sg_parts<SgState<A, 0>, A>(g, logarithm ? nullptr : y, offsets, segments, n, width, columns,
                             tile, (const T*)nullptr, apart, partial_or_null, owner_or_null);
}

// Calls f(i, state) for each number i of the long segments, by the state of its segment in its
// column: that is in `whole` at the tile where the segment begins, or else is added up from those of
// its pieces. A warp for each piece.
template <typename State, typename A, typename I, typename F>
__device__ __forceinline__ void sg_each_long(const A* __restrict__ partial,
                                             const A* __restrict__ whole_or_null,
                                             const I* __restrict__ owner,
                                             const I* __restrict__ offsets, long long n, int width,
                                             int columns, int tile, long long apart, F f) {
  const int lane = threadIdx.x & 31, step = 32 / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long piece = sg_thread() >> 5; piece < 2 * tiles; piece += sg_threads() >> 5) {
    const long long segment = owner[piece], first = (piece >> 1) * tile;
    if (segment < 0) continue;  // the whole warp
    const long long begin = offsets[segment];
    const long long end = min(first + tile, (long long)offsets[segment + 1]);
    for (int block = 0; block < width; block += columns) {
      const int column = block + (lane & (columns - 1));
      State state;
      if (!whole_or_null)
        state = sg_joined<State>(partial, offsets, segment, tile, width, columns, column, apart);
      else if (column < width)
        state.take(whole_or_null + begin / tile * width + column, apart);
      if (column >= width) continue;  // no collectives below
      for (long long e = max(begin, first) + lane / columns; e < end; e += step)
        f(e * width + column, state);
    }
  }
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_apply(const T* __restrict__ values, const SG_ACC(T)* __restrict__ partial,
                         const SG_ACC(T)* __restrict__ whole_or_null, const I* __restrict__ owner,
                         const I* __restrict__ offsets, long long n, int width, int columns,
                         int tile, long long apart, int logarithm, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  typedef SgState<A, 2> State;
  sg_each_long<State>(
      partial, whole_or_null, owner, offsets, n, width, columns, tile, apart,
      [=](long long i, const State& state) {
        out[i] = SgNarrow<T>::from(sg_softmax_of(A(sg_widen(__ldg(values + i))), state, logarithm));
      });
}

template <typename T, typename I>
__global__ void __launch_bounds__(256, SG_HALF)
sg_segment_softmax_grad_apply(const T* __restrict__ g, const T* __restrict__ y,
                              const SG_ACC(T)* __restrict__ partial,
                              const SG_ACC(T)* __restrict__ whole_or_null,
                              const I* __restrict__ owner, const I* __restrict__ offsets,
                              long long n, int width, int columns, int tile, long long apart,
                              int logarithm, T* __restrict__ out) {
  typedef SG_ACC(T) A;
  typedef SgState<A, 0> State;
  sg_each_long<State>(
      partial, whole_or_null, owner, offsets, n, width, columns, tile, apart,
      [=](long long i, const State& state) {
        out[i] = SgNarrow<T>::from(sg_softmax_grad_of(
            A(sg_widen(__ldg(g + i))), A(sg_widen(__ldg(y + i))), state.number, logarithm));
      });
}
