// Streams, events, memory and the ledger of the test device, and torch's interfaces to them.
#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ApproximateClock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <thread>

namespace testdev {

int64_t now_ns() {
  return c10::getTime();  // the clock of Kineto's files
}

namespace {

std::mutex ledger_mutex;
std::vector<Entry> ledger;
std::vector<Entry> calls;
std::atomic<int64_t> last_correlation{0};

void keep(const EntryPtr& entry) {
  std::lock_guard<std::mutex> lock(ledger_mutex);
  ledger.push_back(*entry);
}

}  // namespace

std::vector<Entry> take_ledger() {
  std::lock_guard<std::mutex> lock(ledger_mutex);
  return std::exchange(ledger, {});
}

std::vector<Entry> take_calls() {
  std::lock_guard<std::mutex> lock(ledger_mutex);
  return std::exchange(calls, {});
}

HostCall::HostCall(const char* name, bool launches) : entry_(std::make_shared<Entry>()), profiled_(profiling()) {
  entry_->name = name;
  entry_->kind = Kind::HOST_CALL;
  entry_->stream = thread_id();
  entry_->correlation = ++last_correlation;
  entry_->launches = launches;
  note_scopes(*entry_);
  entry_->begin_ns = now_ns();
}

HostCall::~HostCall() {
  entry_->end_ns = now_ns();
  {
    std::lock_guard<std::mutex> lock(ledger_mutex);
    calls.push_back(*entry_);
  }
  if (profiled_) {
    profile(entry_);
  }
}

// Streams --------------------------------------------------------------------------------------------------------------

std::atomic<int64_t> kernel_floor_ns{0};
std::atomic<int64_t> collective_floor_ns{0};
std::atomic<int64_t> slice_ns{0};
std::atomic<int64_t> turn{0};
std::atomic<int64_t> turns{1};

namespace {

struct Task {
  EntryPtr entry;
  std::function<void()> work;
  bool profiled = false;  // a profiler's window was open at the launch
  Event event;            // to be completed, or null
};

void complete(EventState& event, int64_t at_ns) {
  std::lock_guard<std::mutex> lock(event.mutex);
  event.done = true;
  event.at_ns = at_ns;
  event.changed.notify_all();
}

void last_until(int64_t end_ns) {
  if (auto left = end_ns - now_ns(); left > 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }
}

void wait_for_turn() {
  const auto slice = slice_ns.load();
  while (slice && now_ns() / slice % turns != turn) {
    last_until((now_ns() / slice + 1) * slice);
  }
}

int64_t floor_of(Kind kind) {
  return kind == Kind::KERNEL ? kernel_floor_ns.load() : kind == Kind::COLLECTIVE ? collective_floor_ns.load() : 0;
}

// A thread that does one task after another. It starts with the first task, so that a process may fork before.
class Queue {
 public:
  explicit Queue(int64_t id) : id_(id) {}

  void push(Task task) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pushed_++ == 0) {
      std::thread([this] { run(); }).detach();  // it ends with the process
    }
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  // Work of the device's own, which neither the ledger nor a profiler has.
  void push_unseen(std::function<void()> work) { push({nullptr, std::move(work)}); }

  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return done_ == pushed_;
  }

  // Waits for what was pushed before.
  void drain() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this, all = pushed_] { return done_ >= all; });
  }

  void synchronize() {
    drain();
    std::lock_guard<std::mutex> lock(mutex_);
    if (auto error = std::exchange(error_, nullptr)) {
      std::rethrow_exception(error);
    }
  }

 private:
  void run() {
    pthread_setname_np(pthread_self(), ("testdev-" + std::to_string(id_)).c_str());
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::AutoGradMode no_grad(false);
    at::DisableRecordFunctionGuard unseen;  // its operators are no operators of the program's
    at::set_num_threads(1);
    while (true) {
      do_one(next());
      std::lock_guard<std::mutex> lock(mutex_);
      ++done_;
      changed_.notify_all();
    }
  }

  Task next() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  void do_one(Task task) {
    if (!task.entry) {
      return task.work();
    }
    wait_for_turn();
    Entry& entry = *task.entry;
    entry.begin_ns = now_ns();
    try {
      task.work();
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      error_ = error_ ? error_ : std::current_exception();
    }
    // A transfer begins when the last rank has come, so that all ranks end together.
    last_until((entry.kind == Kind::COLLECTIVE ? now_ns() : entry.begin_ns) + floor_of(entry.kind));
    entry.end_ns = entry.kind == Kind::EVENT ? entry.begin_ns : now_ns();
    keep(task.entry);
    if (task.profiled) {
      profile(task.entry);
    }
    if (task.event) {  // last: whoever waits for it finds the ledger complete
      complete(*task.event, entry.end_ns);
    }
  }

  const int64_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t pushed_ = 0;
  int64_t done_ = 0;
  std::exception_ptr error_;
};

constexpr int64_t POOL = 32;
std::atomic<int64_t> streams_given{0};
thread_local int64_t current_id = 0;

