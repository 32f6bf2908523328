// The C functions that take the place of CUDA's runtime and driver under CuPy. Their signatures
// are those in capi.py, which compares them with CuPy's own before it puts them in.
//
// Every allocation has its exact size, guard gaps, and memory filled with NaN / -1 (the first
// 16 MB of it, so that a test can reserve gigabytes and touch little).
#include <Python.h>

#include "sim.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <dlfcn.h>

using namespace sim;

namespace {

constexpr size_t FILLED = 16 << 20;
constexpr size_t GAP = 256, DEVICE_BYTES = (size_t)8 << 30;
enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_FOUND = 500 };

// Python objects handed in by sim_setup.
PyObject *runtime_error, *driver_error, *kernel_error, *pointer_attributes, *device_properties,
    *on_launch;
int runtime_version, checking;

using Event = std::chrono::steady_clock::time_point;

std::map<uintptr_t, size_t> live;
size_t bytes_in_use, allocations, synchronisations;
intptr_t next_handle = 0x5100;

struct Function {
  void (*thunk)(void**);
  std::string name;
  int n_params;
  int params[5 * 64];  // see describe() in device/cudasim.h
  int check;
  size_t dynamic_limit;
};

PyObject* none() { Py_RETURN_NONE; }

PyObject* raise(PyObject* make_error, int status) {  // make_error: status -> exception
  PyObject* error = PyObject_CallFunction(make_error, "i", status);
  if (error) {
    PyErr_SetObject((PyObject*)Py_TYPE(error), error);
    Py_DECREF(error);
  }
  return nullptr;
}

intptr_t allocate(size_t bytes, bool host) {
  if (!bytes) return 0;
  if (bytes > DEVICE_BYTES - bytes_in_use) {
    raise(runtime_error, OUT_OF_MEMORY);
    return 0;
  }
  size_t total = (bytes + 2 * GAP + 255) & ~(size_t)255;
  char* block = (char*)aligned_alloc(256, total);
  if (!block) {
    raise(runtime_error, OUT_OF_MEMORY);
    return 0;
  }
  memset(block, 0xFF, std::min(total, FILLED));
  uintptr_t p = (uintptr_t)block + GAP;
  live[p] = bytes;
  bytes_in_use += bytes;
  char name[80];
  snprintf(name, sizeof name, "%s allocation #%zu (%zu bytes)", host ? "host" : "device",
           ++allocations, bytes);
  sim_add_range(p, bytes, host ? KIND_HOST : KIND_GLOBAL, name, host);
  return (intptr_t)p;
}

PyObject* release(intptr_t p) {
  if (!p) return none();
  auto it = live.find((uintptr_t)p);
  if (it == live.end()) return raise(runtime_error, INVALID_VALUE);
  bytes_in_use -= it->second;
  live.erase(it);
  sim_drop_range((uintptr_t)p);
  free((char*)p - GAP);
  return none();
}

bool on_device(intptr_t p, size_t bytes) { return sim_range_kind(p, bytes) == KIND_GLOBAL; }

PyObject* copy(intptr_t to, intptr_t from, size_t bytes, int kind) {
  enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST, DEVICE_TO_DEVICE };
  if (!bytes) return none();
  bool to_device = kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE;
  bool from_device = kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE;
  if ((to_device && !on_device(to, bytes)) || (from_device && !on_device(from, bytes)))
    return raise(runtime_error, INVALID_VALUE);
  memmove((void*)to, (void*)from, bytes);
  sim_mark_written(to, bytes);
  return none();
}

PyObject* fill(intptr_t p, int value, size_t bytes) {
  if (!bytes) return none();
  if (!on_device(p, bytes)) return raise(runtime_error, INVALID_VALUE);
  memset((void*)p, value, bytes);
  sim_mark_written(p, bytes);
  return none();
}

PyObject* synchronise() {
  ++synchronisations;
  return none();
}

}  // namespace

SIM_API void sim_setup(PyObject* objects, int version, int check) {
  PyObject** slots[] = {&runtime_error,      &driver_error,      &kernel_error,
                        &pointer_attributes, &device_properties, &on_launch};
  for (int i = 0; i < 6; ++i) {
    *slots[i] = PyTuple_GetItem(objects, i);
    Py_INCREF(*slots[i]);
  }
  runtime_version = version;
  checking = check;
}
SIM_API size_t sim_synchronisations() { return synchronisations; }
SIM_API size_t sim_bytes_in_use() { return bytes_in_use; }

