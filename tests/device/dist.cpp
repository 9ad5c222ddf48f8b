// The test device's c10d backend, and what Python sees of the device.
//
// A collective is a kernel on a communication stream of its own. On that stream's thread it calls a real Gloo group over
// the same memory, so that it takes real time and waits for real peers. As with NCCL, `Work.wait()` makes the calling
// thread's current stream wait, and not the thread; a call that is not asynchronous does that at once, and returns no
// Work; and the messages of a batch are one kernel, with one Work. Names are NCCL's: programs that read profiler files
// know them.
#include "runtime.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>

namespace testdev {
namespace {

using at::Tensor;
using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, OpType type, const std::string& title, const Tensors& inputs, c10::Stream stream, uint64_t seq)
      : Work(rank, type, title.c_str(), inputs), stream_(stream), seq_(seq) {}

  // Called once it is on the stream.
  void launched(EntryPtr kernel, const Tensors& outputs) {
    kernel_ = std::move(kernel);
    outputs_ = outputs;
    end_ = record(stream_);
    c10::StreamGuard on_stream(stream_);  // the future's callbacks run at once, and what they launch comes after it
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{device()});
    future_->markCompleted(c10::IValue(outputs));
  }

  void failed(std::exception_ptr error) {
    std::lock_guard<std::mutex> lock(mutex_);
    exception_ = std::move(error);
  }

  bool isCompleted() override { return is_done(end_); }
  bool isSuccess() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return !exception_;
  }
  void synchronize() override { make_wait(current_stream(), end_); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return seq_; }
  float getDuration() const override {
    TORCH_CHECK(is_done(end_), "the duration is known once the work is completed");
    return static_cast<float>(static_cast<double>(kernel_->end_ns - kernel_->begin_ns) / 1e6);
  }
  void wait_on_host_too() { wait_on_host(end_); }

 private:
  const c10::Stream stream_;
  const uint64_t seq_;
  EntryPtr kernel_;
  Event end_;
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// What one collective is called: by the dispatcher's ranges, by its kernel, by c10d.
struct Names {
  const char* op;
  const char* kernel;
  OpType type;
};

Tensors shared(const Tensors& tensors) {
  Tensors twins;
  for (const auto& tensor : tensors) {
    twins.push_back(on_host(tensor));
  }
  return twins;
}

std::vector<Tensors> shared(const std::vector<Tensors>& lists) {
  std::vector<Tensors> twins;
  for (const auto& tensors : lists) {
    twins.push_back(shared(tensors));
  }
  return twins;
}

// As NCCL's backend does it: a tensor is kept until its collective is over, even where nobody waits for that.
void note_uses(const Tensors& tensors, c10::Stream stream) {
  for (const auto& tensor : tensors) {
    note_use(tensor.storage().data_ptr(), stream);
  }
}

int64_t elements(const Tensors& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) {
    sum += tensor.numel();
  }
  return sum;
}

// Gloo has no average. It is a sum, divided afterwards on the stream.
class Reduction {
 public:
  Reduction(const ReduceOp& op, int size) : op_(op == ReduceOp::AVG ? ReduceOp(ReduceOp::SUM) : op) {
    divisor_ = op == ReduceOp::AVG ? size : 1;
  }
  ReduceOp op() const { return op_; }
  void finish(Tensor& tensor) const {
    if (divisor_ != 1) {
      tensor.div_(divisor_);
    }
  }

 private:
  ReduceOp op_;
  int divisor_;
};

