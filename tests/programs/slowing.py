"""Training in which rank 1 becomes late half-way, in its input: `slowing.py RUN [--ms MS] [--steps N]`.

The other rank then waits for it in its first buckets, so steps become longer and less of the communication is hidden.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

from tests.programs import late
from tests.programs.leaving import leave


class Rows(late.Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.steps // 2 and dist.get_rank() == 1:
            late.Late.part = "data"
        return super().__getitem__(index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--ms", type=float, default=80.0)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    late.Late.seconds = options.ms / 1e3
    late.Rows = Rows  # type: ignore[misc]
    late.train(options.run, options.steps)
    leave()


if __name__ == "__main__":
    main()
