"""What a rank finds at its start, in OUT/<rank>.json. `as_started.py OUT [wrong|late]`: rank 1 fails, or all sleep."""

import json
import os
import sys
import time
from pathlib import Path

import torch.distributed as dist


def typed(one: int) -> int:
    return one


out, how = Path(sys.argv[1]), sys.argv[2:]
print("here", os.environ["RANK"])
(out / f"{os.environ['RANK']}.pid").write_text(str(os.getpid()))
if os.environ["RANK"] == "1" and how == ["wrong"]:
    raise ValueError("planted")
if how:
    time.sleep(60)
dist.init_process_group("gloo")  # the other may still import torch: no limit beside the test's own
found = {
    "names": sorted(name for name in os.environ if name != "_"),
    "numbers": {name: text for name, text in os.environ.items() if name.endswith(("RANK", "WORLD_SIZE", "RESTARTS"))},
    "argv": [sys.argv[0], *how], "path": sys.path[0], "file": __file__, "name": __name__, "cwd": str(Path.cwd()),
    "main": vars(sys.modules["__main__"]) is globals(), "dynamo": "torch._dynamo" in sys.modules,
    "annotated": str(typed.__annotations__),
    "ranks": dist.get_world_size(), "store": type(dist.distributed_c10d._get_default_store()).__name__,
}  # fmt: skip
(out / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
dist.barrier()  # a rank that leaves while the other still connects would fail it
dist.destroy_process_group()
