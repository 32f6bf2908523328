// Where compiled kernels call in. The check build compiles kernels with -fsanitize=thread and
// some of UBSan, but links neither library: the calls the compiler puts at every access and every
// suspicious operation end here.
#include "sim.h"

#include <chrono>
#include <cstdio>

using namespace sim;

#define CALLER __builtin_return_address(0)
#define ACCESS_HOOKS(N)                                                                         \
  SIM_API void __tsan_read##N(void* p) { access((uintptr_t)p, N, false, false, CALLER, true); } \
  SIM_API void __tsan_write##N(void* p) { access((uintptr_t)p, N, true, false, CALLER, true); } \
  SIM_API void __tsan_volatile_read##N(void* p) {                                               \
    access((uintptr_t)p, N, false, false, CALLER, true);                                        \
  }                                                                                             \
  SIM_API void __tsan_volatile_write##N(void* p) {                                              \
    access((uintptr_t)p, N, true, false, CALLER, true);                                         \
  }
ACCESS_HOOKS(1)
ACCESS_HOOKS(2)
ACCESS_HOOKS(4)
ACCESS_HOOKS(8)
ACCESS_HOOKS(16)

// The type allows this alignment; UBSan below reports where the type does not.
#define UNALIGNED_HOOKS(N)                               \
  SIM_API void __tsan_unaligned_read##N(void* p) {       \
    access((uintptr_t)p, N, false, false, CALLER, false); \
  }                                                      \
  SIM_API void __tsan_unaligned_write##N(void* p) {      \
    access((uintptr_t)p, N, true, false, CALLER, false);  \
  }
UNALIGNED_HOOKS(2)
UNALIGNED_HOOKS(4)
UNALIGNED_HOOKS(8)
UNALIGNED_HOOKS(16)

SIM_API void __tsan_read_range(void* p, size_t n) {
  access((uintptr_t)p, (unsigned)n, false, false, CALLER, false);
}
SIM_API void __tsan_write_range(void* p, size_t n) {
  access((uintptr_t)p, (unsigned)n, true, false, CALLER, false);
}
SIM_API void __tsan_init() {}
SIM_API void __tsan_func_entry(void*) {}
SIM_API void __tsan_func_exit() {}
SIM_API void __tsan_vptr_update(void**, void*) {}
SIM_API void __tsan_vptr_read(void**) {}

SIM_API void sim_atomic(const volatile void* p, int bytes, void* caller) {
  if (check_level) access((uintptr_t)p, (unsigned)bytes, true, true, caller, true);
  else maybe_yield();
}
SIM_API void sim_fail(const char* message) { fail("%s", message); }
SIM_API long long sim_clock() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// ---- UBSan: the data records are those that GCC emits

namespace {

struct Source {
  const char* file;
  unsigned line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];
};
struct TypeMismatch {
  Source at;
  Type* type;
  unsigned char log_alignment, kind;
};
struct OutOfBounds {
  Source at;
  Type *array, *index;
};
struct Overflow {
  Source at;
  Type* type;
};

void undefined(const Source& at, const std::string& what) {
  if (current >= 0 && check_level)
    fail("%s at %s:%u by %s", what.c_str(), base_name(at.file), at.line, who().c_str());
}

std::string operand(const Type* type, uintptr_t v) {
  bool is_int32 = (type->info >> 1) == 5;  // log2 of the width in bits
  return std::to_string(is_int32 ? (long)(int)v : (long)v);
}

}  // namespace

SIM_API void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t p) {
  auto* d = (TypeMismatch*)data;
  char text[256];
  snprintf(text, sizeof text, "misaligned access to %s at %p, which needs a multiple of %u",
           d->type->name, (void*)p, 1u << d->log_alignment);
  undefined(d->at, text);
}
SIM_API void __ubsan_handle_out_of_bounds(void* data, uintptr_t index) {
  auto* d = (OutOfBounds*)data;
  undefined(d->at, "index " + std::to_string((long)index) + " out of bounds of " + d->array->name);
}
#define OVERFLOW_HOOK(NAME, SIGN)                                                              \
  SIM_API void __ubsan_handle_##NAME##_overflow(void* data, uintptr_t a, uintptr_t b) {        \
    auto* d = (Overflow*)data;                                                                 \
    undefined(d->at, "signed overflow: " + operand(d->type, a) + SIGN + operand(d->type, b)); \
  }
OVERFLOW_HOOK(add, " + ")
OVERFLOW_HOOK(sub, " - ")
OVERFLOW_HOOK(mul, " * ")
OVERFLOW_HOOK(divrem, " / ")
SIM_API void __ubsan_handle_negate_overflow(void* data, uintptr_t) {
  undefined(*(Source*)data, "signed overflow in a negation");
}
SIM_API void __ubsan_handle_shift_out_of_bounds(void* data, uintptr_t a, uintptr_t b) {
  undefined(*(Source*)data, "shift out of range: " + std::to_string((long)a) + " by " +
                                std::to_string((long)b));
}
