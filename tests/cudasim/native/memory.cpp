// Memory checks: bounds, alignment, uninitialised reads and data races.
//
// Every checked access of a kernel comes through access(). Its place in memory must lie in one
// known range; a range of device memory remembers which bytes were written; and a shadow cell for
// every four bytes remembers the last write and two reads, with enough of a clock to tell whether
// they happened before the present access.
#include "sim.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>
#include <link.h>
#include <sys/mman.h>

namespace sim {
namespace {

struct Range {
  uintptr_t begin, end;
  int kind;
  std::string name;
  std::shared_ptr<uint8_t> written;  // a flag a byte; null: all of it holds a value
};

std::vector<Range> ranges;  // sorted by begin
Range* recent[4];
int recent_next;

Range* find_range(uintptr_t a) {
  for (Range* r : recent)
    if (r && a >= r->begin && a < r->end) return r;
  auto it = std::upper_bound(ranges.begin(), ranges.end(), a,
                             [](uintptr_t v, const Range& r) { return v < r.begin; });
  if (it == ranges.begin() || a >= (--it)->end) return nullptr;
  recent[recent_next++ & 3] = &*it;
  return &*it;
}

std::string neighbour(uintptr_t a) {  // the range that an address out of bounds lies closest to
  const Range* closest = nullptr;
  size_t distance = 4096;
  for (auto& r : ranges) {
    size_t d = a < r.begin ? r.begin - a : a >= r.end ? a - r.end + 1 : 0;
    if (r.kind != KIND_MODULE && d < distance) {
      closest = &r;
      distance = d;
    }
  }
  if (!closest) return "";
  if (a < closest->begin)
    return ", " + std::to_string(closest->begin - a) + " bytes before " + closest->name;
  if (a >= closest->end)
    return ", " + std::to_string(a - closest->end) + " bytes past the end of " + closest->name;
  return ", across the end of " + closest->name;
}

struct Access {
  uint32_t block, generation, clock;
  uint16_t thread;
  uint8_t bytes;  // one bit for each of the cell's four; 0 = no access
  bool atomic;
};

struct Cell {
  uint32_t launch, block;
  Access write, read[2];
  uint8_t shared_written;
};

constexpr uintptr_t PAGE_CELLS = 1024;
std::unordered_map<uintptr_t, Cell*> shadow;
// Kernels gather from many pages in turn: a small table spares most look-ups.
struct RecentPage {
  uintptr_t page;
  Cell* cells;
} recent_pages[1024];

Cell& shadow_cell(uintptr_t a) {
  uintptr_t page = a / (4 * PAGE_CELLS);
  RecentPage& recent = recent_pages[page % 1024];
  if (recent.page != page || !recent.cells) {
    Cell*& cells = shadow[page];
    if (!cells) cells = (Cell*)calloc(PAGE_CELLS, sizeof(Cell));
    recent = {page, cells};
  }
  return recent.cells[a / 4 % PAGE_CELLS];
}

// Cells take fifteen times the memory that they stand for: those of whole pages go with it.
void drop_shadow(uintptr_t begin, uintptr_t end) {
  constexpr uintptr_t BYTES = 4 * PAGE_CELLS;
  uintptr_t first = (begin + BYTES - 1) / BYTES, last = end / BYTES;  // [first, last)
  if (last <= first) return;
  auto drop = [](auto it) {
    free(it->second);
    return shadow.erase(it);
  };
  if (last - first > shadow.size()) {
    for (auto it = shadow.begin(); it != shadow.end();)
      it = it->first >= first && it->first < last ? drop(it) : std::next(it);
  } else {
    for (uintptr_t page = first; page < last; ++page)
      if (auto it = shadow.find(page); it != shadow.end()) drop(it);
  }
  memset(recent_pages, 0, sizeof recent_pages);
}

// Ordered by program order, a block barrier or __syncwarp. Blocks are never ordered.
bool happened_before(const Access& a) {
  if (a.block != block_id) return false;
  if (a.thread == current || a.generation < barrier_generation) return true;
  return (a.thread >> 5) == (current >> 5) && lanes[current].known[a.thread & 31] >= a.clock;
}

struct Place {  // everything an error message says about the present access
  uintptr_t address;
  unsigned bytes;
  const char* verb;
  void* pc;
  std::string end() const { return "by " + who() + " " + code_place(pc); }
};

void check_written(Range& r, const Place& at, bool write, bool atomic) {
  uint8_t* written = r.written.get() + (at.address - r.begin);
  if (!write || atomic)
    for (unsigned i = 0; i < at.bytes; ++i)
      if (!written[i] && check_level == CHECK_ALL) {
        fail("%s of uninitialised memory: %s+%zu %s", at.verb, r.name.c_str(),
             (size_t)(at.address - r.begin), at.end().c_str());
        return;
      }
  if (write) memset(written, 1, at.bytes);
}

bool races(const Access& earlier, uint8_t bytes, bool write, bool atomic, bool earlier_write) {
  if (!(earlier.bytes & bytes)) return false;
  if (earlier.atomic && atomic) return false;
  // A plain read beside an atomic is stale at worst, never torn (4 and 8 bytes): allowed.
  if (earlier.atomic && !write) return false;
  if (atomic && !earlier_write) return false;
  return !happened_before(earlier);
}

void report_race(const Access& earlier, const char* kind, Range& r, uintptr_t a, const Place& at) {
  fail("data race (%s) on %s+%zu: earlier by block %u thread %u, now %s, with no barrier between",
       kind, r.name.c_str(), (size_t)(a - r.begin), earlier.block, earlier.thread,
       at.end().c_str());
}

void check_cell(Range& r, uintptr_t a, uint8_t bytes, const Place& at, bool write, bool atomic) {
  Cell& c = shadow_cell(a);
  if (c.launch != launch_id || (r.kind == KIND_SHARED && c.block != block_id)) {
    memset(&c, 0, sizeof c);
    c.launch = launch_id;
    c.block = block_id;
  }
  if (r.kind == KIND_SHARED) {
    if ((!write || atomic) && (c.shared_written & bytes) != bytes) {
      fail("%s of uninitialised shared memory: %s+%zu %s", at.verb, r.name.c_str(),
           (size_t)(at.address - r.begin), at.end().c_str());
      return;
    }
    if (write) c.shared_written |= bytes;
  }
  if (races(c.write, bytes, write, atomic, true))
    return report_race(c.write, write ? "write after write" : "read after write", r, a, at);
  if (write)
    for (Access& read : c.read)
      if (races(read, bytes, write, atomic, false))
        return report_race(read, "write after read", r, a, at);

  Access now{block_id, barrier_generation, lanes[current].clock, (uint16_t)current, bytes, atomic};
  if (write) {
    c.write = now;
    for (Access& read : c.read)
      if (read.bytes && happened_before(read)) read.bytes = 0;
  } else {
    Access& first = c.read[0];
    bool replace = !first.bytes || happened_before(first);
    (replace ? first : c.read[1]) = now;
  }
}

}  // namespace

void maybe_yield() {
  if (seed && current >= 0 && random_bits() % 8 == 0) yield_to_scheduler();
}

void count_step() {
  if (step_limit && ++steps > step_limit)
    fail("step limit: more than %lu steps in one launch, an endless loop? (%s)",
         (unsigned long)step_limit, who().c_str());
}

void access(uintptr_t a, unsigned bytes, bool write, bool atomic, void* pc, bool natural) {
  if (current < 0 || !check_level) return;
  uintptr_t stack = (uintptr_t)lanes[current].stack;
  if (a >= stack && a < stack + STACK_BYTES) return;
  Range* r = find_range(a);
  if (r && r->kind == KIND_MODULE) return;
  count_step();
  Place at{a, bytes, atomic ? "atomic" : write ? "write" : "read", pc};
  if (!r || a + bytes > r->end || r->kind == KIND_HOST) {
    fail("out-of-bounds %s of %u bytes at %p%s %s", at.verb, bytes, (void*)a, neighbour(a).c_str(),
         at.end().c_str());
    return;
  }
  if (natural && (bytes & (bytes - 1)) == 0 && (a & (bytes - 1))) {
    fail("misaligned %s of %u bytes at %p (%s+%zu) %s", at.verb, bytes, (void*)a, r->name.c_str(),
         (size_t)(a - r->begin), at.end().c_str());
    return;
  }
  if (r->written) check_written(*r, at, write, atomic);
  if (check_level == CHECK_ALL)
    for (uintptr_t p = a & ~(uintptr_t)3; p < a + bytes && !failed; p += 4) {
      unsigned low = p < a ? (unsigned)(a - p) : 0;
      unsigned high = (unsigned)std::min<uintptr_t>(4, a + bytes - p);
      check_cell(*r, p, ((1u << high) - 1) & ~((1u << low) - 1), at, write, atomic);
    }
  maybe_yield();
}

// ---- static __shared__ variables: one arena, guard gaps, filled with NaN / -1 for every block

namespace {
struct Shared {
  void* key;
  char* place;
  size_t bytes;
};
std::vector<Shared> shared_variables;
char* shared_arena;
size_t shared_used;
constexpr size_t SHARED_LIMIT = 48 << 10, SHARED_GAP = 256;
}  // namespace

void begin_block_shared() {
  if (shared_used) memset(shared_arena, 0xFF, shared_used);
}

void end_launch_shared() {
  for (auto& s : shared_variables) sim_drop_range((uintptr_t)s.place);
  shared_variables.clear();
  shared_used = 0;
}

}  // namespace sim

