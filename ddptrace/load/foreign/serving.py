"""Whether a file shows a model that is served, not trained: no backward, and the ranges of a known engine."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from ddptrace.load.foreign.trace import OPTIMIZER_STEP, Trace
from ddptrace.load.kineto.events import Category
from ddptrace.load.windows.device import of_category

ENGINES: Final = (
    ("vLLM", r"^vllm::|(?:^|/)vllm/"),
    ("SGLang", r"^sgl_kernel::|(?:^|/)sglang/srt/|^step\[(?:DECODE|EXTEND|PREFILL|MIXED)\b"),
    ("TensorRT-LLM", r"^trtllm::|(?:^|/)tensorrt_llm/"),
    ("Transformers", r"(?:^|/)transformers/(?:pipelines|generation)/"),
    ("an inference engine", r"^execute_(?:\d+_)?context_\d*\(.*_generation_\d*\("),
)
"""Names of operators, annotations and Python functions; the first engine that has any is it."""
OF_ENGINES: Final = re.compile("|".join(pattern for _, pattern in ENGINES))


def served_by(trace: Trace) -> str:
    """The engine that serves a model here; empty where a backward or an update was recorded, or no engine is seen."""
    if trace.is_node.any() or trace.named((OPTIMIZER_STEP,)).any():
        return ""
    ranges = of_category(trace.events, Category.OP, Category.ANNOTATION, Category.FRAME)
    names = (trace.events.names[i] for i in np.unique(trace.events.name[ranges]).tolist())
    seen = [name for name in names if OF_ENGINES.search(name)]
    return next((engine for engine, pattern in ENGINES if any(re.search(pattern, name) for name in seen)), "")