class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend(c10::intrusive_ptr<Backend> gloo, int rank, int size)
      : Backend(rank, size), gloo_(std::move(gloo)), collectives_(new_stream()), sends_(new_stream()),
        receives_(new_stream()) {}

  const std::string getBackendName() const override { return "testccl"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return seq_; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    auto twins = shared(tensors);
    return run(
        {"broadcast", "Broadcast_RING_LL", OpType::BROADCAST}, tensors, tensors,
        [gloo = gloo_, twins, options]() mutable { gloo->broadcast(twins, options)->wait(); }, options.asyncOp);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& given) override {
    auto twins = shared(tensors);
    Reduction reduction(given.reduceOp, size_);
    auto options = given;
    options.reduceOp = reduction.op();
    return run(
        {"all_reduce", "AllReduce_Sum_f32_RING_LL", OpType::ALLREDUCE}, tensors, tensors,
        [gloo = gloo_, twins, options, reduction]() mutable {
          gloo->allreduce(twins, options)->wait();
          for (auto& twin : twins) {
            reduction.finish(twin);
          }
        },
        given.asyncOp);
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& given) override {
    auto twins = shared(tensors);
    Reduction reduction(given.reduceOp, size_);
    return run(
        {"allreduce_coalesced", "AllReduce_Sum_f32_RING_LL", OpType::COALESCED}, tensors, tensors,
        [gloo = gloo_, twins, reduction]() mutable {
          for (auto& twin : twins) {
            c10d::AllreduceOptions options;
            options.reduceOp = reduction.op();
            Tensors one{twin};
            gloo->allreduce(one, options)->wait();
            reduction.finish(twin);
          }
        },
        given.asyncOp);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    auto twins = shared(tensors);
    return run(
        {"reduce", "Reduce_Sum_f32_RING_LL", OpType::REDUCE}, tensors, tensors,
        [gloo = gloo_, twins, options]() mutable { gloo->reduce(twins, options)->wait(); }, options.asyncOp);
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto into = shared(outputs);
    auto from = shared(inputs);
    return run(
        {"all_gather", "AllGather_RING_LL", OpType::ALLGATHER}, inputs, outputs.at(0),
        [gloo = gloo_, into, from, options]() mutable { gloo->allgather(into, from, options)->wait(); },
        options.asyncOp);
  }

  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    auto into = on_host(output), from = on_host(input);
    return run(
        {"_all_gather_base", "AllGather_RING_LL", OpType::_ALLGATHER_BASE}, {input}, {output},
        [gloo = gloo_, into, from, options]() mutable { gloo->_allgather_base(into, from, options)->wait(); },
        options.asyncOp);
  }

  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& given) override {
    auto into = on_host(output), from = on_host(input);
    Reduction reduction(given.reduceOp, size_);
    return run(
        {"_reduce_scatter_base", "ReduceScatter_Sum_f32_RING_LL", OpType::_REDUCE_SCATTER_BASE}, {input}, {output},
        [gloo = gloo_, into, from, reduction, rank = rank_, size = size_]() mutable {
          c10d::AllreduceOptions options;
          options.reduceOp = reduction.op();
          Tensors all{from.clone()};
          gloo->allreduce(all, options)->wait();
          reduction.finish(all[0]);
          into.copy_(all[0].view({size, -1})[rank].view(into.sizes()));
        },
        given.asyncOp);
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto into = shared(outputs);
    auto from = shared(inputs);
    return run(
        {"gather", "SendRecv", OpType::GATHER}, inputs, outputs.empty() ? inputs : outputs.at(0),
        [gloo = gloo_, into, from, options]() mutable { gloo->gather(into, from, options)->wait(); }, options.asyncOp);
  }

  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto into = shared(outputs);
    auto from = shared(inputs);
    return run(
        {"scatter", "SendRecv", OpType::SCATTER}, inputs.empty() ? outputs : inputs.at(0), outputs,
        [gloo = gloo_, into, from, options]() mutable { gloo->scatter(into, from, options)->wait(); }, options.asyncOp);
  }

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    auto into = shared(outputs), from = shared(inputs);
    return run(
        {"all_to_all", "SendRecv", OpType::ALLTOALL}, inputs, outputs,
        [this, into, from]() mutable {
          std::vector<WorkPtr> works;
          for (int peer = 0; peer < size_; ++peer) {
            if (peer == rank_) {
              into[peer].copy_(from[peer]);
              continue;
            }
            Tensors sent{from[peer]}, received{into[peer]};
            works.push_back(gloo_->send(sent, peer, ALL_TO_ALL_TAG));
            works.push_back(gloo_->recv(received, peer, ALL_TO_ALL_TAG));
          }
          for (auto& work : works) {
            work->wait();
          }
        },
        options.asyncOp);
  }

  WorkPtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& to, std::vector<int64_t>& from,
                        const c10d::AllToAllOptions& options) override {
    auto into = on_host(output), source = on_host(input);
    return run(
        {"all_to_all", "SendRecv", OpType::ALLTOALL_BASE}, {input}, {output},
        [gloo = gloo_, into, source, to, from, options]() mutable {
          gloo->alltoall_base(into, source, to, from, options)->wait();
        },
        options.asyncOp);
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return message(
        {"send", "SendRecv", OpType::SEND}, tensors,
        [gloo = gloo_, twins = shared(tensors), peer, tag]() mutable { return gloo->send(twins, peer, tag); });
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return message(
        {"recv", "SendRecv", OpType::RECV}, tensors,
        [gloo = gloo_, twins = shared(tensors), peer, tag]() mutable { return gloo->recv(twins, peer, tag); });
  }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { batch_.emplace(); }

  WorkPtr endCoalescing() override {
    auto batch = std::move(*batch_);
    batch_.reset();
    if (batch.starts.empty()) {
      return nullptr;
    }
    return run({"coalesced", "SendRecv", OpType::COALESCED}, batch.tensors, batch.tensors,
               [starts = std::move(batch.starts)]() mutable {
                 std::vector<WorkPtr> works;
                 for (auto& start : starts) {
                   works.push_back(start());
                 }
                 for (auto& work : works) {
                   work->wait();
                 }
               });
  }

  // NCCL's, too, holds the host until all ranks have come.
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Tensors number{at::empty({1}, at::TensorOptions().device(device()))};
    auto work = run({"barrier", "AllReduce_Sum_u8_RING_LL", OpType::BARRIER}, number, number,
                    [gloo = gloo_, options] { gloo->barrier(options)->wait(); });
    static_cast<DeviceWork&>(*work).wait_on_host_too();
    return work;
  }

 private:
  static constexpr int ALL_TO_ALL_TAG = 1 << 20;  // no program's

  struct Batch {
    Tensors tensors;
    std::vector<std::function<WorkPtr()>> starts;
  };

  WorkPtr message(const Names& names, Tensors& tensors, std::function<WorkPtr()> start) {
    if (!batch_) {
      return run(names, tensors, tensors, [start = std::move(start)]() mutable { start()->wait(); });
    }
    batch_->tensors.insert(batch_->tensors.end(), tensors.begin(), tensors.end());
    batch_->starts.push_back(std::move(start));
    return nullptr;
  }

  WorkPtr run(const Names& names, const Tensors& inputs, const Tensors& outputs, std::function<void()> work,
              bool is_async = true) {
    bool point_to_point = names.type == OpType::SEND || names.type == OpType::RECV;
    auto number = std::make_tuple(static_cast<int64_t>(++seq_), point_to_point);
    auto group = std::make_tuple(pg_uid_, pg_desc_);
    std::vector<int64_t> no_splits;
    constexpr int64_t FIRST_RANK = 0, STRIDE = 1;
    RECORD_PARAM_COMMS_DATA(number, group, inputs, outputs, rank_, std::string(names.op), elements(inputs),
                            elements(outputs), inputs.at(0).scalar_type(), no_splits, no_splits, FIRST_RANK, STRIDE,
                            size_);
    auto stream = names.type == OpType::SEND || names.type == OpType::COALESCED ? sends_
                  : names.type == OpType::RECV                                  ? receives_
                                                                                : collectives_;
    note_uses(inputs, stream);
    note_uses(outputs, stream);
    make_wait(stream, record(current_stream()));
    auto title = std::string("nccl:") + names.op;
    auto made = c10::make_intrusive<DeviceWork>(rank_, names.type, title, inputs, stream, seq_);
    auto kernel = launch(stream, Kind::COLLECTIVE, std::string("ncclDevKernel_") + names.kernel,
                         [work = std::move(work), weak = c10::weak_intrusive_ptr<DeviceWork>(made)] {
                           try {
                             work();
                           } catch (...) {
                             if (auto one = weak.lock()) {
                               one->failed(std::current_exception());
                             }
                             throw;
                           }
                         });
    made->launched(kernel, outputs);
    if (!is_async) {
      made->synchronize();
      return nullptr;
    }
    return made;
  }

  const c10::intrusive_ptr<Backend> gloo_;
  const c10::Stream collectives_;
  const c10::Stream sends_;  // apart, or two ranks that send to each other wait for ever
  const c10::Stream receives_;
  std::optional<Batch> batch_;  // of messages, while one is collected
  uint64_t seq_ = 0;
};

