// Operators of the test device. Nearly all run by one fallback: the shapes of the results by torch's meta kernels, at
// once; the numbers by the CPU's kernel, on the stream's thread.
#include "runtime.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <unordered_map>

namespace testdev {
namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using OnTensor = std::function<Tensor(const Tensor&)>;

constexpr auto KEY = c10::DispatchKey::PrivateUse1;

// An argument or a result, with each of its tensors replaced, for the device `to`.
IValue mapped(const IValue& value, const OnTensor& on_tensor, c10::DeviceType to) {
  if (value.isTensor()) {
    return on_tensor(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<Tensor> tensors;
    for (const auto& tensor : value.toTensorVector()) {
      tensors.push_back(on_tensor(tensor));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> tensors;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      tensors.push_back(tensor ? std::optional<Tensor>(on_tensor(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  if (value.isDevice()) {
    return c10::Device(to);
  }
  if (value.isGenerator()) {
    return to == at::kMeta ? IValue() : IValue(generator_of_kernels(value.toGenerator()));
  }
  return value;
}

// The tensors of one call, each with its twin on another device; a tensor that is given twice has one twin.
class Twins {
 public:
  Twins(c10::DeviceType to, OnTensor make) : to_(to), make_(std::move(make)) {}

  Stack of(const Stack& values) {
    Stack twins;
    for (const auto& value : values) {
      twins.push_back(mapped(value, [this](const Tensor& tensor) { return of(tensor); }, to_));
    }
    return twins;
  }

  // The tensor whose twin this is; undefined if it is the twin of none.
  Tensor original(const Tensor& twin) const {
    auto found = originals_.find(twin.unsafeGetTensorImpl());
    return found == originals_.end() ? Tensor() : found->second;
  }

  const std::unordered_map<c10::TensorImpl*, Tensor>& originals() const { return originals_; }  // by their twins

 private:
  Tensor of(const Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    auto& twin = twins_[tensor.unsafeGetTensorImpl()];
    if (!twin.defined()) {
      twin = make_(tensor);
      originals_[twin.unsafeGetTensorImpl()] = tensor;
    }
    return twin;
  }

  c10::DeviceType to_;
  OnTensor make_;
  std::unordered_map<c10::TensorImpl*, Tensor> twins_;
  std::unordered_map<c10::TensorImpl*, Tensor> originals_;
};

Tensor meta_twin(const Tensor& tensor) {
  if (!is_on_device(tensor) && tensor.dim() == 0) {
    return tensor;  // a number: it decides the type of the result
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
}

Tensor cpu_twin(const Tensor& tensor) {
  if (is_on_device(tensor)) {
    return on_host(tensor);
  }
  auto copy = tensor.clone();  // the program may change its own before the kernel runs
  copy.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return copy;
}

Tensor new_like(const Tensor& shape) {
  return at::detail::empty_strided_generic(shape.sizes(), shape.strides(), allocator(), c10::DispatchKeySet(KEY),
                                           shape.scalar_type());
}

bool returns_only_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& one) {
    auto list = one.type()->cast<c10::ListType>();
    return (list ? list->getElementType() : one.type())->kind() == c10::TypeKind::TensorType;
  });
}

bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& one) {
    return one.alias_info() && one.alias_info()->isWrite();
  });
}

std::string kernel_name(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  auto colons = name.find("::");
  name = name.substr(colons == std::string::npos ? 0 : colons + 2);
  return name + "_kernel" + (schema.overload_name().empty() ? "" : "<" + schema.overload_name() + ">");
}

std::vector<Tensor> tensors_in(const IValue& value) {
  return value.isTensor() ? std::vector<Tensor>{value.toTensor()}
                          : value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>{};
}

// One call of an operator whose arguments are on the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack arguments)
      : op_(op), arguments_(std::move(arguments)), shapes_(at::kMeta, meta_twin), numbers_(at::kCPU, cpu_twin) {}

  Stack results() {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto inferred = infer();
    return inferred ? launched(*inferred) : waited_for();
  }

 private:
  std::optional<Stack> infer() {
    if (!returns_only_tensors(op_.schema())) {
      return std::nullopt;
    }
    try {
      auto stack = shapes_.of(arguments_);
      op_.callBoxed(stack);
      return stack;
    } catch (const std::exception&) {  // the shape depends on the numbers, or the CPU's kernel will say what is wrong
      return std::nullopt;
    }
  }

  Stack launched(const Stack& inferred) {
    for (const auto& [twin, original] : shapes_.originals()) {  // results that were given in another shape
      if (is_on_device(original) && !original.sizes().equals(twin->sizes())) {
        original.resize_(twin->sizes());
      }
    }
    Stack results;
    std::vector<std::vector<Tensor>> targets;  // by result and tensor: where its numbers go; undefined: they are there
    bool has_new = false;
    for (const auto& shape : inferred) {
      auto& into = targets.emplace_back();
      results.push_back(mapped(shape, [&](const Tensor& one) {
        auto [tensor, is_new] = result_of(one);
        into.push_back(is_new ? on_host(tensor) : Tensor());
        has_new |= is_new;
        return tensor;
      }, DEVICE_TYPE));
    }
    if (has_new || writes(op_.schema()) || op_.schema().returns().empty()) {  // else all are views
      auto stack = std::make_shared<Stack>(numbers_.of(arguments_));
      launch(current_stream(), Kind::KERNEL, kernel_name(op_.schema()), [op = op_, stack, targets] {
        op.callBoxed(*stack);
        for (size_t i = 0; i < targets.size(); ++i) {
          auto made = tensors_in((*stack)[i]);
          for (size_t j = 0; j < std::min(made.size(), targets[i].size()); ++j) {
            if (targets[i][j].defined() && made[j].defined()) {
              targets[i][j].copy_(made[j]);
            }
          }
        }
        stack->clear();
      });
    }
    return results;
  }

  // A result of this shape, and whether it is new memory: not an argument, nor a view of one.
  std::pair<Tensor, bool> result_of(const Tensor& shape) {
    if (!shape.defined()) {
      return {shape, false};
    }
    if (auto given = shapes_.original(shape); given.defined()) {
      return {given, false};
    }
    for (const auto& [twin, original] : shapes_.originals()) {
      if (is_on_device(original) && shape.storage().is_alias_of(twin->storage())) {
        auto offset = original.storage_offset() + shape.storage_offset();
        return {at::native::as_strided_tensorimpl(original, shape.sizes(), shape.strides(), offset), false};
      }
    }
    return {new_like(shape), true};
  }

  // Only the numbers tell the shape: run it on the stream, and wait, as CUDA does for `nonzero`.
  Stack waited_for() {
    auto stack = std::make_shared<Stack>(numbers_.of(arguments_));
    auto error = std::make_shared<std::exception_ptr>();
    auto stream = current_stream();
    launch(stream, Kind::KERNEL, kernel_name(op_.schema()), [op = op_, stack, error] {
      try {
        op.callBoxed(*stack);
      } catch (...) {
        *error = std::current_exception();
      }
    });
    synchronize(stream);
    if (*error) {
      std::rethrow_exception(*error);
    }
    Stack results;
    for (const auto& made : *stack) {
      bool has_tensors = made.isTensor() || made.isTensorList();
      results.push_back(has_tensors ? mapped(made, [this](const Tensor& one) { return brought(one); }, DEVICE_TYPE) : made);
    }
    return results;
  }

  Tensor brought(const Tensor& made) {
    if (!made.defined()) {
      return made;
    }
    if (auto given = numbers_.original(made); given.defined()) {
      return given;
    }
    auto tensor = new_like(made);
    on_host(tensor).copy_(made);
    return tensor;
  }

  const c10::OperatorHandle op_;
  const Stack arguments_;
  Twins shapes_;
  Twins numbers_;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  at::DisableRecordFunctionGuard unseen;  // what finds the shapes is no operator of the program's
  auto first = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
  Stack results = Call(op, Stack(first, stack->end())).results();
  stack->erase(first, stack->end());
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

// Kernels of their own: memory, copies, views --------------------------------------------------------------------------

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, allocator(), c10::DispatchKeySet(KEY), c10::dtype_or_default(type), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(sizes, strides, allocator(), c10::DispatchKeySet(KEY),
                                           c10::dtype_or_default(type));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) {
    tensor->empty_tensor_restride(*format);
  }
  auto nbytes = at::detail::computeStorageNbytes(sizes, tensor->strides(), self.itemsize(), tensor->storage_offset());
  if (nbytes > self.storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), nbytes);
  }
  return self;
}

