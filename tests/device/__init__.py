"""The test device: an asynchronous device without a GPU, on which what ddptrace tells of a device is tested.

Torch knows it as `torch.device("testdev")` once `tests.device.testdev` is imported. Its memory is the host's, and its
kernels are the CPU's. It behaves like a GPU where ddptrace looks:

- A stream is a thread with a queue. Operators return at once, with the shape of their result, and run on the current
  stream; `item()` and blocking copies wait. A program that forgets to make a stream wait reads wrong numbers.
- Events order streams, and tell times.
- The c10d backend `testccl` runs each collective on a stream of its own, over a real Gloo group: it waits for real
  peers, `Work.wait()` makes a stream wait and not the host, and futures know their device.
- `torch.profiler` writes real files: kernels by stream, joined to the calls and operators that launched them, copies,
  the user's ranges, and the arguments of collectives. Names of calls and of collectives are those of CUDA and NCCL,
  which are what ddptrace reads in files of GPUs.
- The ledger has the begin and the end of everything that ran on every stream, in ns. It knows nothing of profilers, and
  it is complete: what ddptrace tells is held against it.

- Freed memory is overwritten when its stream allocates again, where a test asks for that: a forgotten `record_stream`
  does harm, as on a GPU.

`refused.py` lists what it does not do, and why. `device.py` has all that differs between it and a GPU, on which the
same tests run with `DEVICE=cuda`.

`runtime.cpp` is the device, `ops.cpp` its operators, `profiler.cpp` its part in profiler files, `dist.cpp` its backend.
`native.py` compiles them once for each torch, with 40 s of processor time.
"""