const char* word(Kind kind) {
  switch (kind) {
    case Kind::KERNEL:
      return "kernel";
    case Kind::COLLECTIVE:
      return "collective";
    case Kind::COPY:
      return "copy";
    case Kind::WAIT:
      return "wait";
    case Kind::EVENT:
      return "event";
    case Kind::HOST_CALL:
      return "host_call";
  }
  return "";
}

using Row = std::tuple<std::string, std::string, int64_t, int64_t, int64_t, int64_t, int64_t>;

std::vector<Row> rows(const std::vector<Entry>& entries) {
  std::vector<Row> rows;
  for (const auto& one : entries) {
    rows.emplace_back(word(one.kind), one.name, one.stream, one.launched_ns, one.begin_ns, one.end_ns, one.correlation);
  }
  return rows;
}

PYBIND11_MODULE(testdev_native, module) {
  namespace py = pybind11;
  py::module_::import("torch._C._distributed_c10d");
  module.def("take_ledger", [] { return rows(take_ledger()); });
  module.def("take_calls", [] { return rows(take_calls()); });
  module.def("synchronize", &synchronize_all, py::call_guard<py::gil_scoped_release>());
  module.def("drain", &drain_all, py::call_guard<py::gil_scoped_release>());
  module.def("manual_seed", [](uint64_t seed) {
    at::Generator(at::detail::getPrivateUse1Hooks().getDefaultGenerator(0)).set_current_seed(seed);
  });
  module.def("set_floors_ns", [](int64_t kernel, int64_t collective) {
    kernel_floor_ns = kernel;
    collective_floor_ns = collective;
  });
  module.def("take_turns", [](int64_t length_ns, int64_t nth, int64_t of) {
    turn = nth;
    turns = of;
    slice_ns = length_ns;
  });
  module.def("elapsed_ms", [](int64_t from, int64_t to) {  // torch's own takes only its own class
    const auto* guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1);
    return guard->elapsedTime(reinterpret_cast<void*>(from), reinterpret_cast<void*>(to), 0);
  });
  module.def("set_overwrites_freed", [](bool overwrites) { overwrites_freed = overwrites; });
  module.def("backend", [](c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size) {
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<DeviceBackend>(std::move(gloo), rank, size));
  });
}

}  // namespace
}  // namespace testdev