// ---- memory
SIM_API intptr_t rt_malloc(size_t n, int) { return allocate(n, false); }
SIM_API intptr_t rt_mallocManaged(size_t n, int, void*) { return allocate(n, false); }
SIM_API intptr_t rt_mallocAsync(size_t n, intptr_t, int) { return allocate(n, false); }
SIM_API intptr_t rt_hostAlloc(size_t n, unsigned, int) { return allocate(n, true); }
SIM_API PyObject* rt_free(intptr_t p, int) { return release(p); }
SIM_API PyObject* rt_freeAsync(intptr_t p, intptr_t, int) { return release(p); }
SIM_API PyObject* rt_freeHost(intptr_t p, int) { return release(p); }
SIM_API PyObject* rt_memcpy(intptr_t to, intptr_t from, size_t n, int kind, int) {
  ++synchronisations;
  return copy(to, from, n, kind);
}
SIM_API PyObject* rt_memcpyAsync(intptr_t to, intptr_t from, size_t n, int kind, intptr_t, int) {
  return copy(to, from, n, kind);
}
SIM_API PyObject* rt_memset(intptr_t p, int v, size_t n, int) { return fill(p, v, n); }
SIM_API PyObject* rt_memsetAsync(intptr_t p, int v, size_t n, intptr_t, int) { return fill(p, v, n); }
SIM_API PyObject* rt_memGetInfo(int) {
  return Py_BuildValue("(nn)", (Py_ssize_t)(DEVICE_BYTES - bytes_in_use), (Py_ssize_t)DEVICE_BYTES);
}
SIM_API PyObject* rt_pointerGetAttributes(intptr_t p, int) {
  bool d = on_device(p, 1);
  return PyObject_CallFunction(pointer_attributes, "iLLi", d ? 0 : -1, (long long)(d ? p : 0),
                               (long long)p, d ? 2 : 0);
}
SIM_API int rt_pointerGetMemoryType(intptr_t p, int) { return on_device(p, 1) ? 2 : 1; }

// ---- one device, which calls itself 9.0
SIM_API int rt_getDevice(int) { return 0; }
SIM_API int rt_getDeviceCount(int) { return 1; }
SIM_API PyObject* rt_setDevice(int d, int) { return d ? raise(runtime_error, INVALID_DEVICE) : none(); }
SIM_API int rt_driverGetVersion(int) { return runtime_version; }
SIM_API int rt_runtimeGetVersion(int) { return runtime_version; }
SIM_API PyObject* rt__ensure_context(void) { return none(); }
SIM_API int rt_deviceGetAttribute(int attribute, int, int) {
  switch (attribute) {  // numbers of cudaDeviceAttr
    case 75: return 9;               // compute capability, major
    case 76: return 0;               // and minor
    case 1: case 2: case 3: return 1024;  // threads a block, block x, block y
    case 4: return 64;               // block z
    case 5: return 2147483647;       // grid x
    case 6: case 7: return 65535;    // grid y, z
    case 8: return 49152;            // shared memory a block
    case 97: return 232448;          // the same, opt-in
    case 10: return 32;              // warp size
    case 16: return 132;             // multiprocessors
    case 39: return 2048;            // threads a multiprocessor
    default: return 0;
  }
}
SIM_API PyObject* rt_getDeviceProperties(int d, int) {
  return PyObject_CallFunction(device_properties, "i", d);
}

// ---- streams and events: everything has run when the call that asked for it returns
SIM_API PyObject* rt_deviceSynchronize(int) { return synchronise(); }
SIM_API intptr_t rt_streamCreate(int) { return next_handle += 16; }
SIM_API intptr_t rt_streamCreateWithFlags(unsigned, int) { return next_handle += 16; }
SIM_API intptr_t rt_streamCreateWithPriority(unsigned, int, int) { return next_handle += 16; }
SIM_API PyObject* rt_streamDestroy(intptr_t, int) { return none(); }
SIM_API PyObject* rt_streamSynchronize(intptr_t, int) { return synchronise(); }
SIM_API PyObject* rt_streamQuery(intptr_t, int) { return none(); }
SIM_API int rt_streamIsCapturing(intptr_t, int) { return 0; }
SIM_API PyObject* rt_streamWaitEvent(intptr_t, intptr_t, int, void*) { return none(); }
SIM_API unsigned rt_streamGetFlags(intptr_t, int) { return 0; }
SIM_API int rt_streamGetPriority(intptr_t, int) { return 0; }
SIM_API intptr_t rt_eventCreate(int) { return (intptr_t) new Event; }
SIM_API intptr_t rt_eventCreateWithFlags(unsigned, int) { return (intptr_t) new Event; }
SIM_API PyObject* rt_eventDestroy(intptr_t event, int) {
  delete (Event*)event;
  return none();
}
SIM_API PyObject* rt_eventRecord(intptr_t event, intptr_t, int) {
  *(Event*)event = std::chrono::steady_clock::now();
  return none();
}
SIM_API PyObject* rt_eventSynchronize(intptr_t, int) { return synchronise(); }
SIM_API PyObject* rt_eventQuery(intptr_t, int) { return PyLong_FromLong(0); }  // through with it
SIM_API float rt_eventElapsedTime(intptr_t start, intptr_t end, int) {
  return std::chrono::duration<float, std::milli>(*(Event*)end - *(Event*)start).count();
}

