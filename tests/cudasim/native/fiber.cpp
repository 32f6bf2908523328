// Fibers: one stack a CUDA thread, a hand-written switch, and errors that abandon all of them.
#include "sim.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

Dim sim_threadIdx, sim_blockIdx, sim_blockDim, sim_gridDim;

namespace sim {
Lane lanes[MAX_THREADS];
Warp warps[MAX_THREADS / 32];
int n_threads, current = -1;
bool failed;
uint64_t seed;
}  // namespace sim

// Saves the callee-saved registers and swaps stacks. ucontext would make a system call a switch.
extern "C" void sim_switch(void** save, void* load);
#if defined(__x86_64__)
asm(R"(
.text
.globl sim_switch
.type sim_switch,@function
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sim_switch,.-sim_switch
)");
#else
#error "cudasim runs on x86-64 only: another architecture needs its own sim_switch"
#endif

namespace sim {
namespace {

void* scheduler_sp;
std::vector<char*> free_stacks;
char error_text[4096];
void (*entry_thunk)(void**);
void** entry_args;
uint64_t random_state = 88172645463325252ull;

void entry() {
  entry_thunk(entry_args);
  Lane& lane = lanes[current];
  lane.state = DONE;
  void* unused;
  sim_switch(&unused, scheduler_sp);
  abort();
}

char* new_stack() {
  char* p = (char*)mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mprotect(p, 4096, PROT_NONE);  // an overflow faults instead of reaching the next stack
  return p;
}

}  // namespace

void set_entry(void (*thunk)(void**), void** args) {
  entry_thunk = thunk;
  entry_args = args;
  failed = false;
  error_text[0] = 0;
  current = -1;
  random_state = 88172645463325252ull ^ (seed * 0x9E3779B97F4A7C15ull);
}

uint64_t random_bits() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state;
}

void fail(const char* format, ...) {
  if (!failed) {
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    failed = true;
  }
  if (current >= 0) {  // never come back to this fiber, nor to any other
    void* unused;
    current = -1;
    sim_switch(&unused, scheduler_sp);
  }
}

void yield_to_scheduler() {
  Lane& lane = lanes[current];
  unsigned ready = warps[current >> 5].ready;
  if (ready && !seed && lane.state != READY) {  // in order: go straight to the warp's next lane
    int next = (current & ~31) + __builtin_ctz(ready);
    if (lanes[next].state == READY) {
      current = next;
      sim_threadIdx = lanes[next].tid;
      sim_switch(&lane.sp, lanes[next].sp);
      return;
    }
  }
  sim_switch(&lane.sp, scheduler_sp);
}

int run_fiber(int index) {
  Lane& lane = lanes[index];
  current = index;
  sim_threadIdx = lane.tid;
  if (lane.state == FRESH) {
    if (free_stacks.empty()) free_stacks.push_back(new_stack());
    lane.stack = free_stacks.back();
    free_stacks.pop_back();
    // Staggered tops: equal ones would put the hot end of every stack into the same cache sets.
    uint64_t* top = (uint64_t*)(lane.stack + STACK_BYTES - 64 - (index * 7 % 61) * 64);
    *--top = 0;
    *--top = (uint64_t)entry;
    for (int i = 0; i < 6; ++i) *--top = 0;
    lane.sp = top;
  }
  lane.state = READY;
  sim_switch(&scheduler_sp, lane.sp);
  int back = current;
  current = -1;
  return back;
}

void recycle_stack(Lane& lane) {
  if (lane.stack) free_stacks.push_back(lane.stack);
  lane.stack = nullptr;
}

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string who() {
  char text[128];
  snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", sim_blockIdx.x, sim_blockIdx.y,
           sim_blockIdx.z, sim_threadIdx.x, sim_threadIdx.y, sim_threadIdx.z);
  return text;
}

std::string code_place(void* pc) {
  Dl_info info;
  char text[600];
  if (!dladdr(pc, &info)) return "";
  snprintf(text, sizeof text, "@@%s+0x%lx@@", info.dli_fname,
           (long)((char*)pc - (char*)info.dli_fbase) - 1);  // -1: into the call, not after it
  return text;
}

// ---- a fault inside a kernel becomes an error of that launch

namespace {

volatile uintptr_t fault_address, fault_pc;
volatile int fault_signal;
struct sigaction old_segv, old_fpe;

void report_fault() {
  const char* what = fault_signal == SIGFPE ? "integer division by zero" : "memory fault";
  fail("%s at %p by %s %s", what, (void*)fault_address, who().c_str(),
       code_place((void*)(fault_pc + 1)).c_str());
}

void on_fault(int signal_number, siginfo_t* info, void* context) {
  static int depth;
  if (current < 0 || !lanes[current].stack || ++depth > 1000) {  // not ours: hand it back
    sigaction(signal_number, signal_number == SIGFPE ? &old_fpe : &old_segv, 0);
    return;
  }
  auto* c = (ucontext_t*)context;
  fault_signal = signal_number;
  fault_address = (uintptr_t)info->si_addr;
  fault_pc = c->uc_mcontext.gregs[REG_RIP];
  // The fiber is given up, so any place on its stack serves the reporting function.
  c->uc_mcontext.gregs[REG_RSP] = (greg_t)(lanes[current].stack + STACK_BYTES - 8192 - 8);
  c->uc_mcontext.gregs[REG_RIP] = (greg_t)report_fault;
}

}  // namespace

void arm_fault_handler() {
  static bool armed;
  if (armed) return;
  armed = true;
  stack_t alternate{};
  alternate.ss_sp = malloc(65536);
  alternate.ss_size = 65536;
  sigaltstack(&alternate, 0);
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGFPE, &action, &old_fpe);
}

}  // namespace sim

SIM_API const char* sim_error() { return sim::error_text; }
