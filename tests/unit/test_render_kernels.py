"""Kernels' names are cut to what a person reads, and to nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptrace.render.words import KERNEL_NAME_MAX, kernel_name

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float,"
    " at::native::binary_internal::MulFunctor<float> >, at::detail::Array<char*, 2> >(int, float)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&)>(int)"
)
SUM = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float, at::native::func_wrapper_t<float,"
    " at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float)#1}>, 4> >(x)"
)
CONCATENATE = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2>"
    "(float*, at::native::(anonymous namespace)::Metadata)"
)
NAMES = (
    ("volta_sgemm_128x32_nt", "volta_sgemm_128x32_nt"),
    ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    ("Memset (Device)", "Memset (Device)"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned)", "ncclKernel_AllReduce_RING_LL_Sum_float"),
    ("void cudnn::ops::nchwToNhwcKernel<float, (cudnnKernelDataType_t)2>(float const*)", "nchwToNhwcKernel"),
    ("void splitKreduce_kernel<32, 16, cublasSplitKParams<float> >(float const*)", "splitKreduce_kernel"),
    ("void cub::DeviceScanKernel<cub::AgentScanPolicy<128, (cub::BlockLoad)1> >(int*)", "DeviceScanKernel"),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_nt>(P)", "cutlass_80_tensorop_s1688gemm_64x64_nt"),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<flash::Main<2> > > >(P)",
        "flash::FlashAttnBwdSm90",
    ),
    ("void cutlass::device_kernel<a::cuda::fp8_ptp128c::GemmKernel>(a::P)", "fp8_ptp128c::GemmKernel"),
    (
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type"
        " vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        "fused_add_rms_norm_kernel",
    ),
    (ELEMENTWISE, "vectorized_elementwise_kernel<MulFunctor>"),
    (COPY, "elementwise_kernel<direct_copy_kernel_cuda>"),
    (SUM, "reduce_kernel<sum_functor>"),
    (CONCATENATE, "CatArrayBatchedCopy"),
)


@pytest.mark.parametrize(("full", "short"), NAMES, ids=[short for _, short in NAMES])
def test_a_kernels_name_is_cut_to_what_it_runs(full: str, short: str) -> None:
    assert kernel_name(full) == short


@given(st.text(alphabet="ab_:<>() ,*0-", max_size=200))
def test_no_name_is_empty_or_long_whatever_it_was(name: str) -> None:
    short = kernel_name(name)
    assert len(short) <= KERNEL_NAME_MAX
    assert bool(short) == bool(name)


def test_a_name_that_is_too_long_keeps_its_beginning() -> None:
    short = kernel_name("k" * 300)
    assert short == "k" * (KERNEL_NAME_MAX - 1) + "…"
