// Rows of dense arrays by index: gather, and the steps of optimizers in the rows that a row-sparse
// gradient touches.
//
//   gather            out[e] = x[index[e]], rows of words of 4 bytes
//   gather_tables     the same of several tables, their rows side by side
//   sgd, adagrad, rowwise_adagrad, rmsprop, adam
//                     p[r], and the state of r, for each touched row r; without `rows` every row.
//                     The entries of a row are summed on the way: the merged gradient is never in
//                     memory. A row whose sum is zero is left alone, unless `every` is set.
//   parts             sums of runs that are too long for one group of lanes
//
// Tables    A step is made in up to 28 parameters at once, and rows are taken from up to 96 tables
//           (FBGEMM's table-batched embeddings): their descriptors are an argument, by value, so
//           nothing is copied to the device for a launch.
//           Each has warps of its own: what is computed does not depend on the others. How many
//           rows are touched may be known to the device only (`count_at`): there are as many warps
//           as if each entry had its own row, and those past the end leave at once.
// Mapping   A group of `lanes` lanes (up to 32, a power of two) takes a row, V numbers a load, 16
//           bytes where alignment allows; one to 32 rows a warp. Two entries of a run are in flight,
//           four where parts are summed. Rows longer than lanes * V are walked in blocks, and their
//           runs read again.
// Long      A run of more than 64 entries (a popular word) would be one group's work. `parts` cuts
//           all entries into tiles of 64, whatever the runs; a tile holds a piece of at most two
//           long ones, the one that came from the left and the one that goes on to the right. The
//           step adds up pieces instead of entries. Where the counts say that no run can be that
//           long, it is not launched.
// Bytes     Adam 6 u D s + n D s + n i, SGD with momentum, Adagrad and RMSprop 4 u D s + n D s + n i, of u
//           touched rows and n entries; row-wise Adagrad 2 u D s + n D s + n i. Gather 2 n D s.
// Numbers   16-bit arrays are updated in fp32 and rounded once. No atomics: the same bits from run
//           to run.
// Replaces  sort and merge of the gradient, then gather, a dozen elementwise launches over u D and
//           a scatter for each array: 40 u D s for Adam.

#define SG_ROWS_TILE 64

// Entries of a run that are in flight. Two of them spill registers on sm_100, by 8 bytes.
#if __CUDA_ARCH__ == 1000
#define SG_ROWS_FLIGHT 1
#else
#define SG_ROWS_FLIGHT 2
#endif

// One parameter (limit, width), its state and its gradient: of types T and I, but for `row_step`.
// Null: `rows`, every row; `perm`, entries are in order; `indptr`, one entry a row; `count_at`, there
// are `count` rows; `parts`, no long runs. stride: how far entries are apart, in numbers. until:
// warps of this table and of those before it.
struct SgTable {
  const void *rows, *perm, *indptr, *count_at, *values;
  void *parts, *p, *first, *second, *third;
  long long *row_step;
  long long count, limit, entries;
  int width, lanes, until, stride;
};

struct SgTables {
  int count, unused;
  SgTable table[28];
};

// A table (limit, width) whose rows index[e] go to columns from `column` on: words of type T, I.
struct SgSource {
  const void *x, *index;
  long long limit;
  int width, column, lanes, until;
};

struct SgSources {
  int count, unused;
  SgSource table[96];
};

// The table that a warp works on, and which of its warps that is. Warps are counted in 31 bits, which
// is a row of 32 lanes in each of two billion.
template <typename Tables>
__device__ __forceinline__ const auto& sg_table_of(const Tables& tables, int& warp) {
  int t = 0;
  while (warp >= tables.table[t].until) ++t;
  if (t > 0) warp -= tables.table[t - 1].until;
  return tables.table[t];
}

template <typename Tables>
__device__ __forceinline__ int sg_warps(const Tables& tables) {
  return tables.table[tables.count - 1].until;
}

