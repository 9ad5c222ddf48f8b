"""What kind of work a kernel is: told by its name, and by the operator and the range around its launch.

void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)
     ├──────── the function's own name: asked first ────────┤├─ then all of it ───────┤
"""

from __future__ import annotations

import functools
import re
from enum import StrEnum
from typing import Final

from ddptrace.load.tables import Operation, Work


class Category(StrEnum):
    """What a kernel, copy or fill is for."""

    MATRIX = "matrix product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"  # softmax and losses among them
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"
    COPY = "copy"  # or fill
    COMMUNICATION = "communication"
    OTHER = "other"


NORMS: Final = r"(?:layer|rms|batch|group|instance)_?norm"
RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), category)
    for pattern, category in (
        (r"reshape_and_cache|store_?kv", Category.OTHER),
        (r"^triton_poi_|^triton_for_", Category.ELEMENTWISE),
        (rf"^triton_(?:red|per)_.*{NORMS}", Category.NORMALIZATION),
        (r"^triton_(?:red|per)_", Category.REDUCTION),
        (r"^triton_tem_.*attention", Category.ATTENTION),
        (r"^triton_tem_", Category.MATRIX),
        (r"flash|fmha|attention|attn|sdpa|\bmha", Category.ATTENTION),
        (r"conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|igemm_(?:fwd|bwd|wrw)|im2col", Category.CONVOLUTION),
        (rf"{NORMS}|\bbn_(?:fw|bw)|\bln_(?:fwd|bwd)|GammaBeta|RowwiseMoments", Category.NORMALIZATION),
        (r"multi_tensor_apply|adam|\blamb(?!da)|\bsgd", Category.OPTIMIZER),
        (r"(?<!fb)gemm|gemv|Cijk_|nvjet|splitk|matmul|xmma|\bbmm_|\bdot_kernel", Category.MATRIX),
        (r"reduce|softmax|nll_loss|cross_?entropy|logsumexp|argm(?:ax|in)", Category.REDUCTION),
        (
            r"elementwise|CatArrayBatchedCopy|dropout|act_and_mul|swiglu|silu|gelu|rotary|cast|quant",
            Category.ELEMENTWISE,
        ),
    )
)
"""The first that fits counts."""
OF_OPERATION: Final = {
    Operation.MATRIX: Category.MATRIX,
    Operation.ATTENTION: Category.ATTENTION,
    Operation.CONVOLUTION: Category.CONVOLUTION,
}
OF_UPDATE: Final = frozenset((Category.NORMALIZATION, Category.REDUCTION, Category.ELEMENTWISE, None))
"""What an optimizer's own arithmetic looks like. A matrix product inside of an update stays one."""
OPTIMIZER_RANGE: Final = "Optimizer."
"""How torch begins the name of the range around an update."""


def category_of(name: str, kind: Work, operation: Operation, is_main: bool, annotation: str) -> Category:
    """Tell the category of one kernel, copy or fill.

    Args:
        name: Its name in the file.
        kind: What the device was busy with.
        operation: What kind of operator launched it.
        is_main: It is the kernel that does that operator's counted work.
        annotation: The innermost range around the launch; empty where there is none.
    """
    if kind is Work.COMM:
        return Category.COMMUNICATION
    if kind is Work.MEMORY:
        return Category.COPY
    if is_main:
        return OF_OPERATION[operation]
    told = category_named(name)
    if annotation.startswith(OPTIMIZER_RANGE) and told in OF_UPDATE:
        return Category.OPTIMIZER
    if told is None or told is Category.MATRIX:  # some convolutions and attentions multiply matrices
        return OF_OPERATION.get(operation, told or Category.OTHER)
    return told


@functools.lru_cache(65536)
def category_named(name: str) -> Category | None:
    """Tell the category of a kernel of this name; None where the name tells none."""
    plain = name.replace("(anonymous namespace)::", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0]
    return next((category for text in (own, plain) for rule, category in RULES if rule.search(text)), None)
