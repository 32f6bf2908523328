// What kernels of segments share, put before each of them: runs of consecutive entries, run i is
// offsets[i] to offsets[i + 1]; values (n, width), row-major. `width` is that of trailing dimensions
// or heads.
//
// Mapping   A group of `lanes` lanes takes a segment and a block of columns: `columns` lanes (up
//           to 32, a power of two) lie side by side, so that memory is read in one line; the others
//           are strides along the segment, four entries each in flight, joined by shuffles at the
//           end.
// Long      Segments of more than `tile` entries are left out there. The same launch, `sg_parts`,
//           cuts all entries into tiles of that length, whatever the segments: a warp a tile. A tile
//           holds a piece of at most two of them, the one that came from the left and the one that
//           goes on to the right. A second launch adds up the pieces of each in order (`sg_joined`).
//           No list of long segments is made, so nothing waits for its length; where it is known
//           that there are none, `partial` is null and there is no second launch.
// Numbers   fp16 and bf16 are computed in fp32. No atomics: the same bits from run to run.

template <typename A> struct SgLowest {
  static __device__ __forceinline__ A value();
};
template <> __device__ __forceinline__ float SgLowest<float>::value() {
  return __int_as_float((int)0xff800000u);
}
template <> __device__ __forceinline__ double SgLowest<double>::value() {
  return __longlong_as_double((long long)0xfff0000000000000ull);
}
template <> __device__ __forceinline__ unsigned char SgLowest<unsigned char>::value() { return 0; }
template <> __device__ __forceinline__ int SgLowest<int>::value() { return -2147483647 - 1; }
template <> __device__ __forceinline__ long long SgLowest<long long>::value() {
  return -9223372036854775807ll - 1;
}
template <typename A> struct SgHighest {
  static __device__ __forceinline__ A value() { return -SgLowest<A>::value(); }
};
template <> __device__ __forceinline__ unsigned char SgHighest<unsigned char>::value() { return 255; }
template <> __device__ __forceinline__ int SgHighest<int>::value() { return 2147483647; }
template <> __device__ __forceinline__ long long SgHighest<long long>::value() {
  return 9223372036854775807ll;
}

// How numbers of a segment become one: what changes nothing, and what two of them make.
template <typename A, int OP> struct SgMeet;
template <typename A> struct SgMeet<A, 0> {  // sum
  static __device__ __forceinline__ A none() { return A(0); }
  static __device__ __forceinline__ A of(A a, A b) { return a + b; }
};
template <typename A> struct SgMeet<A, 1> {  // largest
  static __device__ __forceinline__ A none() { return SgLowest<A>::value(); }
  static __device__ __forceinline__ A of(A a, A b) { return b > a || b != b ? b : a; }
};
template <typename A> struct SgMeet<A, 4> {  // product
  static __device__ __forceinline__ A none() { return A(1); }
  static __device__ __forceinline__ A of(A a, A b) { return a * b; }
};
template <typename A> struct SgMeet<A, 5> {  // least
  static __device__ __forceinline__ A none() { return SgHighest<A>::value(); }
  static __device__ __forceinline__ A of(A a, A b) { return b < a || b != b ? b : a; }
};

// What is known of a part of a segment. `missing` changes nothing when it is added. FLIGHT values
// are added at once: an exponential of 8 bytes takes the registers of many.
template <typename A, int OP> struct SgState {
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 2;
  A number;
  __device__ __forceinline__ SgState() : number(missing()) {}
  static __device__ __forceinline__ A missing() { return SgMeet<A, OP>::none(); }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) number = SgMeet<A, OP>::of(number, v[i]);
  }
  __device__ __forceinline__ void merge(const SgState& other) {
    number = SgMeet<A, OP>::of(number, other.number);
  }
  __device__ __forceinline__ A result(bool) const { return number; }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.number = __shfl_xor_sync(SG_ALL_LANES, number, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long) const { *to = number; }
  __device__ __forceinline__ void take(const A* from, long long) { number = *from; }
};

template <typename A> struct SgState<A, 3> : SgState<A, 0> {  // how many are equal to `wanted`
  A wanted;
  static __device__ __forceinline__ A missing() { return A(0) / A(0); }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) this->number += v[i] == wanted ? A(1) : A(0);
  }
};
template <typename State, typename T>
__device__ __forceinline__ void sg_want(State&, const T*, long long) {}
template <typename A, typename T>
__device__ __forceinline__ void sg_want(SgState<A, 3>& state, const T* wanted, long long at) {
  state.wanted = A(sg_widen(wanted[at]));
}

