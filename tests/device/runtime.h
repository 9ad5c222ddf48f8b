// What the parts of the test device share: the ledger, the work on streams, events, and memory.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace testdev {

constexpr auto DEVICE_TYPE = c10::DeviceType::PrivateUse1;
inline c10::Device device() { return {DEVICE_TYPE, 0}; }
inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == DEVICE_TYPE;
}

// The ledger -----------------------------------------------------------------------------------------------------------

enum class Kind { KERNEL, COLLECTIVE, COPY, WAIT, EVENT, HOST_CALL };

// One thing that ran: on a stream, or (HOST_CALL) on a thread of the host. Times are ns since the Unix epoch.
struct Entry {
  std::string name;
  Kind kind = Kind::KERNEL;
  int64_t stream = 0;       // of a HOST_CALL: the thread
  int64_t launched_ns = 0;  // when the host put it on the stream
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t correlation = 0;  // the same for a launch and for what it launched
  int64_t nbytes = -1;      // of a copy
  bool launches = false;    // of a HOST_CALL: whether it put work on a stream
  uint64_t operator_id = 0;  // Kineto's numbers of the operator and of the user's range around the launch
  uint64_t range_id = 0;
};
using EntryPtr = std::shared_ptr<Entry>;

int64_t now_ns();
std::vector<Entry> take_ledger();  // everything that ended on a stream since the last call, in order of its end
std::vector<Entry> take_calls();   // all of the host's calls that ended since the last call

// profiler.cpp
bool profiling();
void note_scopes(Entry& entry);  // the operator and the range that are open on this thread
int64_t thread_id();             // as in a profiler file
void profile(EntryPtr entry);

// A call of the runtime by the host, from construction to destruction, for the profiler.
class HostCall {
 public:
  explicit HostCall(const char* name, bool launches = false);
  ~HostCall();
  HostCall(const HostCall&) = delete;
  int64_t correlation() const { return entry_->correlation; }

 private:
  const EntryPtr entry_;
  const bool profiled_;
};

// Streams --------------------------------------------------------------------------------------------------------------

// Shortest time of each kernel and of each collective, in ns: tests plant lengths with them.
extern std::atomic<int64_t> kernel_floor_ns;
extern std::atomic<int64_t> collective_floor_ns;

// The device serves this process in the `turn`-th of each `turns` slices of time, so long that what began ends. A length
// of 0: it serves nobody else.
extern std::atomic<int64_t> slice_ns;
extern std::atomic<int64_t> turn;
extern std::atomic<int64_t> turns;

c10::Stream current_stream();
c10::Stream new_stream();  // one from the pool
EntryPtr launch(c10::Stream stream, Kind kind, std::string name, std::function<void()> work, int64_t nbytes = -1);
void synchronize(c10::Stream stream);  // throws what a kernel of the stream has thrown
void synchronize_all();
void drain_all();  // waits likewise, and throws nothing

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  int64_t at_ns = 0;
};
using Event = std::shared_ptr<EventState>;

Event record(c10::Stream stream);
void make_wait(c10::Stream stream, const Event& event);
bool is_done(const Event& event);
void wait_on_host(const Event& event);

// Memory ---------------------------------------------------------------------------------------------------------------

c10::Allocator* allocator();
bool is_pinned(const void* data);

// On CUDA, a freed tensor's memory goes to the next allocation of the stream that allocated it, and later work of that
// stream writes there. This device, where a test asks for it, overwrites the memory then, as soon as that stream and all
// streams noted here have done what they were given before. What uses it on a stream that was not noted reads rubbish.
extern std::atomic<bool> overwrites_freed;
void note_use(const at::DataPtr& data, c10::Stream stream);

// A CPU tensor over the same memory, which lives as long as that tensor, whatever happens to the original's storage.
at::Tensor on_host(const at::Tensor& tensor);

// The CPU's generator from which kernels draw, for one of the device's.
at::Generator generator_of_kernels(const at::Generator& generator);

}  // namespace testdev
