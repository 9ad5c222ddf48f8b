// The test device's part in torch.profiler's files: kernels and copies by stream, the calls that launched them, and the
// user's ranges on the streams.
#define FMT_HEADER_ONLY 1  // torch does not export the fmt that Kineto's headers use
#include "runtime.h"

#include <kineto/libkineto.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

namespace testdev {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

std::atomic<bool> is_profiling{false};
std::mutex seen_mutex;
std::vector<EntryPtr> seen;
thread_local std::vector<uint64_t> operators;  // that are open on this thread, by Kineto's numbers
thread_local std::vector<uint64_t> ranges;

uint64_t innermost(const std::vector<uint64_t>& open) { return open.empty() ? 0 : open.back(); }

void pop(std::vector<uint64_t>& open) {
  if (!open.empty()) {  // it was opened before the window
    open.pop_back();
  }
}

}  // namespace

bool profiling() { return is_profiling.load(std::memory_order_relaxed); }

void note_scopes(Entry& entry) {
  if (profiling()) {
    entry.operator_id = innermost(operators);
    entry.range_id = innermost(ranges);
  }
}

int64_t thread_id() { return libkineto::systemThreadId(); }

void profile(EntryPtr entry) {
  if (profiling() && entry->kind != Kind::EVENT && entry->kind != Kind::WAIT) {  // CUPTI does not tell these either
    std::lock_guard<std::mutex> lock(seen_mutex);
    seen.push_back(std::move(entry));
  }
}

namespace {

ActivityType type_of(const Entry& entry) {
  switch (entry.kind) {
    case Kind::HOST_CALL:
      return ActivityType::PRIVATEUSE1_RUNTIME;
    case Kind::COPY:
      return ActivityType::GPU_MEMCPY;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    std::lock_guard<std::mutex> lock(seen_mutex);
    seen.clear();
    is_profiling = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }

  // As CUPTI does, with what still runs: its end belongs into the file.
  void stop() override {
    drain_all();
    is_profiling = false;
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t begin_ns,
                    int64_t end_ns) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begin_ns, end_ns, "testdev");
    buffer_->gpuOpCount = -1;
    std::lock_guard<std::mutex> lock(seen_mutex);
    for (const auto& entry : seen) {
      add(*entry, linked);
    }
    for (const auto& activity : buffer_->activities) {
      activity->log(logger);
    }
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  std::vector<std::string> errors() override { return {}; }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    constexpr int64_t BELOW_THE_HOST = 5'000'000;
    return std::unique_ptr<libkineto::DeviceInfo>(new libkineto::DeviceInfo{0, BELOW_THE_HOST, "testdev", "testdev 0"});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (auto stream : streams_) {
      rows.push_back({stream, stream, 0, "stream " + std::to_string(stream)});
    }
    return rows;
  }

  std::string getDeviceProperties() override { return R"({"id": 0, "name": "testdev"})"; }

  void pushCorrelationId(uint64_t id) override { operators.push_back(id); }
  void popCorrelationId() override { pop(operators); }
  void pushUserCorrelationId(uint64_t id) override { ranges.push_back(id); }
  void popUserCorrelationId() override { pop(ranges); }

 private:
  void add(const Entry& entry, const libkineto::getLinkedActivityCallback& linked) {
    auto& activity = added(type_of(entry), entry.name, entry.begin_ns, entry.end_ns);
    bool on_host = entry.kind == Kind::HOST_CALL;
    activity.id = static_cast<int32_t>(entry.correlation);
    activity.device = on_host ? libkineto::processId() : 0;
    activity.resource = static_cast<int32_t>(entry.stream);
    activity.threadId = on_host ? activity.resource : 0;
    activity.linked = entry.operator_id ? linked(static_cast<int32_t>(entry.operator_id)) : nullptr;
    activity.addMetadata("correlation", entry.correlation);
    if (!on_host || entry.launches) {  // an arrow that nothing ends is refused
      activity.flow.id = static_cast<uint32_t>(entry.correlation);
      activity.flow.type = libkineto::kLinkAsyncCpuGpu;
      activity.flow.start = on_host;
    }
    if (!on_host) {
      streams_.insert(entry.stream);
      activity.addMetadata("device", 0);
      activity.addMetadata("stream", entry.stream);
      if (entry.nbytes >= 0) {
        activity.addMetadata("bytes", entry.nbytes);
      }
      widen_range(entry, linked);
    }
  }

  // Kineto makes the ranges of streams only for devices of its own.
  void widen_range(const Entry& entry, const libkineto::getLinkedActivityCallback& linked) {
    const auto* range = entry.range_id ? linked(static_cast<int32_t>(entry.range_id)) : nullptr;
    if (!range) {
      return;
    }
    auto& drawn = ranges_[{entry.range_id, entry.stream}];
    if (!drawn) {
      drawn = &added(ActivityType::GPU_USER_ANNOTATION, range->name(), entry.begin_ns, entry.end_ns);
      drawn->id = static_cast<int32_t>(entry.range_id);
      drawn->resource = static_cast<int32_t>(entry.stream);
    }
    drawn->startTime = std::min(drawn->startTime, entry.begin_ns);
    drawn->endTime = std::max(drawn->endTime, entry.end_ns);
  }

  GenericTraceActivity& added(ActivityType type, const std::string& name, int64_t begin_ns, int64_t end_ns) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = begin_ns;
    activity.endTime = end_ns;
    return activity;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;  // Kineto keeps it as long as the trace
  std::map<std::pair<uint64_t, int64_t>, GenericTraceActivity*> ranges_;  // by number and stream
  std::set<int64_t> streams_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return available_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    return wanted.count(ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_{"testdev"};
  const std::set<ActivityType> available_{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                          ActivityType::GPU_USER_ANNOTATION, ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace testdev
