"""CuPy's compiler, with g++ in the place of NVRTC."""

from importlib import import_module
from typing import Any

from .build import compile_kernels
from .errors import CompileError


def install(compiler: Any, check: bool) -> None:
    """Replace the program class of `cupy.cuda.compiler`; everything around it stays CuPy's."""

    class Program:
        """The interface of `_NVRTCProgram`. The "machine code" is the path of a library."""

        def __init__(
            self,
            src: str,
            name: str = "default_program",
            headers: Any = (),
            include_names: Any = (),
            name_expressions: Any = None,
            method: str = "ptx",
        ) -> None:
            self.source, self.name, self.instances = src, name, tuple(name_expressions or ())

        def compile(self, options: Any = (), log_stream: Any = None) -> Any:
            if not self.source:  # CuPy asks what an empty file becomes, for its cache key
                return b"// cudasim\n", None
            # CUDA's own headers are not for g++; device/ has what stands for them.
            ours = [o for o in options if not o.startswith("-I") or "cupy/_core/include" in o]
            try:
                library, mapping = compile_kernels(self.source, self.instances, ours, check)
            except CompileError as error:
                raise compiler.CompileException(
                    str(error), self.source, self.name, options, "cudasim"
                ) from None
            return str(library).encode(), mapping or None

    compiler._NVRTCProgram = Program
    compiler._nvrtc_version = (12, 9)
    import_module("cupy_backends.cuda.libs.nvrtc").getVersion = lambda: (12, 9)