using namespace sim;

SIM_API void* sim_shared(void* key, size_t bytes, size_t align, const char* name) {
  size_t total = bytes;
  for (auto& s : shared_variables) {
    if (s.key == key) return s.place;
    total += s.bytes;
  }
  if (total > SHARED_LIMIT) fail("too much static shared memory: %zu bytes", total);
  if (!shared_arena)
    shared_arena = (char*)mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  align = std::max<size_t>(align, 16);
  size_t offset = (shared_used + SHARED_GAP + align - 1) & ~(align - 1);
  shared_used = offset + bytes;
  char* place = shared_arena + offset;
  memset(place, 0xFF, bytes);
  shared_variables.push_back({key, place, bytes});
  sim_add_range((uintptr_t)place, bytes, KIND_SHARED, (std::string("__shared__ ") + name).c_str(), 1);
  return place;
}

SIM_API void sim_add_range(uintptr_t begin, size_t bytes, int kind, const char* name, int ready) {
  Range r{begin, begin + bytes, kind, name, nullptr};
  // calloc: the flags of a large allocation take up memory only where they are touched.
  if (!ready) r.written.reset((uint8_t*)calloc(bytes, 1), free);
  auto at = std::upper_bound(ranges.begin(), ranges.end(), begin,
                             [](uintptr_t v, const Range& q) { return v < q.begin; });
  ranges.insert(at, r);
  memset(recent, 0, sizeof recent);
}

