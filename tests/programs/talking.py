"""Each rank says the same line over and over, on both streams. `talking.py LINES`."""

import os
import sys

line = f"rank {os.environ['RANK']} says one whole line"
for _ in range(int(sys.argv[1])):
    print(*line.split())
    print(*line.split(), file=sys.stderr)