// log of the sum of exponentials: sum = sum(exp(v - shift())). Of a segment that has -inf only, inf
// or nan, the shift is 0, and what follows is as in plain arithmetic.
template <typename A> struct SgState<A, 2> {
  static const int FLIGHT = sizeof(A) == 4 ? 4 : 1;
  A top, sum;
  __device__ __forceinline__ SgState() : top(missing()), sum(A(0)) {}
  static __device__ __forceinline__ A missing() { return SgLowest<A>::value(); }
  static __device__ __forceinline__ A finite(A v) { return v - v == A(0) ? v : A(0); }
  __device__ __forceinline__ A shift() const { return finite(top); }
  __device__ __forceinline__ void raise(A to) {
    if (to == top) return;
    if (top != missing()) sum *= exp(shift() - finite(to));
    top = to;
  }
  template <int N> __device__ __forceinline__ void add(const A (&v)[N]) {
    A high = top;
    #pragma unroll
    for (int i = 0; i < N; ++i) high = v[i] > high ? v[i] : high;
    raise(high);
    #pragma unroll
    for (int i = 0; i < N; ++i) sum += exp(v[i] - shift());
  }
  __device__ __forceinline__ void merge(SgState other) {
    const A high = other.top > top ? other.top : top;
    raise(high);
    other.raise(high);
    sum += other.sum;
  }
  __device__ __forceinline__ A result(bool empty) const {
    return empty ? A(0) : log(sum) + shift();
  }
  __device__ __forceinline__ SgState across(int lanes) const {
    SgState other;
    other.top = __shfl_xor_sync(SG_ALL_LANES, top, lanes);
    other.sum = __shfl_xor_sync(SG_ALL_LANES, sum, lanes);
    return other;
  }
  __device__ __forceinline__ void keep(A* to, long long apart) const {
    to[0] = top;
    to[apart] = sum;
  }
  __device__ __forceinline__ void take(const A* from, long long apart) {
    top = from[0];
    sum = from[apart];
  }
};

// The state of all lanes `columns` apart, in each of them.
template <typename State>
__device__ __forceinline__ void sg_merge_lanes(State& state, int columns, int lanes) {
  for (int o = columns; o < lanes; o <<= 1) state.merge(state.across(o));
}

// Adds entries first, first + step, ... of `count`; `from` is the column of the first of them, `by`
// a second factor.
template <typename T, typename State, typename A>
__device__ __forceinline__ void sg_add_run(State& state, const T* __restrict__ from,
                                           const T* __restrict__ by_or_null, int first, int count,
                                           int step, int width) {
  const int FLIGHT = State::FLIGHT;  // loads in flight
  for (int e = first; e < count; e += FLIGHT * step) {
    A v[FLIGHT];
    #pragma unroll
    for (int u = 0; u < FLIGHT; ++u) {
      const long long at = (long long)min(e + u * step, count - 1) * width;
      v[u] = A(sg_widen(__ldg(from + at)));
      if (by_or_null) v[u] *= A(sg_widen(__ldg(by_or_null + at)));
      if (e + u * step >= count) v[u] = State::missing();
    }
    state.add(v);
  }
}

// What a group of lanes works on: `count` entries of `segment`, in column `column`; `at` is the
// place of the first of them.
struct SgSegmentWork {
  long long segment, at;
  int count, column, stride;
  bool live;  // not past the end, nor a segment that is left to the tiles
};

template <typename I>
__device__ __forceinline__ SgSegmentWork sg_segment_work(const I* __restrict__ offsets,
                                                         long long item, long long segments,
                                                         int width, int columns, int lanes,
                                                         int tile) {
  const int blocks = (width + columns - 1) / columns, sub = threadIdx.x & (lanes - 1);
  SgSegmentWork work;
  work.segment = blocks == 1 ? item : item / blocks;
  work.column = (int)(item - work.segment * blocks) * columns + (sub & (columns - 1));
  work.stride = sub / columns;
  work.live = work.segment < segments && work.column < width;
  work.at = work.count = 0;
  if (work.live) {
    const long long begin = offsets[work.segment], count = offsets[work.segment + 1] - begin;
    work.at = begin * width + work.column;
    work.live = count <= tile;
    work.count = work.live ? (int)count : 0;
  }
  return work;
}

