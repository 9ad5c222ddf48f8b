"""What a user may hand over to the wrapper, and what the answer is where it cannot be."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_wrapper
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddptrace.errors import DdptraceError
from ddptrace.reducer import BucketedDataParallel
from ddptrace.reducer.misuse import INSTEAD
from ddptrace.reducer.sender import described


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("given", "named"), [(None, "a NoneType"), ([nn.Linear(2, 2)], "a list"), (nn.Linear, "the class Linear")]
)
def test_what_is_no_module_is_named(given: Any, named: str) -> None:
    with pytest.raises(DdptraceError, match=rf"wraps a torch.nn.Module, not {named}"):
        BucketedDataParallel(given)


def test_every_argument_of_torchs_wrapper_is_known_and_its_default_is_taken() -> None:
    import inspect

    stock = inspect.signature(DistributedDataParallel.__init__).parameters
    own = inspect.signature(BucketedDataParallel.__init__).parameters
    extra = {name: one.default for name, one in stock.items() if name not in own}
    assert set(extra) == {"device_ids", "output_device", *INSTEAD}
    model = BucketedDataParallel(nn.Linear(2, 2), broadcast_buffers=None, **extra)
    assert model.broadcast_buffers, "as torch's default is"


@pytest.mark.parametrize(
    ("asked", "instead"),
    [
        ({"static_graph": True}, "static_graph=True: leave it out, and pass find_unused_parameters=True"),
        ({"bucket_cap_mb_list": [1, 2]}, r"bucket_cap_mb_list=\[1, 2\]: pass bucket_caps_mb"),
        ({"init_sync": False}, "init_sync=False: every rank begins with rank 0's parameters"),
        ({"forward_sync_buffers": False}, "pass broadcast_buffers"),
        ({"delay_all_reduce_named_params": []}, r"delay_all_reduce_named_params=\[\]: every gradient"),
        ({"mixed_precision": "fp16"}, "torch.autocast"),
        ({"device_mesh": "a mesh"}, "device_mesh.get_group"),
        ({"check_reduction": True}, "leave it out"),
        ({"bucket_size": 25}, "has no argument 'bucket_size'"),
        ({"device_ids": [0]}, r"device_ids=\[0\] is not where the module is, on cpu"),
        ({"output_device": "cuda:1"}, "output_device='cuda:1' is not where the module is, on cpu"),
    ],
)
def test_an_argument_that_asks_for_what_there_is_not_is_refused_with_what_to_do(
    asked: dict[str, Any], instead: str
) -> None:
    with pytest.raises(DdptraceError, match=instead):
        BucketedDataParallel(nn.Linear(2, 2), **asked)


def test_the_device_that_the_module_is_on_may_be_named() -> None:
    BucketedDataParallel(nn.Linear(2, 2), device_ids=["cpu"], output_device=torch.device("cpu"))


def test_a_hook_is_described_by_its_name_and_torchs_own_by_their_settings_too() -> None:
    own = "the communication hook "
    torchs = f"{own}torch.distributed.algorithms.ddp_comm_hooks."
    wrapped, around = "fp16_compress_wrapper.<locals>.fp16_compress_wrapper_hook", "default_hooks.allreduce_hook"
    state = PostLocalSGDState(None, None, 7)

    def mine(state: object, bucket: object) -> None:
        """Knows what differs between ranks: `one_rank`."""

    assert described(None, allreduce_hook) == f"{torchs}default_hooks.allreduce_hook"
    assert described(None, functools.partial(allreduce_hook)) == f"{torchs}default_hooks.allreduce_hook"
    assert described(None, fp16_compress_wrapper(allreduce_hook)).startswith(f"{torchs}default_hooks.{wrapped} around")
    assert described(None, fp16_compress_wrapper(allreduce_hook)).endswith(around)
    assert (
        "PostLocalSGDState(iter=0, post_local_gradient_allreduce=True, process_group=None, start_localSGD_iter=7"
        in (described(state, post_localSGD_hook))
    )
    assert described({"rank": 3}, mine).endswith(".<locals>.mine with a dict()")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(inputs))
        return out


@pytest.mark.parametrize("forget", [True, False])
def test_a_model_converted_there_and_back_trains_on_into_its_buckets(forget: bool) -> None:
    # GIVEN a model whose gradients are views into its buckets
    model = BucketedDataParallel(Layers())
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
    # WHEN it is converted, which gives them other memory, and back
    model.double().float()
    model.zero_grad(set_to_none=forget)
    model(torch.ones(2, 3)).sum().backward()
    # THEN what is sent is the gradients, and they are views again
    (bucket,) = model.reducer.layout.buckets
    parts = torch.cat([parameter.grad.flatten() for parameter in bucket.parameters])
    assert bucket.buffer.abs().sum() > 0 and torch.equal(bucket.buffer, parts)
    assert all(p.grad.untyped_storage().data_ptr() == bucket.buffer.data_ptr() for p in model.parameters())