// The gradient of a table: read from there when it is needed, which leaves registers free.
template <typename T, typename I> struct SgRowGradient {
  typedef SG_ACC(T) A;
  const SgTable& table;

  __device__ __forceinline__ const I* indptr() const { return (const I*)table.indptr; }
  __device__ __forceinline__ long long count() const {  // rows touched
    return table.count_at ? (long long)*(const I*)table.count_at : table.count;
  }

  template <int FLIGHT, int V>
  __device__ __forceinline__ void add_entries(long long begin, long long end, int column,
                                              A (&sum)[V]) const {
    const I* perm = (const I*)table.perm;
    const T* values = (const T*)table.values + column;
    const int stride = table.stride;
    #pragma unroll 1
    for (long long e = begin; e < end; e += FLIGHT) {
      T row[FLIGHT][V];
      #pragma unroll
      for (int u = 0; u < FLIGHT; ++u) {
        if (e + u >= end) break;
        const long long entry = perm ? (long long)perm[e + u] : e + u;
        sg_load(row[u], values + entry * stride);
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
    const long long begin = indptr() ? (long long)indptr()[run] : run;
    const long long end = indptr() ? (long long)indptr()[run + 1] : run + 1;
    #pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = A(0);
    if (!table.parts || end - begin <= SG_ROWS_TILE) {
      add_entries<SG_ROWS_FLIGHT>(begin, end, column, sum);
      return;
    }
    const long long first = begin / SG_ROWS_TILE, last = (end - 1) / SG_ROWS_TILE;
    #pragma unroll 1
    for (long long tile = first; tile <= last; ++tile) {
      const A* part =
          (const A*)table.parts + (2 * tile + (tile == first)) * table.width + column;
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
sg_rows_parts(const SgTables tables) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  for (int warp = (int)(sg_thread() >> 5); warp < sg_warps(tables);
       warp += (int)(sg_threads() >> 5)) {
    int own = warp;
    const SgTable& table = sg_table_of(tables, own);
    const SgRowGradient<T, I> g = {table};
    A* parts = (A*)table.parts;
    const int sub = lane & (table.lanes - 1), blocks = (table.width + table.lanes * V - 1) / (table.lanes * V);
    const long long tiles = (table.entries + SG_ROWS_TILE - 1) / SG_ROWS_TILE;
    const long long work = (long long)own * (32 / table.lanes) + lane / table.lanes, tile = work / blocks;
    const int column = ((int)(work - tile * blocks) * table.lanes + sub) * V;
    if (tile >= tiles || column >= table.width) continue;  // no collectives below
    const long long first = tile * SG_ROWS_TILE, after = min(table.entries, first + SG_ROWS_TILE);
    for (int side = 0; side < 2; ++side) {  // the run at the left end, the one at the right
      const long long run = sg_run_of(g.indptr(), g.count(), side ? after - 1 : first);
      const long long begin = g.indptr()[run], end = g.indptr()[run + 1];
      if (end - begin <= SG_ROWS_TILE || (begin >= first) != (side == 1)) continue;
      A sum[V];
      #pragma unroll
      for (int v = 0; v < V; ++v) sum[v] = A(0);
      g.template add_entries<4>(max(begin, first), min(end, after), column, sum);
      A* to = parts + (2 * tile + side) * table.width + column;
      #pragma unroll
      for (int v = 0; v < V; ++v) to[v] = sum[v];
    }
  }
}

// Calls `step` for all touched rows: `load(row)` for what belongs to the whole row, `squares` of a
// part of it if WHOLE says that their sum is needed, `begin(row, sum of squares, first lane)`, then
// `apply(gradient, place)` for each part.
template <typename T, typename I, int V, typename Step>
__device__ __forceinline__ void sg_step_rows(const SgTables& tables, int every, Step step) {
  typedef SG_ACC(T) A;
  const int lane = threadIdx.x & 31;
  for (int warp = (int)(sg_thread() >> 5); warp < sg_warps(tables);
       warp += (int)(sg_threads() >> 5)) {
    int own = warp;
    const SgTable& table = sg_table_of(tables, own);
    const SgRowGradient<T, I> g = {table};
    const int sub = lane & (table.lanes - 1), blocks = (table.width + table.lanes * V - 1) / (table.lanes * V);
    const long long i = (long long)own * (32 / table.lanes) + lane / table.lanes;
    bool mine = i < g.count();
    long long row = i;
    if (mine && table.rows) row = ((const I*)table.rows)[i];
    mine = mine && row >= 0 && row < table.limit;  // a user's index may not have been looked at yet
    if (mine) step.load(table, row);

    A sum[V];
    A squares = A(0);
    int live = every;
    #pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const int column = (block * table.lanes + sub) * V;
      if (mine && column < table.width && (Step::WHOLE || blocks == 1 || !live)) {
        g.summed(i, column, sum);
        #pragma unroll
        for (int v = 0; v < V; ++v) live |= sum[v] != A(0);
        if (Step::WHOLE) squares += step.squares(table, sum, row * table.width + column);
      }
      for (int o = 1; o < table.lanes; o <<= 1) live |= __shfl_xor_sync(SG_ALL_LANES, live, o);
    }
    if (Step::WHOLE)
      for (int o = 1; o < table.lanes; o <<= 1) squares += __shfl_xor_sync(SG_ALL_LANES, squares, o);
    __syncwarp();  // `load` has read what `begin` writes

    if (!mine || !live) continue;  // no collectives below
    step.begin(table, row, squares, sub == 0);
    #pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      const int column = (block * table.lanes + sub) * V;
      if (column >= table.width) continue;
      if (blocks > 1) g.summed(i, column, sum);
      step.apply(table, sum, row * table.width + column);
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

// What a step does to a row, from the numbers that all rows share: by default nothing but `apply`,
// which each has. Pointers are read from the table where they are needed.
template <typename T, int V> struct SgStep {
  typedef SG_ACC(T) A;
  static const bool WHOLE = false;
  __device__ __forceinline__ void load(const SgTable&, long long) {}
  __device__ __forceinline__ A squares(const SgTable&, const A (&)[V], long long) const {
    return A(0);
  }
  __device__ __forceinline__ void begin(const SgTable&, long long, A, bool) {}
};

// v = momentum v + fresh d with d = g + decay p; p -= rate v, or rate (d + momentum v). first: v,
// or null.
template <typename T, int V> struct SgSgd : SgStep<T, V> {
  typedef SG_ACC(T) A;
  A rate, momentum, decay, fresh;
  int nesterov;

  __device__ __forceinline__ void apply(const SgTable& table, const A (&g)[V],
                                        long long at) const {
    T *p = (T*)table.p + at, *velocity = table.first ? (T*)table.first + at : nullptr;
    A held[V], fast[V];
    sg_read<T, V, A>(held, p);
    if (velocity) sg_read<T, V, A>(fast, velocity);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      A move = g[v] + decay * held[v];
      if (velocity) {
        fast[v] = momentum * fast[v] + fresh * move;
        move = nesterov ? move + momentum * fast[v] : fast[v];
      }
      held[v] -= rate * move;
    }
    if (velocity) sg_write<T, V, A>(velocity, fast);
    sg_write<T, V, A>(p, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_sgd(const SgTables tables, int every, SG_ACC(T) rate, SG_ACC(T) momentum, SG_ACC(T) decay,
            SG_ACC(T) fresh, int nesterov) {
  SgSgd<T, V> step;
  step.rate = rate, step.momentum = momentum, step.decay = decay, step.fresh = fresh;
  step.nesterov = nesterov;
  sg_step_rows<T, I, V>(tables, every, step);
}

// total += d² with d = g + decay p; p -= rate d / (sqrt(total) + least). first: total.
template <typename T, int V> struct SgAdagrad : SgStep<T, V> {
  typedef SG_ACC(T) A;
  A rate, decay, least;

  __device__ __forceinline__ void apply(const SgTable& table, const A (&g)[V],
                                        long long at) const {
    A held[V], sums[V];
    sg_read<T, V, A>(held, (T*)table.p + at);
    sg_read<T, V, A>(sums, (T*)table.first + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      const A move = g[v] + decay * held[v];
      sums[v] += move * move;
      held[v] -= rate * move / (sqrt(sums[v]) + least);
    }
    sg_write<T, V, A>((T*)table.first + at, sums);
    sg_write<T, V, A>((T*)table.p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_adagrad(const SgTables tables, int every, SG_ACC(T) rate, SG_ACC(T) decay,
                SG_ACC(T) least) {
  SgAdagrad<T, V> step;
  step.rate = rate, step.decay = decay, step.least = least;
  sg_step_rows<T, I, V>(tables, every, step);
}

// The same with one number a row, which adds up the means of d² over rows.
template <typename T, int V> struct SgRowwiseAdagrad : SgStep<T, V> {
  typedef SG_ACC(T) A;
  static const bool WHOLE = true;
  A rate, decay, least, before, scale;

  __device__ __forceinline__ void load(const SgTable& table, long long row) {
    before = A(sg_widen(((const T*)table.first)[row]));
  }
  __device__ __forceinline__ A squares(const SgTable& table, const A (&g)[V],
                                       long long at) const {
    A held[V], sum = A(0);
    sg_read<T, V, A>(held, (T*)table.p + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      const A move = g[v] + decay * held[v];
      sum += move * move;
    }
    return sum;
  }
  __device__ __forceinline__ void begin(const SgTable& table, long long row, A sum, bool first) {
    const A after = before + sum / A(table.width);
    scale = rate / (sqrt(after) + least);
    if (first) ((T*)table.first)[row] = SgNarrow<T>::from(after);
  }
  __device__ __forceinline__ void apply(const SgTable& table, const A (&g)[V],
                                        long long at) const {
    A held[V];
    sg_read<T, V, A>(held, (T*)table.p + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) held[v] -= scale * (g[v] + decay * held[v]);
    sg_write<T, V, A>((T*)table.p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_rowwise_adagrad(const SgTables tables, int every, SG_ACC(T) rate, SG_ACC(T) decay,
                        SG_ACC(T) least) {
  SgRowwiseAdagrad<T, V> step;
  step.rate = rate, step.decay = decay, step.least = least;
  sg_step_rows<T, I, V>(tables, every, step);
}

// v = alpha v + fresh d² with d = g + decay p; p -= rate d / (sqrt(v) + least). first: v; second: the
// average of d, whose square is taken from v in the root, or null; third: b = momentum b + what p
// would move by, which it then moves by, or null.
template <typename T, int V> struct SgRmsprop : SgStep<T, V> {
  typedef SG_ACC(T) A;
  A rate, alpha, fresh, momentum, decay, least;

  __device__ __forceinline__ void apply(const SgTable& table, const A (&g)[V],
                                        long long at) const {
    A held[V], move[V], square[V], root[V];
    sg_read<T, V, A>(held, (T*)table.p + at);
    sg_read<T, V, A>(square, (T*)table.first + at);
    #pragma unroll
    for (int v = 0; v < V; ++v) {
      move[v] = g[v] + decay * held[v];
      root[v] = square[v] = alpha * square[v] + fresh * (move[v] * move[v]);
    }
    sg_write<T, V, A>((T*)table.first + at, square);
    if (table.second) {
      A mean[V];
      sg_read<T, V, A>(mean, (T*)table.second + at);
      #pragma unroll
      for (int v = 0; v < V; ++v) {
        mean[v] = alpha * mean[v] + fresh * move[v];
        const A spread = square[v] - mean[v] * mean[v];
        root[v] = spread < A(0) ? A(0) : spread;
      }
      sg_write<T, V, A>((T*)table.second + at, mean);
    }
    #pragma unroll
    for (int v = 0; v < V; ++v) move[v] /= sqrt(root[v]) + least;
    if (table.third) {
      A fast[V];
      sg_read<T, V, A>(fast, (T*)table.third + at);
      #pragma unroll
      for (int v = 0; v < V; ++v) move[v] = fast[v] = momentum * fast[v] + move[v];
      sg_write<T, V, A>((T*)table.third + at, fast);
    }
    #pragma unroll
    for (int v = 0; v < V; ++v) held[v] -= rate * move[v];
    sg_write<T, V, A>((T*)table.p + at, held);
  }
};

template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_rmsprop(const SgTables tables, int every, SG_ACC(T) rate, SG_ACC(T) alpha, SG_ACC(T) fresh,
                SG_ACC(T) momentum, SG_ACC(T) decay, SG_ACC(T) least) {
  SgRmsprop<T, V> step;
  step.rate = rate, step.alpha = alpha, step.fresh = fresh, step.momentum = momentum;
  step.decay = decay, step.least = least;
  sg_step_rows<T, I, V>(tables, every, step);
}

// p *= kept; d = g + decay p; m += new1 (d - m); v += new2 (d² - v); with a count of steps a row,
// that row's corrections; p -= rate m / (sqrt(v) scale + least), of the greatest v so far if that is
// kept. first: m; second: v; third: the greatest v, or null.
template <typename T, int V> struct SgAdam : SgStep<T, V> {
  typedef SG_ACC(T) A;
  A b1, new1, b2, new2, rate, scale, least, decay, kept;
  double log_b1, log_b2;

  // The corrections before the gradient is there: exponentials take many registers.
  __device__ __forceinline__ void load(const SgTable& table, long long row) {
    if (!table.row_step) return;
    const double t = (double)(table.row_step[row] + 1);
    rate = pace / -expm1(A(log_b1 * t));
    scale = A(1) / sqrt(-expm1(A(log_b2 * t)));
  }
  __device__ __forceinline__ void begin(const SgTable& table, long long row, A, bool first) {
    if (table.row_step && first) table.row_step[row] += 1;
  }
  __device__ __forceinline__ void apply(const SgTable& table, const A (&g)[V],
                                        long long at) const {
    A held[V], mean[V], square[V];
    sg_read<T, V, A>(held, (T*)table.p + at);
    sg_read<T, V, A>(mean, (T*)table.first + at);
    sg_read<T, V, A>(square, (T*)table.second + at);
    #pragma unroll
    for (int i = 0; i < V; ++i) {
      held[i] *= kept;
      const A move = g[i] + decay * held[i];
      mean[i] = b1 * mean[i] + new1 * move;
      square[i] = b2 * square[i] + new2 * (move * move);
    }
    sg_write<T, V, A>((T*)table.first + at, mean);
    sg_write<T, V, A>((T*)table.second + at, square);
    if (table.third) {
      A top[V];
      sg_read<T, V, A>(top, (T*)table.third + at);
      #pragma unroll
      for (int i = 0; i < V; ++i) square[i] = top[i] = square[i] > top[i] ? square[i] : top[i];
      sg_write<T, V, A>((T*)table.third + at, top);
    }
    #pragma unroll
    for (int i = 0; i < V; ++i) held[i] -= rate * mean[i] / (sqrt(square[i]) * scale + least);
    sg_write<T, V, A>((T*)table.p + at, held);
  }
  A pace;  // rate before that of the row is known
};

// rate is lr / first without counts and lr with them; scale 1 / second. new1 is 1 - b1, rounded
// once; 1 - b1^t of a row is -expm1(log_b1 t). Either all tables have counts or none has.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_adam(const SgTables tables, int every, SG_ACC(T) b1, SG_ACC(T) new1, SG_ACC(T) b2,
             SG_ACC(T) new2, double log_b1, double log_b2, SG_ACC(T) rate, SG_ACC(T) scale,
             SG_ACC(T) least, SG_ACC(T) decay, SG_ACC(T) kept) {
  SgAdam<T, V> step;
  step.b1 = b1, step.new1 = new1, step.b2 = b2, step.new2 = new2;
  step.log_b1 = log_b1, step.log_b2 = log_b2;
  step.rate = step.pace = rate, step.scale = scale, step.least = least;
  step.decay = decay, step.kept = kept;
  sg_step_rows<T, I, V>(tables, every, step);
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

// out (n, total): row e has those rows of all tables that index[e] of each says, as `gather`.
template <typename T, typename I, int V>
__global__ void __launch_bounds__(256, SG_HALF)
sg_rows_gather_tables(const SgSources tables, long long n, int total, T* __restrict__ out) {
  const int lane = threadIdx.x & 31;
  for (int warp = (int)(sg_thread() >> 5); warp < sg_warps(tables);
       warp += (int)(sg_threads() >> 5)) {
    int own = warp;
    const SgSource& table = sg_table_of(tables, own);
    const T* x = (const T*)table.x;
    const I* index = (const I*)table.index;
    const int sub = lane & (table.lanes - 1);
    const long long e = 4 * ((long long)own * (32 / table.lanes) + lane / table.lanes);
    for (int column = sub * V; column < table.width; column += table.lanes * V) {
      T row[4][V];
      #pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (e + u >= n) break;
        const long long from = min(max((long long)index[e + u], 0ll), table.limit - 1);
        sg_load(row[u], x + from * table.width + column);
      }
      #pragma unroll
      for (int u = 0; u < 4; ++u)
        if (e + u < n) sg_store(out + (e + u) * total + table.column + column, row[u]);
    }
  }
}
