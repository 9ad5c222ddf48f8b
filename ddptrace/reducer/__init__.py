"""The bucketed gradient reducer: data parallelism to use, and to learn from. It knows nothing of tracing.

Data parallelism gives every rank a part of the batch and the same model; after backward each needs the mean of all
ranks' gradients. Sending every gradient alone wastes time on small messages, sending all at the end hides nothing
behind backward. So gradients are gathered in buckets, and a full bucket leaves while backward still computes:

    backward     | layer 4 | layer 3 | layer 2 | layer 1 |
    gradients    . 4       . 3       . 2       . 1       .
    bucket 0               [  4, 3 is in: sent
    on the wire            |=====bucket 0=====|
    bucket 1                                   .         [ 2, 1 are in: sent
    on the wire                                          |=====bucket 1=====|
    exposed                                              |~~~~~~~~~~~~~~~~~~|  finish_grad_sync waits
    optimizer                                                               |

Smaller buckets would leave earlier and more of them would hide; each also costs a start. That is the U-curve of caps.

In: a module, process groups, and the gradients as autograd accumulates them. Out: the mean of each gradient in
`parameter.grad`, and calls of a `BucketObserver`.

Read in this order:
    bucket.py          which gradients share a bucket; one flat tensor and the views into it
    reducer.py         counting, sending in order, waiting
    gradients.py       calls the reducer for each gradient, and finds the parameters that a step leaves out
    sender.py          an all-reduce, or a communication hook that all ranks have
    layout.py          the order in which gradients become ready, and the buckets made after it
    data_parallel.py   the wrapper: forward, no_sync, buffers
    same_training.py   are all ranks in the same step of the same model? rank 0's parameters, buffers and order to all
    layer_drop.py      layers left out on all ranks at once
    peers.py           the other ranks: messages, and waits that end; it uses notes.py
    misuse.py          the user's arguments, checked before anything else happens; the sentences of all errors
    observer.py        what a reducer reports to a listener
"""

from __future__ import annotations

from contextlib import suppress

from ddptrace.dynamo import leave_as_it_is
from ddptrace.reducer.data_parallel import BucketedDataParallel
from ddptrace.reducer.layer_drop import LayerDrop
from ddptrace.reducer.observer import BucketObserver, LayoutMade, ReducerMade

__all__ = ["BucketObserver", "BucketedDataParallel", "LayerDrop", "LayoutMade", "ReducerMade"]

with suppress(ImportError):  # a torch without these names compiles less well, and nothing else
    leave_as_it_is(__name__)