// As on CUDA: a copy from memory that is not pinned has read it when the call returns.
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto from = self.sizes().equals(to.sizes()) ? self : self.expand(to.sizes());
  bool reads_device = is_on_device(from);
  bool writes_device = is_on_device(to);
  bool pinned = reads_device || is_pinned(from.storage().data());
  auto source = on_host(non_blocking && !pinned ? from.clone() : from);
  auto target = on_host(to);
  auto stream = current_stream();
  auto work = [source, target] { target.copy_(source); };
  if (!to.numel()) {
    return to;
  }
  if (reads_device && writes_device) {
    bool plain = from.scalar_type() == to.scalar_type() && from.is_contiguous() && to.is_contiguous();
    if (plain) {
      launch(stream, Kind::COPY, "Memcpy DtoD (Device -> Device)", work, static_cast<int64_t>(to.nbytes()));
    } else {
      launch(stream, Kind::KERNEL, "copy_kernel", work);
    }
    return to;
  }
  const char* name = reads_device ? (is_pinned(to.storage().data()) ? "Memcpy DtoH (Device -> Pinned)"
                                                                    : "Memcpy DtoH (Device -> Pageable)")
                                  : (pinned ? "Memcpy HtoD (Pinned -> Device)" : "Memcpy HtoD (Pageable -> Device)");
  launch(stream, Kind::COPY, name, work, static_cast<int64_t>(to.nbytes()));
  if (!non_blocking) {
    synchronize(stream);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (!to.sizes().equals(self.sizes())) {
    to.resize_(self.sizes());
  }
  return copy_from(self, to, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto number = at::empty({}, self.options().device(at::kCPU));
  copy_from(self.reshape({}), number, false);
  return number.item();
}

Tensor as_strided(const Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

Tensor view(const Tensor& self, at::IntArrayRef sizes) { return at::native::view(self, sizes); }

Tensor& set_strided(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return self;
}

Tensor& set_to(Tensor& self, const Tensor& source) {
  return set_strided(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_flat(Tensor& self, at::Storage storage) {
  int64_t length = static_cast<int64_t>(storage.nbytes() / self.itemsize());
  return set_strided(self, std::move(storage), 0, {length}, {1});
}

void record_stream(Tensor& self, c10::Stream stream) { note_use(self.storage().data_ptr(), stream); }

int64_t fused_sdp_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;  // plain operators
}

// What torch calls on a device that it does not know; the CPU has no kernel of this name.
void convolution(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  fallback(op, keys, stack);
}

void convolution_backward(const c10::OperatorHandle&, c10::DispatchKeySet keys, Stack* stack) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  constexpr int64_t ARGUMENTS = 10, WEIGHT = 2, TRANSPOSED = 6, GROUPS = 8, BIAS_SIZES = 3;
  auto first = stack->end() - ARGUMENTS;
  auto weight = first[WEIGHT].toTensor();
  bool transposed = first[TRANSPOSED].toBool();
  std::vector<int64_t> bias{transposed ? weight.size(1) * first[GROUPS].toInt() : weight.size(0)};
  stack->insert(first + BIAS_SIZES, IValue(bias));
  fallback(op, keys, stack);
}

// A kernel that takes a given time, in ns, whatever else the machine does.
void spend(const Tensor&, int64_t ns) {
  launch(current_stream(), Kind::KERNEL, "spend_kernel", [until = std::chrono::nanoseconds(ns)] {
    std::this_thread::sleep_for(until);
  });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("resize_", &resize_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("set_.source_Storage", &set_flat);
  library.impl("set_.source_Tensor", &set_to);
  library.impl("set_.source_Storage_storage_offset", &set_strided);
  library.impl("record_stream", &record_stream);
  library.impl("_fused_sdp_choice", &fused_sdp_choice);
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  library.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

TORCH_LIBRARY(testdev, library) { library.def("spend(Tensor on, int ns) -> ()"); }
TORCH_LIBRARY_IMPL(testdev, PrivateUse1, library) { library.impl("spend", &spend); }

}  // namespace
}  // namespace testdev
