"""What NCCL itself says of its collectives.

In: logs of NCCL_DEBUG=INFO, and files of NCCL Inspector. Out: `NcclChoice`s and `NcclTime`s.

files      which files of a folder are which       debug_log   algorithm, protocol and channels
inspector  times and bandwidth
"""
