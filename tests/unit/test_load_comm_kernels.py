"""Which kernels communicate: real names of those that do, and of those that only sound so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from foreign_files import kernel, write

from ddptrace.errors import DdptraceError
from ddptrace.load.kineto.reader import read_kineto
from ddptrace.load.windows.comm_kernels import (
    LONGEST_NAME,
    UNKNOWN_OP,
    CommRule,
    communication_kernels,
    op_named,
    parse_rule,
    rule_of,
)

COMMUNICATE = {
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": "all_reduce",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": UNKNOWN_OP,
    "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)": UNKNOWN_OP,
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]": UNKNOWN_OP,
    "void rcclKernel<1>(int)": UNKNOWN_OP,
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::Half, 16, 2>(c10::Half**)": "all_reduce",
    "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)": "all_reduce",
    "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)": "all_reduce",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": "all_reduce",
    "_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(int)1>(int)": "all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>(tensorrt_llm::kernels::AllReduceParams)": "all_reduce",
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)": "dispatch",
    "void deep_ep::internode::combine<false, 4, __nv_bfloat16, 8>(int4*)": "combine",
    "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)": "dispatch",
    "void deep_ep::internode::notify_dispatch<false, 4>(int const*, int*)": "notify",
    "void deep_ep::intranode::cached_notify_combine<8>(void**, int*)": "notify",
    "void dpsk::ep::internode::cached_notify<false>(int, int)": "notify",
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)": "combine",
    "void mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>(mori::moe::EpDispatchCombineArgs)": "dispatch",
    "EpCombineInterNodeKernel_bf16": "combine",
    "void aiter::reduce_scatter_cross_device_store<__bf16, 8>(aiter::RankData*)": "reduce_scatter",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>(__half const*)": "all_reduce",
    "void twoshotAllreduceKernel<8>(int)": "all_reduce",
    "void nvshmemi_transfer_amo_nonfetch<long>(void*)": UNKNOWN_OP,
    "oneccl_allreduce_pcie<sycl::_V1::detail::half_impl::half, Rt64_128_PCIE, RingTransmit>": "all_reduce",
    "oneccl_allgatherv_pcie<float, Rt64_PCIE, true, 16, AllgatherTransmit>": "all_gather",
    "oneccl_kernel_memcpy_bytes": UNKNOWN_OP,
    "hcom_allReduce__606_0_1": "all_reduce",
    "hcom_reduceScatter_AicpuKernel_503_490_1": "reduce_scatter",
    "hcom_send__123_1_1": UNKNOWN_OP,
}  # fmt: skip

COMPUTE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void deep_ep::layout::get_dispatch_layout<256, 4>(long const*, int*)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void step::internode_combine(int)",
    "void moe::dispatch_tokens<half>(half*)",
    "void combine_heads(float*)",
    "void my_kernel<ncclDataType_t>(ncclDataType_t, float*)",
    "void cub::DeviceReduceKernel<int>(int)",
    "void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<float>)",
    "myncclfreeKernel",
    "triton_poi_fused_add_all_reduce_4",
    "void traccc::kernels::ccl_kernel<8>(int)",  # labels connected components
    "bloneccl_copy",
    "hcom_profile",
)


@pytest.mark.parametrize("name", COMMUNICATE)
def test_a_communication_kernel_is_known_with_what_its_name_tells(name: str) -> None:
    assert rule_of(name, ()) is not None
    assert op_named(name, ()) == COMMUNICATE[name]


@pytest.mark.parametrize("name", COMPUTE)
def test_a_kernel_that_only_sounds_like_it_computes(name: str) -> None:
    assert rule_of(name, ()) is None


def test_a_users_rule_adds_kernels_and_is_asked_first() -> None:
    rules = (CommRule("MY_exchange", "all_to_all"), CommRule("ncclDevKernel_Generic", "broadcast"))
    assert op_named("void my_exchange_kernel<int>(int)", rules) == "all_to_all"
    assert op_named("ncclDevKernel_Generic(x)", rules) == "broadcast"
    assert rule_of("gemm", rules) is None


def test_a_kernel_whose_arguments_name_a_collective_communicates_whatever_its_name(tmp_path: Path) -> None:
    named = {"Collective name": "allreduce"}
    events = [kernel("gemm", 1, 0, 1), kernel("x", 2, 1, 2, **named), kernel("ncclKernel", 3, 2, 3)]
    events.append(kernel("y", 4, 3, 4))
    read = read_kineto(write(tmp_path / "a.json", events))
    assert communication_kernels(read).tolist() == [False, True, True, False]
    assert communication_kernels(read, (CommRule("^y$"),)).tolist() == [False, True, True, True]


def test_a_rule_is_read_from_a_users_text() -> None:
    assert parse_rule("my_all_reduce") == CommRule("my_all_reduce", None)
    assert parse_rule("a=b=all_reduce") == CommRule("a=b", "all_reduce")
    assert parse_rule("(?<=x)y=") == CommRule("(?<=x)y=", None)


def test_an_equals_sign_within_an_expression_is_its_own() -> None:
    assert parse_rule("(?<=my_)exchange") == CommRule("(?<=my_)exchange")
    assert parse_rule("(?<!no )x|(?<=in|on)y=broadcast") == CommRule("(?<!no )x|(?<=in|on)y", "broadcast")


TOO_MUCH = ["a{99999999999999999999}", "(" * 3000 + ")" * 3000, "(?:" * 200 + "x" + ")" * 200 + "=broadcast"]
NO_RULES = [
    "(",
    "*=all_reduce",
    "",
    " =x",
    "=",
    "=all_reduce",
    "my=bogus op",
    "my= all_reduce",
    "my= ",
    "my=all-reduce",
]


@pytest.mark.parametrize("text", [*NO_RULES, *TOO_MUCH])
def test_a_rule_that_cannot_be_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(DdptraceError, match=re.escape("my_all_reduce=all_reduce")) as refused:
        parse_rule(text)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    assert "REGEX=OP" in str(refused.value)


def test_a_rule_is_searched_in_the_first_thousand_characters_of_a_name() -> None:
    rules = (CommRule("my_exchange$"),)
    assert rule_of("x" * (LONGEST_NAME - 11) + "my_exchange", rules) is not None
    assert rule_of("x" * (LONGEST_NAME - 11) + "my_exchangeable", rules) is not None  # ends there, for the rule
    assert rule_of("x" * LONGEST_NAME + "my_exchange", rules) is None