// ---- modules: the image is the path of a library made by build.py
SIM_API intptr_t drv_moduleLoadData(PyObject* image, int) {
  char* path;
  Py_ssize_t n;
  if (PyBytes_AsStringAndSize(image, &path, &n)) return 0;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    PyErr_SetString(kernel_error, dlerror());
    return 0;
  }
  if (checking) sim_add_module(base_name(path));
  return (intptr_t)library;
}
SIM_API PyObject* drv_moduleUnload(intptr_t, int) { return none(); }  // messages need its symbols
SIM_API intptr_t drv_moduleGetFunction(intptr_t library, PyObject* name, int) {
  std::string s = PyUnicode_AsUTF8(name);
  auto* thunk = (void (*)(void**))dlsym((void*)library, ("sim_thunk_" + s).c_str());
  auto* describe = (int (*)(int*))dlsym((void*)library, ("sim_describe_" + s).c_str());
  if (!thunk || !describe) {
    raise(driver_error, NOT_FOUND);
    return 0;
  }
  auto* check = (const int*)dlsym((void*)library, "sim_check_level");
  auto* f = new Function{thunk, s, 0, {0}, check && checking ? *check : CHECK_NONE, 48 << 10};
  f->n_params = describe(f->params);
  return (intptr_t)f;
}
SIM_API int sim_function_params(intptr_t f, int* out) {
  memcpy(out, ((Function*)f)->params, sizeof Function::params);
  return ((Function*)f)->n_params;
}
SIM_API intptr_t drv_moduleGetGlobal(intptr_t library, PyObject* name, int) {
  void* p = dlsym((void*)library, PyUnicode_AsUTF8(name));
  if (!p) raise(driver_error, NOT_FOUND);
  return (intptr_t)p;
}
SIM_API int drv_funcGetAttribute(int attribute, intptr_t f, int) {
  switch (attribute) {  // numbers of CUfunction_attribute
    case 0: return 1024;                                  // threads a block
    case 4: return 32;                                    // registers: not known here
    case 5: case 6: return 90;                            // PTX and binary version
    case 8: return (int)((Function*)f)->dynamic_limit;
    default: return 0;
  }
}
SIM_API PyObject* drv_funcSetAttribute(intptr_t f, int attribute, int value, int) {
  if (attribute == 8) {
    if (value > 232448) return raise(driver_error, INVALID_VALUE);
    ((Function*)f)->dynamic_limit = value;
  }
  return none();
}
SIM_API PyObject* drv_launchKernel(intptr_t function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   intptr_t, intptr_t params, intptr_t, int) {
  auto* f = (Function*)function;
  if (on_launch != Py_None) {
    PyObject* r = PyObject_CallFunction(on_launch, "s(III)(III)I", f->name.c_str(), gx, gy, gz, bx,
                                        by, bz, shared);
    if (!r) return nullptr;
    Py_DECREF(r);
  }
  const unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
  check_level = f->check;
  dynamic_limit = f->dynamic_limit;
  int status = sim_launch(f->thunk, (void**)params, grid, block, shared);
  check_level = CHECK_NONE;
  if (status == 1) return raise(driver_error, INVALID_VALUE);
  if (status) {
    PyErr_Format(kernel_error, "%s: %s", f->name.c_str(), sim_error());
    return nullptr;
  }
  return none();
}
SIM_API PyObject* drv_launchCooperativeKernel(intptr_t, unsigned, unsigned, unsigned, unsigned,
                                              unsigned, unsigned, unsigned, intptr_t, intptr_t, int) {
  PyErr_SetString(PyExc_NotImplementedError,
                  "cooperative launches are not simulated: blocks run one after another");
  return nullptr;
}
SIM_API intptr_t drv_ctxGetCurrent(int) { return 0x10; }
SIM_API int drv_ctxGetDevice(int) { return 0; }
SIM_API PyObject* drv_ctxSetCurrent(intptr_t, int) { return none(); }
SIM_API int drv_occupancyMaxActiveBlocksPerMultiprocessor(intptr_t, int, size_t, int) { return 2; }
SIM_API PyObject* drv_occupancyMaxPotentialBlockSize(intptr_t, size_t, int, int) {
  return Py_BuildValue("(ii)", 264, 256);
}