// Never destroyed: the threads outlive the end of main().
Queue& queue(int64_t id) {
  static auto* queues = [] {
    auto* made = new std::deque<Queue>;
    for (int64_t id = 0; id <= POOL; ++id) {
      made->emplace_back(id);
    }
    return made;
  }();
  return queues->at(id);
}

c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, device(), id); }

EntryPtr push(c10::Stream stream, Kind kind, std::string name, std::function<void()> work, const HostCall& call,
              int64_t nbytes = -1, Event event = nullptr) {
  auto entry = std::make_shared<Entry>();
  entry->name = std::move(name);
  entry->kind = kind;
  entry->stream = stream.id();
  entry->launched_ns = now_ns();
  entry->correlation = call.correlation();
  entry->nbytes = nbytes;
  note_scopes(*entry);
  queue(stream.id()).push({entry, std::move(work), profiling(), std::move(event)});
  return entry;
}

}  // namespace

c10::Stream current_stream() { return stream(current_id); }

c10::Stream new_stream() { return stream(1 + streams_given++ % POOL); }

// The names are CUDA's: programs that read profiler files know them.
EntryPtr launch(c10::Stream stream, Kind kind, std::string name, std::function<void()> work, int64_t nbytes) {
  HostCall call(kind == Kind::COPY ? "cudaMemcpyAsync" : "cudaLaunchKernel", true);
  return push(stream, kind, std::move(name), std::move(work), call, nbytes);
}

void synchronize(c10::Stream stream) {
  HostCall call("cudaStreamSynchronize");
  queue(stream.id()).synchronize();
}

void drain_all() {
  for (int64_t id = 0; id <= POOL; ++id) {
    queue(id).drain();
  }
}

void synchronize_all() {
  HostCall call("cudaDeviceSynchronize");
  drain_all();
  for (int64_t id = 0; id <= POOL; ++id) {
    queue(id).synchronize();
  }
}

// An event is a new state at each record: who waits for the record before is not disturbed.
Event record(c10::Stream stream) {
  HostCall call("cudaEventRecord");
  auto event = std::make_shared<EventState>();
  push(stream, Kind::EVENT, "event", [] {}, call, -1, event);
  return event;
}

void make_wait(c10::Stream stream, const Event& event) {
  HostCall call("cudaStreamWaitEvent");
  push(stream, Kind::WAIT, "wait", [event] { wait_on_host(event); }, call);
}

bool is_done(const Event& event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->done;
}

void wait_on_host(const Event& event) {
  std::unique_lock<std::mutex> lock(event->mutex);
  event->changed.wait(lock, [&event] { return event->done; });
}

// Torch's way to streams and events ------------------------------------------------------------------------------------

