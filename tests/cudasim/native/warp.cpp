// Warp collectives: lanes meet by mask, and every misuse that is undefined in CUDA is an error.
#include "sim.h"

#include <algorithm>
#include <cstring>

namespace sim {

const char* op_name(int op) {
  static const char* names[] = {
      "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",  "__shfl_xor_sync",
      "__ballot_sync",     "__all_sync",        "__any_sync",        "__syncwarp",
      "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
      "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync"};
  return names[op];
}

namespace {

template <class F>
void each(unsigned mask, F f) {
  for (; mask; mask &= mask - 1) f(__builtin_ctz(mask));
}

uint64_t combine(const Lane* l, unsigned mask, int op) {
  uint64_t acc = op == RED_MIN || op == RED_AND ? ~0ull : 0;
  each(mask, [&](int i) {
    uint64_t v = l[i].value;
    switch (op) {
      case BALLOT: case ALL: case ANY: if (v) acc |= 1u << i; break;
      case RED_ADD: acc += v; break;
      case RED_MIN: acc = std::min(acc, v); break;
      case RED_MAX: acc = std::max(acc, v); break;
      case RED_AND: acc &= v; break;
      case RED_OR: acc |= v; break;
      case RED_XOR: acc ^= v; break;
      default: break;
    }
  });
  return acc;
}

// The lane that lane i reads; i itself where CUDA leaves the value as it is.
int shuffle_source(const Lane& lane, int i) {
  int w = lane.width, segment = i & ~(w - 1), source = i;
  switch (lane.op) {
    case SHFL_IDX: return segment | (lane.arg & (w - 1));
    case SHFL_UP: source = i - lane.arg; return source < segment ? i : source;
    case SHFL_DOWN: source = i + lane.arg; return source >= segment + w ? i : source;
    default: source = i ^ lane.arg; return source >= segment + w ? i : source;
  }
}

// Only __syncwarp orders memory: CUDA promises nothing of the kind for shuffles and votes.
void order_memory(Lane* l, unsigned mask) {
  uint32_t joined[32] = {0};
  each(mask, [&](int i) {
    for (int k = 0; k < 32; ++k) joined[k] = std::max(joined[k], l[i].known[k]);
    joined[i] = std::max(joined[i], l[i].clock);
  });
  each(mask, [&](int i) {
    memcpy(l[i].known, joined, sizeof joined);
    l[i].clock++;
  });
}

}  // namespace

bool complete_collective(int warp, unsigned mask) {
  Lane* l = lanes + warp * 32;
  unsigned need = mask & warps[warp].alive;
  if (need & ~warps[warp].waiting) return false;
  bool met = true;
  each(need, [&](int i) { met = met && l[i].state == AT_COLLECTIVE && l[i].mask == mask; });
  if (!met) return false;
  if (!need) return true;
  int first = __builtin_ctz(need), op = l[first].op;
  each(need, [&](int i) {
    if (l[i].op != op || l[i].line != l[first].line)
      fail("warp collective mismatch in %s, warp %d: lane %d waits in %s (%s:%d), lane %d in %s "
           "(%s:%d), mask %08x",
           who().c_str(), warp, first, op_name(op), base_name(l[first].file), l[first].line, i,
           op_name(l[i].op), base_name(l[i].file), l[i].line, mask);
  });
  if (failed) return true;

  uint64_t acc = op >= BALLOT ? combine(l, need, op) : 0;
  each(need, [&](int i) {
    if (op == ALL) l[i].result = (acc & need) == need;
    else if (op == ANY) l[i].result = acc != 0;
    else if (op == BALLOT || op >= RED_ADD) l[i].result = acc;
    else if (op == MATCH_ANY) {
      uint64_t same = 0;
      each(need, [&](int j) { if (l[j].value == l[i].value) same |= 1u << j; });
      l[i].result = same;
    } else if (op <= SHFL_XOR) {
      int source = shuffle_source(l[i], i);
      if (!((need >> source) & 1)) {
        fail("%s (%s:%d): lane %d of warp %d reads lane %d, which takes no part (mask %08x, alive "
             "%08x)",
             op_name(op), base_name(l[i].file), l[i].line, i, warp, source, mask,
             warps[warp].alive);
        return;
      }
      l[i].result = l[source].value;
    }
  });
  if (failed) return true;
  if (check_level && op == SYNCWARP) order_memory(l, need);
  each(need, [&](int i) { l[i].state = READY; });
  warps[warp].ready |= need;
  warps[warp].waiting &= ~need;
  return true;
}

}  // namespace sim

using namespace sim;

SIM_API uint64_t sim_collective(int op, unsigned mask, uint64_t value, int arg, int width,
                                const char* file, int line) {
  int w = current >> 5, i = current & 31;
  Lane& lane = lanes[current];
  count_step();
  if (!((mask >> i) & 1))
    fail("%s (%s:%d): lane %d calls with mask %08x, which does not name it", op_name(op),
         base_name(file), line, i, mask);
  if (width < 1 || width > 32 || (width & (width - 1)))
    fail("%s (%s:%d): width %d is not a power of two up to 32", op_name(op), base_name(file), line,
         width);
  lane.op = op;
  lane.mask = mask;
  lane.value = value;
  lane.arg = arg;
  lane.width = width;
  lane.file = file;
  lane.line = line;
  lane.state = AT_COLLECTIVE;
  warps[w].ready &= ~(1u << i);
  warps[w].waiting |= 1u << i;
  if (complete_collective(w, mask) && !seed) return lane.result;  // the last one in goes on
  yield_to_scheduler();
  return lane.result;
}

// In order, all live lanes; under a random schedule the caller alone: convergence is no promise.
SIM_API unsigned sim_activemask() {
  return seed ? 1u << (current & 31) : warps[current >> 5].alive;
}