SIM_API void sim_drop_range(uintptr_t begin) {
  auto it = std::lower_bound(ranges.begin(), ranges.end(), begin,
                             [](const Range& r, uintptr_t v) { return r.begin < v; });
  if (it != ranges.end() && it->begin == begin) {
    drop_shadow(it->begin, it->end);
    ranges.erase(it);
  }
  memset(recent, 0, sizeof recent);
}

SIM_API void sim_mark_written(uintptr_t begin, size_t bytes) {
  Range* r = bytes ? find_range(begin) : nullptr;
  if (r && r->written)
    memset(r->written.get() + (begin - r->begin), 1, std::min<size_t>(bytes, r->end - begin));
}

SIM_API int sim_range_kind(uintptr_t begin, size_t bytes) {
  Range* r = find_range(begin);
  return r && begin + bytes <= r->end ? r->kind : -1;
}

// The static data of a kernel library and of the simulator itself may be touched unchecked.
SIM_API void sim_add_module(const char* file_name) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* wanted) {
        if (!info->dlpi_name || !strstr(info->dlpi_name, (const char*)wanted)) return 0;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          auto& segment = info->dlpi_phdr[k];
          if (segment.p_type == PT_LOAD)
            sim_add_range(info->dlpi_addr + segment.p_vaddr, segment.p_memsz, KIND_MODULE,
                          "module image", 1);
        }
        return 0;
      },
      (void*)file_name);
}