namespace {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE_TYPE; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return device(); }
  c10::Device exchangeDevice(c10::Device to) const override {
    setDevice(to);
    return device();
  }
  void setDevice(c10::Device to) const override { TORCH_CHECK(to.index() <= 0, "there is one test device"); }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return current_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return new_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return new_stream(); }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(std::exchange(current_id, to.id())); }
  bool queryStream(const c10::Stream& stream) const override { return queue(stream.id()).is_idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(c10::DeviceIndex) const override { synchronize_all(); }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) {
      *event = new Event;
    }
    state(*event) = testdev::record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) {
      make_wait(stream, state(event));
    }
  }
  bool queryEvent(void* event) const override { return !event || is_done(state(event)); }
  void synchronizeEvent(void* event) const override {
    HostCall call("cudaEventSynchronize");
    if (event) {
      wait_on_host(state(event));
    }
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    TORCH_CHECK(is_done(state(from)) && is_done(state(to)), "both events must be completed before their time is taken");
    return static_cast<double>(state(to)->at_ns - state(from)->at_ns) / 1e6;
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    note_use(data, stream);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static Event& state(void* event) { return *static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

// Memory ---------------------------------------------------------------------------------------------------------------

namespace {

constexpr size_t ALIGNMENT = 64;
std::atomic<int64_t> allocated{0};
std::atomic<int64_t> most_allocated{0};

void* aligned(size_t nbytes) {
  void* memory = nullptr;
  TORCH_CHECK(posix_memalign(&memory, ALIGNMENT, std::max(nbytes, ALIGNMENT)) == 0, "out of memory");
  return memory;
}

// Memory that tensors and tasks share: a tensor may be gone, or resized to nothing, before its kernels have run.
struct Block {
  explicit Block(size_t nbytes) : memory(aligned(nbytes)), nbytes(static_cast<int64_t>(nbytes)), stream(current_id) {
    int64_t now = allocated += this->nbytes;
    most_allocated = std::max(most_allocated.load(), now);
  }
  ~Block() {
    free(memory);
    allocated -= nbytes;
  }
  void* memory;
  int64_t nbytes;
  const int64_t stream;  // that allocated it
  std::mutex mutex;
  std::set<int64_t> noted;  // other streams that use it
};
using BlockPtr = std::shared_ptr<Block>;

void let_go(void* context) { delete static_cast<BlockPtr*>(context); }  // of a task

constexpr int RUBBISH = 0xff;  // makes NaN of every floating-point number

struct Freed {
  explicit Freed(BlockPtr of) : block(std::move(of)), left(block->noted.size() + 1) {}
  void one_is_done() {
    if (--left == 0) {
      memset(block->memory, RUBBISH, block->nbytes);
    }
  }
  BlockPtr block;
  std::atomic<size_t> left;  // streams that have not done yet what they were given before
};

std::mutex freed_mutex;
std::map<int64_t, std::vector<std::shared_ptr<Freed>>> freed_by_stream;

// Of a tensor: its stream's next allocation may be given this memory.
void free_block(void* context) {
  BlockPtr block = *static_cast<BlockPtr*>(context);
  let_go(context);
  if (!overwrites_freed) {
    return;
  }
  auto freed = std::make_shared<Freed>(block);
  for (auto id : block->noted) {
    queue(id).push_unseen([freed] { freed->one_is_done(); });
  }
  std::lock_guard<std::mutex> lock(freed_mutex);
  freed_by_stream[block->stream].push_back(freed);
}

void give_freed_to(int64_t stream) {
  std::vector<std::shared_ptr<Freed>> given;
  {
    std::lock_guard<std::mutex> lock(freed_mutex);
    given.swap(freed_by_stream[stream]);
  }
  for (const auto& freed : given) {
    queue(stream).push_unseen([freed] { freed->one_is_done(); });
  }
}

BlockPtr* block_of(const c10::DataPtr& data) {
  bool is_ours = data.get_deleter() == &let_go || data.get_deleter() == &free_block;
  return is_ours ? static_cast<BlockPtr*>(data.get_context()) : nullptr;
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes && overwrites_freed) {
      give_freed_to(current_id);
    }
    auto block = std::make_shared<Block>(nbytes);
    return {block->memory, new BlockPtr(block), &free_block, device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { default_copy_data(to, from, nbytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { note_use(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = allocated;
    stats.allocated_bytes[0].peak = most_allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { most_allocated = allocated.load(); }
};

DeviceMemory device_memory;
const auto registered_memory = (c10::SetAllocator(DEVICE_TYPE, &device_memory), true);

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    auto* memory = static_cast<char*>(aligned(nbytes));
    std::lock_guard<std::mutex> lock(mutex);
    ends[memory] = memory + std::max(nbytes, ALIGNMENT);
    return {memory, memory, &unpin, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t nbytes) const override { default_copy_data(to, from, nbytes); }

  static void unpin(void* memory) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ends.erase(static_cast<char*>(memory));
    }
    free(memory);
  }

  static inline std::mutex mutex;
  static inline auto& ends = *new std::map<const char*, const char*>;  // by begin
};

PinnedMemory pinned_memory;

}  // namespace

c10::Allocator* allocator() { return &device_memory; }

std::atomic<bool> overwrites_freed{false};

void note_use(const c10::DataPtr& data, c10::Stream stream) {
  if (auto* block = block_of(data)) {
    std::lock_guard<std::mutex> lock((*block)->mutex);
    (*block)->noted.insert(stream.id());
  }
}

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> lock(PinnedMemory::mutex);
  auto after = PinnedMemory::ends.upper_bound(static_cast<const char*>(data));
  return after != PinnedMemory::ends.begin() && std::prev(after)->second > data;
}

at::Tensor on_host(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const c10::DataPtr& data = storage.data_ptr();
  c10::DataPtr same;
  if (auto* block = block_of(data)) {
    same = {data.get(), new BlockPtr(*block), &let_go, at::kCPU};
  } else {
    same = {storage.mutable_data(), new c10::Storage(storage), [](void* it) { delete static_cast<c10::Storage*>(it); },
            at::kCPU};
  }
  c10::Storage shared(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(same), nullptr, false);
  auto twin = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  twin.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return twin;
}

// What else torch asks a device ----------------------------------------------------------------------------------------

namespace {

// Kernels draw their numbers on the stream, one after another, from a generator of the CPU.
struct Generator final : at::CPUGeneratorImpl {
  Generator() {
    device_ = device();
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override {
    CPUGeneratorImpl::set_current_seed(seed);
    of_kernels.set_current_seed(seed);
  }
  at::Generator of_kernels = at::make_generator<at::CPUGeneratorImpl>();
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::make_generator<Generator>();
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    auto data = device_memory.allocate(nbytes);
    if (auto kept = std::min(storage.nbytes(), nbytes)) {
      synchronize_all();
      memcpy(data.get(), storage.data(), kept);
    }
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(nbytes);
  }
};

const auto registered_hooks = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

}  // namespace

at::Generator generator_of_kernels(const at::Generator& generator) {
  return generator.device().type() == DEVICE_TYPE ? generator.get<Generator>()->of_kernels : generator;
}
}  // namespace testdev
