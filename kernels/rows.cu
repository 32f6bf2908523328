// Rows of dense arrays by index: gather, and the steps of optimizers in the rows that a row-sparse
// gradient touches.
//
//   gather            out[e] = x[index[e]], rows of words of 4 bytes
//   sgd, adagrad, rowwise_adagrad, adam
//                     p[r], and the state of r, for each touched row r; without `rows` every row.
//                     The entries of a row are summed on the way: the merged gradient is never in
//                     memory. A row whose sum is zero is left alone, unless `every` is set.
//   parts             sums of runs that are too long for one group of lanes
//
// Mapping   A group of `lanes` lanes (up to 32, a power of two) takes a row, V numbers a load, 16
//           bytes where alignment allows; two to 32 rows a warp. Up to four entries of a run are in
//           flight. Rows longer than lanes * V are walked in blocks, and their runs read again.
// Long      A run of more than 64 entries (a popular word) would be one group's work. `parts` cuts
//           all entries into tiles of 64, whatever the runs; a tile holds a piece of at most two
//           long ones, the one that came from the left and the one that goes on to the right. The
//           step adds up pieces instead of entries. Where the counts say that no run can be that
//           long, it is not launched.
// Bytes     Adam 6 u D s + n D s + n i, SGD with momentum and Adagrad 4 u D s + n D s + n i, of u
//           touched rows and n entries; row-wise Adagrad 2 u D s + n D s + n i. Gather 2 n D s.
// Numbers   16-bit arrays are updated in fp32 and rounded once. No atomics: the same bits from run
//           to run.
// Replaces  sort and merge of the gradient, then gather, a dozen elementwise launches over u D and
//           a scatter for each array: 40 u D s for Adam.

#define SG_ROWS_TILE 64

// A row-sparse gradient. Null: `rows`, every row; `perm`, entries are in order; `indptr`, one entry
// a row; `parts`, no long runs.
template <typename T, typename I> struct SgRowGradient {
  typedef SG_ACC(T) A;
  const I *rows, *perm, *indptr;
  const T* values;
  const A* parts;
  long long count, limit;  // rows touched, rows there are
  int width, lanes;

  template <int FLIGHT, int V>
  __device__ __forceinline__ void add_entries(long long begin, long long end, int column,
                                              A (&sum)[V]) const {
    #pragma unroll 1
    for (long long e = begin; e < end; e += FLIGHT) {
      T row[FLIGHT][V];
      #pragma unroll
      for (int u = 0; u < FLIGHT; ++u) {
        if (e + u >= end) break;
        const long long entry = perm ? (long long)perm[e + u] : e + u;
        sg_load(row[u], values + entry * width + column);
      }
      #pragma unroll
      for (int u = 0; u < FLIGHT; ++u) {
        if (e + u >= end) break;
        #pragma unroll
        for (int v = 0; v < V; ++v) sum[v] += A(sg_widen(row[u][v]));
      }
    }
  }

  template <int V>
  __device__ __forceinline__ void summed(long long run, int column, A (&sum)[V]) const {
    const long long begin = indptr ? (long long)indptr[run] : run;
    const long long end = indptr ? (long long)indptr[run + 1] : run + 1;
    #pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = A(0);
    if (!parts || end - begin <= SG_ROWS_TILE) {
      add_entries<2>(begin, end, column, sum);
      return;
    }
    const long long first = begin / SG_ROWS_TILE, last = (end - 1) / SG_ROWS_TILE;
    #pragma unroll 1
    for (long long tile = first; tile <= last; ++tile) {
      const A* part = parts + (2 * tile + (tile == first)) * width + column;
      #pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += part[v];
    }
  }
};

