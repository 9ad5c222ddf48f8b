"""What does not run on the test device, and why. Each has a program that shows it, in `programs/refused.py`.

| what | who refuses | why |
|---|---|---|
| `bf16_compress_hook` in stock DDP | torch | `_check_comm_hook` takes it for NCCL and XCCL only; in a function of the \
program's it runs |
| `nn.LSTM` | torch | it calls `_thnn_fused_lstm_cell` on every device but the CPU, which has no kernel of that name |
| Inductor, the usual backend of `torch.compile` | torch | it generates code for devices that are registered with it; \
Dynamo and AOTAutograd run |
| DDP's own times (`_get_ddp_logging_data`) | torch | its timers exist for CPU and CUDA; others get a warning |
| `PowerSGD` over Gloo on the CPU, to compare with | torch | its callbacks wait for each other on Gloo's two threads |
| `reduce_scatter` of lists | the test device | FSDP2 and DTensor use `reduce_scatter_tensor` |
| CUDA graphs, NCCL's Flight Recorder, symmetric memory | torch | they are CUDA's own |
| several devices in a process | the test device | a rank has one |

`EXPECTED` has the error of those that fail at once. A newer torch that lets one run makes its test fail: then it moves
to `programs/strategies.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXPECTED: Final[Mapping[str, str]] = {
    "bf16_compress_hook": "BF16 all reduce communication hook required",
    "lstm": "_thnn_fused_lstm_cell",
    "reduce_scatter": "does not support reduce_scatter",
    "timers": "no timer",
}
