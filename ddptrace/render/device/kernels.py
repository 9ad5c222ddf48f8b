"""Names of kernels as a person can read them: C++ writes a kernel's whole template into its name."""

from __future__ import annotations

import functools
import re
from typing import Final

NAME_MAX: Final = 80
HULLS: Final = ("Kernel", "Kernel2")
"""Of CUTLASS: what they are instantiated with is the kernel."""
WRAPPERS: Final = re.compile(r"\w*elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel")
"""Names that tell little without what they are instantiated with."""
SAY_NOTHING: Final = frozenset((
    "AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "ReduceOp", "TensorListMetadata", "func_wrapper_t",
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "BFloat16", "Half", "complex", "unsigned", "double",
))  # fmt: skip
"""Template arguments that only wrap another one, and types."""
IS_FUNCTION: Final = re.compile(r"[^<(]*[^<( ][<(]")
"""Template or arguments follow the name at once."""
INNERMOST: Final = re.compile(r"<[^<>]*>")
WORD: Final = re.compile(r"\b([A-Za-z_]\w{5,})\b(?!::)")


@functools.lru_cache(65536)
def kernel_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template and arguments; of a wrapper also what it runs:
    `vectorized_elementwise_kernel<CUDAFunctor_add>`. What is no C++ function (`Memcpy HtoD (Pinned -> Device)`) stays.
    """
    plain = name.replace("(anonymous namespace)::", "")
    if IS_FUNCTION.match(plain):
        own = own_name(plain)
        inside = instantiated_with(plain) if own in HULLS or WRAPPERS.fullmatch(own) else ""
        plain = own if not inside else inside if own in HULLS else f"{own}<{inside}>"
    shown = plain or name
    return shown if len(shown) <= NAME_MAX else f"{shown[: NAME_MAX - 1]}…"


def own_name(name: str) -> str:
    """Of `void a::b<c<d> >(e)`: b."""
    bare, shorter = name.replace("->", " "), ""
    while bare != shorter:
        bare, shorter = INNERMOST.sub("", bare), bare
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].strip()
    return bare.split(" ")[-1].split("::")[-1]


def instantiated_with(name: str) -> str:
    """The first template argument that tells anything."""
    words = (match[1] for match in WORD.finditer(name, name.find("<") + 1))
    return next((word for word in words if word not in SAY_NOTHING), "")