// The last run that begins at or before `entry`.
template <typename I>
__device__ __forceinline__ long long sg_run_of(const I* __restrict__ indptr, long long count,
                                               long long entry) {
  long long low = 0, high = count;  // indptr[low] <= entry < indptr[high]
  while (high - low > 1) {
    const long long middle = (low + high) >> 1;
    if (indptr[middle] <= entry) low = middle;
    else high = middle;
  }
  return low;
}

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_parts(const T* __restrict__ values, const I* __restrict__ perm_or_null,
              const I* __restrict__ indptr, long long n, long long count, int width, int lanes,
              SG_ACC(T)* __restrict__ parts) {
  typedef SG_ACC(T) A;
  const SgRowGradient<T, I> g = {nullptr, perm_or_null, indptr, values, nullptr, count, 0, width,
                                 lanes};
  const int sub = threadIdx.x & (lanes - 1), blocks = (width + lanes * V - 1) / (lanes * V);
  const long long tiles = (n + SG_ROWS_TILE - 1) / SG_ROWS_TILE;
  for (long long work = sg_thread() / lanes; work < tiles * blocks; work += sg_threads() / lanes) {
    const long long tile = work / blocks;
    const int column = ((int)(work - tile * blocks) * lanes + sub) * V;
    if (column >= width) continue;  // no collectives below
    const long long first = tile * SG_ROWS_TILE, after = min(n, first + SG_ROWS_TILE);
    for (int side = 0; side < 2; ++side) {  // the run at the left end, the one at the right
      const long long run = sg_run_of(indptr, count, side ? after - 1 : first);
      const long long begin = indptr[run], end = indptr[run + 1];
      if (end - begin <= SG_ROWS_TILE || (begin >= first) != (side == 1)) continue;
      A sum[V];
      #pragma unroll
      for (int v = 0; v < V; ++v) sum[v] = A(0);
      g.template add_entries<4>(max(begin, first), min(end, after), column, sum);
      A* to = parts + (2 * tile + side) * width + column;
      #pragma unroll
      for (int v = 0; v < V; ++v) to[v] = sum[v];
    }
  }
}

// Calls `step` for all touched rows: `load(row)` for what belongs to the whole row, `squares` of a
// part of it if WHOLE says that their sum is needed, `begin(row, sum of squares, first lane)`, then
// `apply(gradient, place)` for each part.
template <typename T, typename I, int V, typename Step>
__device__ __forceinline__ void sg_step_rows(const SgRowGradient<T, I>& g, int every, Step step) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31, sub = lane & (g.lanes - 1);
  const int blocks = (g.width + g.lanes * V - 1) / (g.lanes * V);
  for (long long base = (sg_thread() - lane) / g.lanes; base < g.count;
       base += sg_threads() / g.lanes) {
    const long long i = base + lane / g.lanes;
    bool mine = i < g.count;
    long long row = i;
    if (mine && g.rows) row = g.rows[i];
    mine = mine && row >= 0 && row < g.limit;  // a user's index may not have been looked at yet
    if (mine) step.load(row);

    A sum[V];
    A squares = A(0);
    int live = every;
    #pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const int column = (block * g.lanes + sub) * V;
      if (mine && column < g.width && (Step::WHOLE || blocks == 1 || !live)) {
        g.summed(i, column, sum);
        #pragma unroll
        for (int v = 0; v < V; ++v) live |= sum[v] != A(0);
        if (Step::WHOLE) squares += step.squares(sum, row * g.width + column);
      }
      for (int o = 1; o < g.lanes; o <<= 1) live |= __shfl_xor_sync(SG_ALL_LANES, live, o);
    }
    if (Step::WHOLE)
      for (int o = 1; o < g.lanes; o <<= 1) squares += __shfl_xor_sync(SG_ALL_LANES, squares, o);
    __syncwarp();  // `load` has read what `begin` writes

    if (!mine || !live) continue;  // no collectives below
    step.begin(row, squares, sub == 0);
    #pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const int column = (block * g.lanes + sub) * V;
      if (column >= g.width) continue;
      if (blocks > 1) g.summed(i, column, sum);
      step.apply(sum, row * g.width + column);
    }
  }
}

// V numbers of a 16-bit or wider array as those they are computed in, and back. Not through the
// read-only cache of `sg_load`: the kernel writes to the same array.
template <typename T, int V, typename A>
__device__ __forceinline__ void sg_read(A (&to)[V], const T* from) {
  typedef typename SgWord<sizeof(T) * V>::type Word;
  const Word word = *reinterpret_cast<const Word*>(from);
  T narrow[V];
  memcpy(&narrow[0], &word, sizeof(Word));
  #pragma unroll
  for (int v = 0; v < V; ++v) to[v] = A(sg_widen(narrow[v]));
}

template <typename T, int V, typename A>
__device__ __forceinline__ void sg_write(T* to, const A (&from)[V]) {
  T narrow[V];
  #pragma unroll
  for (int v = 0; v < V; ++v) narrow[v] = SgNarrow<T>::from(from[v]);
  sg_store(to, narrow);
}

