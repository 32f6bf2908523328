// Block barriers and the launch: blocks one after another, warps and lanes in seeded order.
#include "sim.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>
#include <sys/mman.h>

namespace sim {
uint32_t launch_id, block_id, barrier_generation;
int check_level;
uint64_t step_limit = 200'000'000, steps;
size_t dynamic_limit = 48 << 10;

namespace {

int alive, at_barrier, barrier_op, barrier_result, barrier_line;
const char* barrier_file;
constexpr size_t DYNAMIC_MAX = 256 << 10;
char* dynamic_arena;
size_t dynamic_bytes;
char launch_error[256];

void release_barrier() {
  if (check_level == CHECK_ALL && alive < n_threads) {
    fail("__syncthreads (%s:%d): %d of %d threads of block (%u,%u,%u) have already exited",
         base_name(barrier_file), barrier_line, n_threads - alive, n_threads, sim_blockIdx.x,
         sim_blockIdx.y, sim_blockIdx.z);
    return;
  }
  for (int t = 0; t < n_threads; ++t) {
    Lane& lane = lanes[t];
    if (lane.state != AT_BARRIER) continue;
    lane.state = READY;
    lane.result = barrier_result;
    warps[t >> 5].ready |= 1u << (t & 31);
    memset(lane.known, 0, sizeof lane.known);  // the generation orders all that came before
    lane.clock = 1;
  }
  at_barrier = 0;
  ++barrier_generation;
}

void report_deadlock() {
  std::map<std::string, int> places;
  for (int t = 0; t < n_threads; ++t) {
    Lane& lane = lanes[t];
    if (lane.state != AT_BARRIER && lane.state != AT_COLLECTIVE) continue;
    const char* name = lane.state == AT_BARRIER ? "__syncthreads" : op_name(lane.op);
    char text[256];
    snprintf(text, sizeof text, "%s at %s:%d", name, base_name(lane.file), lane.line);
    places[text]++;
  }
  std::string all;
  for (auto& p : places) all += " " + std::to_string(p.second) + " thread(s) wait in " + p.first + ";";
  fail("deadlock in block (%u,%u,%u):%s %d of %d threads have exited", sim_blockIdx.x,
       sim_blockIdx.y, sim_blockIdx.z, all.c_str(), n_threads - alive, n_threads);
}

void start_block(const unsigned* block) {
  int t = 0;
  for (unsigned z = 0; z < block[2]; ++z)
    for (unsigned y = 0; y < block[1]; ++y)
      for (unsigned x = 0; x < block[0]; ++x, ++t) {
        lanes[t].tid = {x, y, z};
        lanes[t].state = FRESH;
        lanes[t].clock = 1;
        memset(lanes[t].known, 0, sizeof lanes[t].known);
      }
  for (int w = 0; w * 32 < n_threads; ++w) {
    int n = std::min(32, n_threads - w * 32);
    warps[w].ready = warps[w].alive = n == 32 ? ~0u : (1u << n) - 1;
    warps[w].waiting = 0;
  }
  alive = n_threads;
  at_barrier = 0;
  barrier_generation = 1;
}

int pick_lane(unsigned ready) {
  if (!seed) return __builtin_ctz(ready);
  unsigned above = ready & (~0u << (random_bits() & 31));
  return __builtin_ctz(above ? above : ready);
}

void finish_lane(int warp, int i) {
  recycle_stack(lanes[warp * 32 + i]);
  warps[warp].ready &= ~(1u << i);
  warps[warp].alive &= ~(1u << i);
  --alive;
  // Lanes that exit leave the masks they were named in, which may complete a collective.
  if (warps[warp].ready) return;
  for (unsigned m = warps[warp].waiting; m; m &= m - 1) {
    Lane& waiting = lanes[warp * 32 + __builtin_ctz(m)];
    if (waiting.state == AT_COLLECTIVE && complete_collective(warp, waiting.mask)) return;
  }
}

bool run_warp(int warp) {
  bool progress = false;
  int burst = seed ? 1 + (int)(random_bits() % 64) : 1 << 30;
  while (warps[warp].ready && !failed && burst-- > 0) {
    progress = true;
    int back = run_fiber(warp * 32 + pick_lane(warps[warp].ready));
    if (back < 0) break;  // failed
    if (lanes[back].state == DONE) finish_lane(warp, back & 31);
  }
  return progress;
}

void run_block() {
  int n_warps = (n_threads + 31) / 32;
  while (alive && !failed) {
    bool progress = false;
    int first = seed ? (int)(random_bits() % n_warps) : 0;
    for (int k = 0; k < n_warps && !failed; ++k) progress |= run_warp((first + k) % n_warps);
    if (failed) break;
    if (at_barrier && at_barrier == alive) release_barrier();
    else if (!progress && alive) report_deadlock();
  }
  if (failed)
    for (int t = 0; t < n_threads; ++t)
      if (lanes[t].state != FRESH && lanes[t].state != DONE) recycle_stack(lanes[t]);
}

bool bad_geometry(const unsigned* grid, const unsigned* block, size_t shared_bytes) {
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (!grid[0] || !grid[1] || !grid[2] || !threads || threads > MAX_THREADS || block[2] > 64 ||
      grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) {
    snprintf(launch_error, sizeof launch_error,
             "invalid configuration argument: grid (%u,%u,%u), block (%u,%u,%u)", grid[0], grid[1],
             grid[2], block[0], block[1], block[2]);
    return true;
  }
  if (shared_bytes > dynamic_limit) {
    snprintf(launch_error, sizeof launch_error,
             "invalid argument: %zu bytes of dynamic shared memory, the limit is %zu", shared_bytes,
             dynamic_limit);
    return true;
  }
  return false;
}

void map_dynamic_arena() {
  if (dynamic_arena) return;
  char* p = (char*)mmap(0, DYNAMIC_MAX + 8192, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(p, 4096, PROT_NONE);
  mprotect(p + 4096 + DYNAMIC_MAX, 4096, PROT_NONE);
  dynamic_arena = p + 4096;
}

char* dynamic_begin() {  // its end touches the guard page
  return dynamic_arena + DYNAMIC_MAX - ((dynamic_bytes + 15) & ~(size_t)15);
}

}  // namespace
}  // namespace sim

using namespace sim;

SIM_API int sim_barrier(int op, int predicate, const char* file, int line) {
  Lane& lane = lanes[current];
  count_step();
  if (!at_barrier) {
    barrier_file = file;
    barrier_line = line;
    barrier_op = op;
    barrier_result = op == BAR_AND;
  } else if (line != barrier_line || op != barrier_op) {
    fail("divergent __syncthreads in block (%u,%u,%u): thread %d waits at %s:%d while others wait "
         "at %s:%d",
         sim_blockIdx.x, sim_blockIdx.y, sim_blockIdx.z, current, base_name(file), line,
         base_name(barrier_file), barrier_line);
  }
  if (op == BAR_COUNT) barrier_result += predicate != 0;
  if (op == BAR_AND) barrier_result &= predicate != 0;
  if (op == BAR_OR) barrier_result |= predicate != 0;
  lane.state = AT_BARRIER;
  lane.file = file;
  lane.line = line;
  warps[current >> 5].ready &= ~(1u << (current & 31));
  ++at_barrier;
  yield_to_scheduler();
  return (int)lane.result;
}

SIM_API void* sim_dynamic_shared() { return dynamic_begin(); }

SIM_API int sim_launch(void (*thunk)(void**), void** args, const unsigned* grid,
                       const unsigned* block, size_t shared_bytes) {
  if (bad_geometry(grid, block, shared_bytes)) return 1;
  arm_fault_handler();
  map_dynamic_arena();
  set_entry(thunk, args);
  dynamic_bytes = shared_bytes;
  sim_gridDim = {grid[0], grid[1], grid[2]};
  sim_blockDim = {block[0], block[1], block[2]};
  n_threads = (int)(block[0] * block[1] * block[2]);
  ++launch_id;
  steps = 0;
  if (shared_bytes)
    sim_add_range((uintptr_t)dynamic_begin(), shared_bytes, KIND_SHARED, "dynamic shared memory", 1);

  uint64_t n_blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  std::vector<uint32_t> order;
  if (seed) {
    order.resize(n_blocks);
    for (uint64_t i = 0; i < n_blocks; ++i) order[i] = (uint32_t)i;
    for (uint64_t i = n_blocks - 1; i > 0; --i) std::swap(order[i], order[random_bits() % (i + 1)]);
  }
  for (uint64_t k = 0; k < n_blocks && !failed; ++k) {
    block_id = seed ? order[k] : (uint32_t)k;
    sim_blockIdx = {block_id % grid[0], block_id / grid[0] % grid[1], block_id / (grid[0] * grid[1])};
    if (shared_bytes) memset(dynamic_begin(), 0xFF, (shared_bytes + 15) & ~(size_t)15);
    begin_block_shared();
    start_block(block);
    run_block();
  }
  current = -1;
  end_launch_shared();
  if (shared_bytes) sim_drop_range((uintptr_t)dynamic_begin());
  return failed ? 2 : 0;
}

SIM_API const char* sim_launch_error() { return launch_error; }
SIM_API void sim_set_seed(uint64_t value) { seed = value; }
SIM_API void sim_set_step_limit(uint64_t value) { step_limit = value; }
