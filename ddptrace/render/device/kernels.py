"""Names of kernels as a person can read them: C++ writes a kernel's whole template into its name."""

from __future__ import annotations

import functools
import re
from typing import Final

NAME_MAX: Final = 80
HULLS: Final = ("Kernel", "Kernel2")
"""Of CUTLASS: what they are instantiated with is the kernel."""
DEVICE_KERNEL: Final = "device_kernel"
"""Another one of CUTLASS: of those kernels the namespace often tells more than the name."""
WRAPPERS: Final = re.compile(r"\w*elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel")
"""Names that tell little without what they are instantiated with."""
SAY_NOTHING: Final = frozenset((
    "AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "ReduceOp", "TensorListMetadata", "func_wrapper_t",
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "BFloat16", "Half", "complex", "unsigned", "double",
    "enable_sm80", "enable_sm90", "enable_sm90_or_later", "enable_sm80_to_sm89",
))  # fmt: skip
"""Template arguments that only wrap another one, and types."""
IS_FUNCTION: Final = re.compile(r"[^<(]*[^<( ][<(]")
"""Template or arguments follow the name at once."""
INNERMOST: Final = re.compile(r"<[^<>]*>")
COMPARISON: Final = ")>("
"""In an argument of a template, not its end."""
WORD: Final = re.compile(r"(?:\b(\w+)::)?\b([A-Za-z_]\w{5,})\b(?!::)")
"""With the namespace that it is in."""


@functools.lru_cache(65536)
def kernel_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template and arguments; of a wrapper also what it runs:
    `vectorized_elementwise_kernel<CUDAFunctor_add>`. What is no C++ function (`Memcpy HtoD (Pinned -> Device)`) stays.
    """
    plain = name.replace("(anonymous namespace)::", "")
    if IS_FUNCTION.match(plain):
        own = own_name(plain)
        is_hull = own in HULLS or own == DEVICE_KERNEL
        inside = instantiated_with(plain, own == DEVICE_KERNEL) if is_hull or WRAPPERS.fullmatch(own) else ""
        plain = own if not inside else inside if is_hull else f"{own}<{inside}>"
    shown = plain or name
    return shown if len(shown) <= NAME_MAX else f"{shown[: NAME_MAX - 1]}…"


def own_name(name: str) -> str:
    """Of `void a::b<c<d> >(e)`: b."""
    bare, shorter = name.replace("->", " ").replace(COMPARISON, ")("), ""
    while bare != shorter:
        bare, shorter = INNERMOST.sub("", bare), bare
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].strip()
    return bare.split(" ")[-1].split("::")[-1]


def instantiated_with(name: str, with_namespace: bool) -> str:
    """The first template argument that tells anything."""
    found = (match for match in WORD.finditer(name, name.find("<") + 1) if match[2] not in SAY_NOTHING)
    first = next(found, None)
    if first is None:
        return ""
    return f"{first[1]}::{first[2]}" if with_namespace and first[1] else first[2]