// The segment that `entry` lies in, found by 32 probes at a time: the whole warp.
template <typename I>
__device__ __forceinline__ long long sg_segment_at(const I* __restrict__ offsets,
                                                   long long segments, long long entry) {
  long long low = 0, count = segments;
  while (count > 1) {
    const long long apart = (count + 31) / 32, probe = (threadIdx.x & 31) * apart;
    const bool begun = probe < count && offsets[low + probe] <= entry;
    const long long skip = (__popc(__ballot_sync(SG_ALL_LANES, begun)) - 1) * apart;
    low += skip;
    count = min(apart, count - skip);
  }
  return low;
}

// The pieces of long segments in a tile: `begin` to `end` of `segment`, which is -1 if there is
// none. Slot 0 is that of a segment that came from the left, slot 1 of one that begins here.
struct SgPiece {
  long long segment, begin, end;
};

template <typename I>
__device__ __forceinline__ SgPiece sg_piece(const I* __restrict__ offsets, long long segment,
                                            long long first, long long after, int tile, int slot) {
  SgPiece piece = {-1, 0, 0};
  const long long begin = offsets[segment], end = offsets[segment + 1];
  if (end - begin > tile && (begin < first) == (slot == 0)) {
    piece.segment = segment;
    piece.begin = max(begin, first);
    piece.end = min(end, after);
  }
  return piece;
}

// A warp a tile. partial: for each tile, slot and column the state, two numbers `apart` from each
// other; owner: for each tile and slot the segment, or -1. Null: no segment is long.
template <typename State, typename A, typename T, typename I>
__device__ __forceinline__ void sg_parts(const T* __restrict__ values,
                                         const T* __restrict__ by_or_null,
                                         const I* __restrict__ offsets, long long segments,
                                         long long n, int width, int columns, int tile,
                                         const T* __restrict__ wanted_or_null, long long apart,
                                         A* __restrict__ partial_or_null, I* __restrict__ owner) {
  if (!partial_or_null) return;
  const int lane = threadIdx.x & 31, stride = lane / columns, step = 32 / columns;
  const long long tiles = (n + tile - 1) / tile;
  for (long long t = sg_thread() >> 5; t < tiles; t += sg_threads() >> 5) {
    const long long first = t * tile, after = min(first + tile, n);
    long long segment = sg_segment_at(offsets, segments, first);
    for (int slot = 0; slot < 2; ++slot) {
      if (slot == 1 && offsets[segment + 1] < after)
        segment = sg_segment_at(offsets, segments, after - 1);
      const SgPiece piece = sg_piece(offsets, segment, first, after, tile, slot);
      if (lane == 0) owner[2 * t + slot] = (I)piece.segment;
      if (piece.segment < 0) continue;  // the whole warp
      for (int block = 0; block < width; block += columns) {
        const int column = block + (lane & (columns - 1));
        State state;
        if (column < width) sg_want(state, wanted_or_null, piece.segment * width + column);
        if (column < width)
          sg_add_run<T, State, A>(
              state, values + piece.begin * width + column,
              by_or_null ? by_or_null + piece.begin * width + column : nullptr, stride,
              (int)(piece.end - piece.begin), step, width);
        sg_merge_lanes(state, columns, 32);
        if (column < width && stride == 0)
          state.keep(partial_or_null + (2 * t + slot) * width + column, apart);
      }
    }
  }
}

// Where the state of the piece that tile t holds of a segment is, if that begins in tile `first`.
__device__ __forceinline__ long long sg_piece_place(long long t, long long first) {
  return 2 * t + (t == first ? 1 : 0);
}

// The state of a long segment in one column, from those of its pieces, but for that of tile
// `without`: the whole warp, the lanes `columns` apart that read the same column.
template <typename State, typename A, typename I>
__device__ __forceinline__ State sg_joined(const A* __restrict__ partial,
                                           const I* __restrict__ offsets, long long segment,
                                           int tile, int width, int columns, int column,
                                           long long apart, long long without = -1) {
  const long long first = offsets[segment] / tile;
  const long long last = ((long long)offsets[segment + 1] - 1) / tile;
  State state;
  if (column < width)
    for (long long t = first + (threadIdx.x & 31) / columns; t <= last; t += 32 / columns) {
      if (t == without) continue;
      State piece;
      piece.take(partial + sg_piece_place(t, first) * width + column, apart);
      state.merge(piece);
    }
  sg_merge_lanes(state, columns, 32);
  return state;
}
