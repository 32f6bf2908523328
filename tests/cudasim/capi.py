"""Put the simulator's functions in the place of CUDA's, in the tables CuPy itself calls through.

CuPy's extension modules find each other's C functions in `__pyx_capi__`: a dictionary of capsules,
each named by the C signature of its function. A module reads the table when it is first imported;
so swapping capsules before that redirects every call, with no change to a file of CuPy's. The
signature is compared first, and a CuPy that differs is refused.
"""

import ctypes
import re
from types import ModuleType
from typing import Any

_P = ctypes.pythonapi
_P.PyCapsule_GetName.restype = ctypes.c_char_p
_P.PyCapsule_GetName.argtypes = [ctypes.py_object]
_P.PyCapsule_New.restype = ctypes.py_object
_P.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

# Return type and parameters. A trailing `...` is a structure of optional arguments; every function
# but `_ensure_context` has one more parameter of Cython's own.
RUNTIME = {
    "malloc": "intptr_t (size_t)",
    "mallocManaged": "intptr_t (size_t, ...)",
    "mallocAsync": "intptr_t (size_t, intptr_t)",
    "hostAlloc": "intptr_t (size_t, unsigned int)",
    "free": "PyObject *(intptr_t)",
    "freeAsync": "PyObject *(intptr_t, intptr_t)",
    "freeHost": "PyObject *(intptr_t)",
    "memcpy": "PyObject *(intptr_t, intptr_t, size_t, int)",
    "memcpyAsync": "PyObject *(intptr_t, intptr_t, size_t, int, intptr_t)",
    "memset": "PyObject *(intptr_t, int, size_t)",
    "memsetAsync": "PyObject *(intptr_t, int, size_t, intptr_t)",
    "memGetInfo": "PyObject *()",
    "pointerGetAttributes": "PointerAttributes *(intptr_t)",
    "pointerGetMemoryType": "int (intptr_t)",
    "getDevice": "int ()",
    "getDeviceCount": "int ()",
    "setDevice": "PyObject *(int)",
    "driverGetVersion": "int ()",
    "runtimeGetVersion": "int ()",
    "_ensure_context": "PyObject *(void)",
    "deviceGetAttribute": "int (int, int)",
    "getDeviceProperties": "PyObject *(int)",
    "deviceSynchronize": "PyObject *()",
    "streamCreate": "intptr_t ()",
    "streamCreateWithFlags": "intptr_t (unsigned int)",
    "streamCreateWithPriority": "intptr_t (unsigned int, int)",
    "streamDestroy": "PyObject *(intptr_t)",
    "streamSynchronize": "PyObject *(intptr_t)",
    "streamQuery": "PyObject *(intptr_t)",
    "streamIsCapturing": "int (intptr_t)",
    "streamWaitEvent": "PyObject *(intptr_t, intptr_t, ...)",
    "streamGetFlags": "unsigned int (intptr_t)",
    "streamGetPriority": "int (intptr_t)",
    "eventCreate": "intptr_t ()",
    "eventCreateWithFlags": "intptr_t (unsigned int)",
    "eventDestroy": "PyObject *(intptr_t)",
    "eventRecord": "PyObject *(intptr_t, intptr_t)",
    "eventSynchronize": "PyObject *(intptr_t)",
    "eventQuery": "PyObject *(intptr_t)",
    "eventElapsedTime": "float (intptr_t, intptr_t)",
}
DRIVER = {
    "moduleLoadData": "intptr_t (PyObject *)",
    "moduleUnload": "PyObject *(intptr_t)",
    "moduleGetFunction": "intptr_t (intptr_t, PyObject *)",
    "moduleGetGlobal": "intptr_t (intptr_t, PyObject *)",
    "funcGetAttribute": "int (int, intptr_t)",
    "funcSetAttribute": "PyObject *(intptr_t, int, int)",
    "launchKernel": "PyObject *(intptr_t, unsigned int, unsigned int, unsigned int, unsigned int,"
    " unsigned int, unsigned int, unsigned int, intptr_t, intptr_t, intptr_t)",
    "launchCooperativeKernel": "PyObject *(intptr_t, unsigned int, unsigned int, unsigned int,"
    " unsigned int, unsigned int, unsigned int, unsigned int, intptr_t, intptr_t)",
    "ctxGetCurrent": "intptr_t ()",
    "ctxGetDevice": "int ()",
    "ctxSetCurrent": "PyObject *(intptr_t)",
    "occupancyMaxActiveBlocksPerMultiprocessor": "int (intptr_t, int, size_t)",
    "occupancyMaxPotentialBlockSize": "PyObject *(intptr_t, size_t, int)",
}

_CTYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "float": ctypes.c_float,
    "intptr_t": ctypes.c_ssize_t,
    "size_t": ctypes.c_size_t,
    "PyObject *": ctypes.py_object,
    "PointerAttributes *": ctypes.py_object,
}
_keep: list[Any] = []  # capsules do not own their names


def _parameters(signature: str) -> tuple[str, list[str]]:
    result, inner = re.fullmatch(r"(.*?) ?\((.*)\)", signature).groups()
    return result, [part.strip() for part in inner.split(",") if part.strip()]


def _capsule_name(signature: str, name: str, module: str) -> str:
    """The signature as Cython spells it, without blanks."""
    mangled = "_".join(f"{len(part)}{part}" for part in module.split("."))
    result, parameters = _parameters(signature)
    optional = "..." in parameters
    parameters = [p for p in parameters if p != "..."]
    if parameters != ["void"]:
        parameters.append("int __pyx_skip_dispatch")
    if optional:
        parameters.append(f"struct __pyx_opt_args_{mangled}_{name} *__pyx_optional_args")
    if result.startswith("Pointer"):
        result = f"struct __pyx_obj_{mangled}_{result}"
    return f"{result}({','.join(parameters)})".replace(" ", "")


def _python_function(address: int, signature: str) -> Any:
    """The same function for callers in Python, who look it up in the module."""
    result, parameters = _parameters(signature)
    optional = "..." in parameters
    types = [_CTYPES[p] for p in parameters if p in _CTYPES]
    hidden = [] if parameters == ["void"] else [ctypes.c_int]
    hidden += [ctypes.c_void_p] if optional else []
    function = ctypes.PYFUNCTYPE(_CTYPES[result], *types, *hidden)(address)
    values = [0, None][: len(hidden)]
    return lambda *args: function(*args[: len(types)], *values)


def swap(module: ModuleType, table: dict[str, str], prefix: str, library: ctypes.PyDLL) -> None:
    """Redirect the functions of `table` in `module` to `<prefix><name>` of the simulator."""
    capsules = module.__pyx_capi__
    for name, signature in table.items():
        found = _P.PyCapsule_GetName(capsules[name]).decode()
        expected = _capsule_name(signature, name, module.__name__)
        if found.replace(" ", "") != expected:
            raise ImportError(
                f"the simulator was written for CuPy 14.2, not for this one: {module.__name__}."
                f"{name} is {found!r}, expected {expected!r}"
            )
        address = ctypes.cast(getattr(library, prefix + name), ctypes.c_void_p).value
        text = ctypes.create_string_buffer(found.encode())
        _keep.append(text)
        capsules[name] = _P.PyCapsule_New(address, ctypes.cast(text, ctypes.c_char_p), None)
        if hasattr(module, name):
            setattr(module, name, _python_function(address, signature))