// v = momentum v + d with d = g + decay p; p -= rate v, or rate (d + momentum v).
template <typename T, int V> struct SgSgd {
  typedef SG_ACC(T) A;
  static const bool WHOLE = false;
  A rate, momentum, decay;
  int nesterov;
  T *p, *velocity;

  __device__ __forceinline__ void load(long long) {}
  __device__ __forceinline__ A squares(const A (&)[V], long long) const { return A(0); }
  __device__ __forceinline__ void begin(long long, A, bool) {}
  __device__ __forceinline__ void apply(const A (&g)[V], long long at) const {
    A held[V], fast[V];
    sg_read<T, V, A>(held, p + at);
    if (velocity) sg_read<T, V, A>(fast, velocity + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      A move = g[v] + decay * held[v];
      if (velocity) {
        fast[v] = momentum * fast[v] + move;
        move = nesterov ? move + momentum * fast[v] : fast[v];
      }
      held[v] -= rate * move;
    }
    if (velocity) sg_write<T, V, A>(velocity + at, fast);
    sg_write<T, V, A>(p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_sgd(const I* __restrict__ rows_or_null, const I* __restrict__ perm_or_null,
            const I* __restrict__ indptr_or_null, const T* __restrict__ values,
            const SG_ACC(T)* __restrict__ parts_or_null, long long count, long long limit,
            int width, int lanes, int every, SG_ACC(T) rate, SG_ACC(T) momentum, SG_ACC(T) decay,
            int nesterov, T* p, T* velocity_or_null) {
  const SgRowGradient<T, I> g = {rows_or_null, perm_or_null, indptr_or_null, values,
                                 parts_or_null, count, limit, width, lanes};
  const SgSgd<T, V> step = {rate, momentum, decay, nesterov, p, velocity_or_null};
  sg_step_rows<T, I, V>(g, every, step);
}

// total += d² with d = g + decay p; p -= rate d / (sqrt(total) + least).
template <typename T, int V> struct SgAdagrad {
  typedef SG_ACC(T) A;
  static const bool WHOLE = false;
  A rate, decay, least;
  T *p, *total;

  __device__ __forceinline__ void load(long long) {}
  __device__ __forceinline__ A squares(const A (&)[V], long long) const { return A(0); }
  __device__ __forceinline__ void begin(long long, A, bool) {}
  __device__ __forceinline__ void apply(const A (&g)[V], long long at) const {
    A held[V], sums[V];
    sg_read<T, V, A>(held, p + at);
    sg_read<T, V, A>(sums, total + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      const A move = g[v] + decay * held[v];
      sums[v] += move * move;
      held[v] -= rate * move / (sqrt(sums[v]) + least);
    }
    sg_write<T, V, A>(total + at, sums);
    sg_write<T, V, A>(p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_adagrad(const I* __restrict__ rows_or_null, const I* __restrict__ perm_or_null,
                const I* __restrict__ indptr_or_null, const T* __restrict__ values,
                const SG_ACC(T)* __restrict__ parts_or_null, long long count, long long limit,
                int width, int lanes, int every, SG_ACC(T) rate, SG_ACC(T) decay, SG_ACC(T) least,
                T* p, T* total) {
  const SgRowGradient<T, I> g = {rows_or_null, perm_or_null, indptr_or_null, values,
                                 parts_or_null, count, limit, width, lanes};
  const SgAdagrad<T, V> step = {rate, decay, least, p, total};
  sg_step_rows<T, I, V>(g, every, step);
}

// The same with one number a row, which adds up the means of d² over rows.
template <typename T, int V> struct SgRowwiseAdagrad {
  typedef SG_ACC(T) A;
  static const bool WHOLE = true;
  A rate, decay, least, share;  // share: one in the width of a row
  T *p, *total;
  A before, scale;

  __device__ __forceinline__ void load(long long row) { before = A(sg_widen(total[row])); }
  __device__ __forceinline__ A squares(const A (&g)[V], long long at) const {
    A held[V], sum = A(0);
    sg_read<T, V, A>(held, p + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      const A move = g[v] + decay * held[v];
      sum += move * move;
    }
    return sum;
  }
  __device__ __forceinline__ void begin(long long row, A sum, bool first) {
    const A after = before + sum * share;
    scale = rate / (sqrt(after) + least);
    if (first) total[row] = SgNarrow<T>::from(after);
  }
  __device__ __forceinline__ void apply(const A (&g)[V], long long at) const {
    A held[V];
    sg_read<T, V, A>(held, p + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) held[v] -= scale * (g[v] + decay * held[v]);
    sg_write<T, V, A>(p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_rowwise_adagrad(const I* __restrict__ rows_or_null, const I* __restrict__ perm_or_null,
                        const I* __restrict__ indptr_or_null, const T* __restrict__ values,
                        const SG_ACC(T)* __restrict__ parts_or_null, long long count,
                        long long limit, int width, int lanes, int every, SG_ACC(T) rate,
                        SG_ACC(T) decay, SG_ACC(T) least, SG_ACC(T) share, T* p, T* total) {
  const SgRowGradient<T, I> g = {rows_or_null, perm_or_null, indptr_or_null, values,
                                 parts_or_null, count, limit, width, lanes};
  const SgRowwiseAdagrad<T, V> step = {rate, decay, least, share, p, total};
  sg_step_rows<T, I, V>(g, every, step);
}

// p *= kept; d = g + decay p; m += new1 (d - m); v += new2 (d² - v); with a count of steps a row,
// that row's corrections; p -= rate m / (sqrt(v) scale + least).
template <typename T, int V> struct SgAdam {
  typedef SG_ACC(T) A;
  static const bool WHOLE = false;
  A b1, new1, b2, new2, rate, scale, least, decay, kept;
  double log_b1, log_b2;
  T *p, *m, *v;
  long long* row_step;
  A pace;  // rate, of this row

  // The corrections before the gradient is there: exponentials in fp64 take many registers.
  __device__ __forceinline__ void load(long long row) {
    if (!row_step) return;
    const double t = (double)(row_step[row] + 1);
    pace = A(rate / (1 - exp(log_b1 * t)));
    scale = A(1 / sqrt(1 - exp(log_b2 * t)));
  }
  __device__ __forceinline__ A squares(const A (&)[V], long long) const { return A(0); }
  __device__ __forceinline__ void begin(long long row, A, bool first) const {
    if (row_step && first) row_step[row] += 1;
  }
  __device__ __forceinline__ void apply(const A (&g)[V], long long at) const {
    A held[V], mean[V], square[V];
    sg_read<T, V, A>(held, p + at);
    sg_read<T, V, A>(mean, m + at);
    sg_read<T, V, A>(square, v + at);
    #pragma unroll
    for (int i = 0; i < V; ++i) {
      held[i] *= kept;
      const A move = g[i] + decay * held[i];
      mean[i] = b1 * mean[i] + new1 * move;
      square[i] = b2 * square[i] + new2 * (move * move);
    }
    sg_write<T, V, A>(m + at, mean);
    sg_write<T, V, A>(v + at, square);
    #pragma unroll
    for (int i = 0; i < V; ++i) held[i] -= pace * mean[i] / (sqrt(square[i]) * scale + least);
    sg_write<T, V, A>(p + at, held);
  }
};

// rate is lr / first without counts and lr with them; scale 1 / second. new1 is 1 - b1, rounded
// once; b1^t of a row is exp(log_b1 t), in fp64.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_adam(const I* __restrict__ rows_or_null, const I* __restrict__ perm_or_null,
             const I* __restrict__ indptr_or_null, const T* __restrict__ values,
             const SG_ACC(T)* __restrict__ parts_or_null, long long count, long long limit,
             int width, int lanes, int every, SG_ACC(T) b1, SG_ACC(T) new1, SG_ACC(T) b2,
             SG_ACC(T) new2, double log_b1, double log_b2, SG_ACC(T) rate, SG_ACC(T) scale,
             SG_ACC(T) least, SG_ACC(T) decay, SG_ACC(T) kept, T* p, T* m, T* v,
             long long* row_step_or_null) {
  const SgRowGradient<T, I> g = {rows_or_null, perm_or_null, indptr_or_null, values,
                                 parts_or_null, count, limit, width, lanes};
  const SgAdam<T, V> step = {b1, new1, b2, new2, rate, scale, least, decay, kept,
                             log_b1, log_b2, p, m, v, row_step_or_null, rate};
  sg_step_rows<T, I, V>(g, every, step);
}

// out (n, width) = x[index], in words. Four rows in flight. An index that is outside x, which the
// next synchronisation will tell, reads the nearest row.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_gather(const T* __restrict__ x, const I* __restrict__ index, long long n, long long limit,
               int width, int lanes, T* __restrict__ out) {
  const int sub = threadIdx.x & (lanes - 1);
  const long long groups = sg_threads() / lanes;
  for (long long e = sg_thread() / lanes; e < n; e += 4 * groups) {
    for (int column = sub * V; column < width; column += lanes * V) {
      T row[4][V];
      #pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (e + u * groups >= n) break;
        long long from = index[e + u * groups];
        from = min(max(from < 0 ? from + limit : from, 0ll), limit - 1);
        sg_load(row[u], x + from * width + column);
      }
      #pragma unroll
      for (int u = 0; u < 4; ++u)
        if (e + u * groups < n) sg_store(out + (e + u * groups) * width + column, row[u]);
    }
  }
}
