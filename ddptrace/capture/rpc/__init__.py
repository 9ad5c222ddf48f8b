"""Remote calls of torch.distributed.rpc: caller, callee, bytes and waits.

In: the functions below `rpc_sync`, `rpc_async` and `remote`. Out: records whose kind begins with RPC.

Imported only where this build of torch has RPC. Begin with `calls.py`.
"""
