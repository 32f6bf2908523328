// State shared by the parts of the simulator.
//
// One CUDA thread is one fiber, one block runs at a time, everything happens on the operating
// system thread that called the launch. That is what makes every run repeatable from its seed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#define SIM_API extern "C" __attribute__((visibility("default")))

struct Dim {
  unsigned x, y, z;
};

// Kernels read these as threadIdx, blockIdx, blockDim and gridDim (device/cudasim.h).
SIM_API Dim sim_threadIdx, sim_blockIdx, sim_blockDim, sim_gridDim;

namespace sim {

// The order is that of device/cudasim.h.
enum Op {
  SHFL_IDX, SHFL_UP, SHFL_DOWN, SHFL_XOR, BALLOT, ALL, ANY, SYNCWARP, MATCH_ANY,
  RED_ADD, RED_MIN, RED_MAX, RED_AND, RED_OR, RED_XOR
};
enum BarrierOp { BAR_SYNC, BAR_COUNT, BAR_AND, BAR_OR };
enum State : uint8_t { FRESH, READY, AT_BARRIER, AT_COLLECTIVE, DONE };
enum Check { CHECK_NONE, CHECK_BOUNDS, CHECK_ALL };

constexpr size_t STACK_BYTES = 128 << 10;
constexpr int MAX_THREADS = 1024;

struct Lane {
  void* sp;
  char* stack;
  Dim tid;
  State state;
  int op, arg, width, line;  // the barrier or collective this lane waits in
  unsigned mask;
  const char* file;
  uint64_t value, result;
  uint32_t clock, known[32];  // race check: own clock, and the clocks of its warp it has seen
};

struct Warp {
  unsigned ready, alive, waiting;  // one bit a lane; waiting = in a collective
};

extern Lane lanes[MAX_THREADS];
extern Warp warps[MAX_THREADS / 32];
extern int n_threads, current;  // current: the running lane, -1 outside a kernel
extern uint32_t launch_id, block_id, barrier_generation;
extern bool failed;
extern int check_level;
extern uint64_t seed, step_limit, steps;
extern size_t dynamic_limit;

// fiber.cpp
void fail(const char* format, ...);      // stops the launch; does not return inside a kernel
void yield_to_scheduler();               // give the processor away; returns when resumed
int run_fiber(int lane);                 // -> the lane that came back
void recycle_stack(Lane& lane);
void arm_fault_handler();
void set_entry(void (*thunk)(void**), void** args);
std::string who();                       // "block (0,0,0) thread (1,0,0)"
std::string code_place(void* pc);        // "@@library+0xoffset@@", resolved to file:line in Python
const char* base_name(const char* path);
const char* op_name(int op);
uint64_t random_bits();

// warp.cpp, block.cpp
bool complete_collective(int warp, unsigned mask);

// memory.cpp
void access(uintptr_t address, unsigned bytes, bool write, bool atomic, void* pc, bool natural);
void maybe_yield();
void count_step();
void begin_block_shared();
void end_launch_shared();

}  // namespace sim

SIM_API void sim_add_range(uintptr_t begin, size_t bytes, int kind, const char* name, int ready);
SIM_API void sim_drop_range(uintptr_t begin);
SIM_API void sim_mark_written(uintptr_t begin, size_t bytes);
SIM_API int sim_range_kind(uintptr_t begin, size_t bytes);
SIM_API int sim_launch(void (*thunk)(void**), void** args, const unsigned* grid,
                       const unsigned* block, size_t shared_bytes);
SIM_API const char* sim_error();
SIM_API void sim_add_module(const char* file_name);

namespace sim {
// Static data of a module may be touched unchecked, pinned host memory not at all.
enum RangeKind { KIND_MODULE, KIND_GLOBAL, KIND_SHARED, KIND_HOST };
}
