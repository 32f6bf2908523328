"""From CUDA C++ to C++: two rewrites of preprocessed text, and a way in for every kernel."""

import hashlib
import re

_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+([^;{}()=]*?)\s*([A-Za-z_]\w*)\s*\[\s*\]\s*;", re.S
)
_STATIC_SHARED = re.compile(r"\b__shared__\s+([^;{}=]*?)\s*;", re.S)


def translate(text: str) -> str:
    """Turn shared memory into references to the simulator's, and kernels into plain functions."""
    text = _DYNAMIC_SHARED.sub(r"\1* const \2 = reinterpret_cast<\1*>(sim_dynamic_shared());", text)
    text = _STATIC_SHARED.sub(lambda m: _static_shared(m.group(1)), text)
    return text.replace("__global__", '__attribute__((noinline, visibility("default")))')


def _static_shared(declaration: str) -> str:
    """`T a[N], b` becomes one reference each; the address of a static says which variable it is."""
    first, *rest = _split_declarators(declaration)
    match = re.search(r"([A-Za-z_]\w*)(\s*(?:\[.*)?)$", first.rstrip(), re.S)
    assert match, f"cannot read the __shared__ declaration {declaration!r}"
    kind = first[: match.start()]
    names = [match.groups()]
    names += [re.match(r"\s*([A-Za-z_]\w*)(.*)$", part, re.S).groups() for part in rest]
    return " ".join(
        f"typedef {kind} {name}_sim_t{extent}; static char {name}_sim_k;"
        f" {name}_sim_t& {name} = *({name}_sim_t*)sim_shared("
        f'&{name}_sim_k, sizeof({name}_sim_t), alignof({name}_sim_t), "{name}");'
        for name, extent in names
    )


def _split_declarators(declaration: str) -> list[str]:
    """Split at commas that are in no bracket."""
    depth, parts = 0, [""]
    for char in declaration:
        depth += (char in "[(<{") - (char in "])>}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def plain_kernels(preprocessed: str) -> list[str]:
    """Names of the `__global__` functions that are no templates."""
    text = re.sub(r"^#.*$", "", preprocessed, flags=re.M)
    names = []
    for match in re.finditer(r"\b__global__\b", text):
        before = text[max(0, match.start() - 400) : match.start()].rstrip()
        before = re.sub(r'(\bextern\s+"C"|\bstatic|\binline)\s*$', "", before).rstrip()
        name = re.match(
            r"(?:\s|void\b|__attribute__\s*\(\(.*?\)\))*([A-Za-z_]\w*)\s*\(",
            text[match.end() : match.end() + 600],
        )
        if name and not before.endswith(">") and name.group(1) not in names:
            names.append(name.group(1))
    return names


def symbol(kernel: str) -> str:
    """The C name of a kernel, or of a template instance such as `f<float, int>`."""
    if re.fullmatch(r"\w+", kernel):
        return kernel
    readable = re.sub(r"\W+", "_", kernel).strip("_")
    return f"{readable}_{hashlib.sha256(kernel.encode()).hexdigest()[:8]}"


def entry_points(kernel: str) -> str:
    """A function that calls the kernel with untyped arguments, and one that tells their types."""
    name = symbol(kernel)
    return (
        f'\nextern "C" __attribute__((no_sanitize("thread"))) void sim_thunk_{name}(void** a)'
        f" {{ cudasim::invoke(&{kernel}, a); }}"
        f'\nextern "C" int sim_describe_{name}(int* out)'
        f" {{ return cudasim::describe(&{kernel}, out); }}"
    )
