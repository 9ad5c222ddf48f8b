// Stock DDP's buckets, recorded without a line of Python: in front of the dispatcher tap stands a kernel of the one
// operator that they are sent by. It knows a bucket by where it lies in memory, which the tap has taught it, and writes
// its records into slots of the mapped file that Python has set apart before that backward. All else it passes on.
//
// Python calls what is under `extern "C"`, holding its lock; the kernel and the callbacks run on threads that do not.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <time.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace {

// As `schema.EVENT`: of its fields only these are known here, the others come from Python as they are to be written.
struct Record {
  uint8_t kind, flags;
  uint16_t thread;
  uint32_t name;
  int64_t begin, end, seq, nbytes, c;
  uint32_t d, e;
  uint16_t f, g;
  uint32_t guard;
};
static_assert(sizeof(Record) == 64);

// One all-reduce as it was asked for. `group` tells groups apart and no more: it may be gone by now.
struct Ask {
  const void* data = nullptr;
  int64_t nbytes = 0;
  const void* group = nullptr;

  bool operator==(const Ask& other) const {
    return data != nullptr && data == other.data && nbytes == other.nbytes && group == other.group;
  }
};

struct Bucket {
  Ask ask;
  Record call, done;
};

struct Failure {
  int64_t seq, at;
  std::string words;
};

struct State {
  std::mutex lock;
  std::vector<Bucket> plan;  // in the order in which they are sent
  bool sending = false;      // in a backward in which they are
  pthread_t thread{};        // of that backward
  Record* slots = nullptr;   // two for each bucket; none in a backward that is not to be recorded
  int64_t first_seq = 0;
  uint16_t number = 0;       // of that thread, in the records
  size_t sent = 0;
  int64_t generation = 0;    // callbacks of an older one have no slots any more
  int64_t under_way = 0;     // of this generation
  bool fooled = false;       // by a call that looked like a bucket
  std::deque<Failure> failed;
};

alignas(State) unsigned char memory[sizeof(State)];
State* state = new (memory) State;
std::atomic<bool> watched{false};
thread_local Ask last;  // that went on to the tap

int64_t now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

void write(Record* slot, const Record& like, int64_t begin, int64_t end, int64_t seq, uint16_t thread) {
  Record record = like;
  record.thread = thread;
  record.begin = begin;
  record.end = end;
  record.seq = seq;
  record.guard = 0;
  std::memcpy(slot, &record, sizeof record);
  std::atomic_thread_fence(std::memory_order_release);
  reinterpret_cast<volatile Record*>(slot)->guard = like.guard;  // last: without it a record is torn
}

// Where an operator's arguments stand.
struct Places {
  size_t count, tensors, group, is_async;

  explicit Places(const c10::FunctionSchema& schema) : count(schema.arguments().size()) {
    tensors = *schema.argumentIndexWithName("tensors");
    group = *schema.argumentIndexWithName("process_group");
    is_async = *schema.argumentIndexWithName("async_op");
  }
};

// None where it cannot be a bucket. A tensor that only has a shape, or not even that, may throw.
Ask asked(const c10::OperatorHandle& op, const torch::jit::Stack& stack) try {
  static const Places places(op.schema());
  const c10::IValue* args = stack.data() + stack.size() - places.count;
  if (!args[places.tensors].isTensorList() || !args[places.is_async].toBool()) return {};
  const auto tensors = args[places.tensors].toListRef();
  if (tensors.size() != 1 || !tensors[0].isTensor()) return {};
  const at::Tensor& tensor = tensors[0].toTensor();
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) return {};
  return {tensor.const_data_ptr(), static_cast<int64_t>(tensor.nbytes()),
          args[places.group].toObjectRef().getSlot(0).toCapsule().get()};
} catch (...) {
  return {};
}

struct Sending {
  Bucket bucket;
  Record* slots;
  int64_t seq, generation;
  uint16_t thread;
};

// A bucket that was sent is asked for again: what was taken for it was a call of the program, on the same memory. It is
// told as that, and nothing is taken for a bucket any more.
void unmask(const Ask& ask) {
  for (size_t at = 0; at < state->sent; ++at) {
    if (!(state->plan[at].ask == ask)) continue;
    state->fooled = true;
    if (state->slots == nullptr) return;
    state->slots[2 * at].flags = 0;
  }
}

// Whether this is the bucket that comes next. What else is sent in a backward ends the short way for the rest of it.
bool is_next(const Ask& ask, Sending& found) {
  const std::lock_guard<std::mutex> guard(state->lock);
  if (!state->sending || !pthread_equal(state->thread, pthread_self())) return false;
  if (state->sent >= state->plan.size() || !(state->plan[state->sent].ask == ask)) {
    unmask(ask);
    state->sending = false;
    return false;
  }
  const size_t at = state->sent++;
  Record* slots = state->slots == nullptr ? nullptr : state->slots + 2 * at;
  found = {state->plan[at], slots, state->first_seq + static_cast<int64_t>(at), state->generation, state->number};
  if (slots != nullptr) ++state->under_way;
  return true;
}

void is_over(const Sending& sending, const c10::ivalue::Future* future) {
  const int64_t at = now();
  const std::lock_guard<std::mutex> guard(state->lock);
  if (sending.generation != state->generation) return;
  --state->under_way;
  if (future == nullptr) return;
  if (future->hasError()) {
    state->failed.push_back({sending.seq, at, future->tryRetrieveErrorMessage()});
  } else {
    write(sending.slots + 1, sending.bucket.done, at, at, sending.seq, sending.thread);
  }
}

void record(const Sending& sending, int64_t launch, const c10::IValue& work) {
  {
    const int64_t issued = now();
    const std::lock_guard<std::mutex> guard(state->lock);
    if (sending.generation != state->generation) return;
    write(sending.slots, sending.bucket.call, launch, issued, sending.seq, sending.thread);
  }
  try {
    work.toCustomClass<c10d::Work>()->getFuture()->addCallback(
        [sending](c10::ivalue::Future& future) { is_over(sending, &future); });
  } catch (...) {
    is_over(sending, nullptr);  // nothing tells when
  }
}

const c10::DispatchKeySet kAfter(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::ADInplaceOrView);

void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto on = keys & kAfter, past = on.remove(c10::DispatchKey::BackendSelect);  // where the tap stands
  if (!watched.load(std::memory_order_relaxed)) return op.redispatchBoxed(past, stack);
  const Ask ask = asked(op, *stack);
  Sending sending;
  if (!is_next(ask, sending)) {
    last = ask;
    return op.redispatchBoxed(on, stack);
  }
  const int64_t launch = now();
  try {
    op.redispatchBoxed(past, stack);
  } catch (...) {
    if (sending.slots != nullptr) is_over(sending, nullptr);
    throw;
  }
  if (sending.slots != nullptr) record(sending, launch, stack->back());
}

// A forked child has none of the threads that may have held the lock.
void begin_anew() {
  state = new (memory) State;
  watched = false;
}

const int at_fork = pthread_atfork(nullptr, nullptr, begin_anew);

}  // namespace

TORCH_LIBRARY_IMPL(c10d, ADInplaceOrView, library) {
  library.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&kernel>());
}

extern "C" {

// Whether anybody is to be told of all-reduces. Nobody: the tap is passed by.
void ddptrace_watch(int on) { watched = on != 0; }

void ddptrace_forget() {
  const std::lock_guard<std::mutex> guard(state->lock);
  state->plan.clear();
  state->sending = false;
}

// The all-reduce that this thread sent last through the tap is the next bucket of the plan; its two records, but for
// instants, thread and seq. 0 where it is none that can be known again.
int ddptrace_learn(const Record* call, const Record* done) {
  const std::lock_guard<std::mutex> guard(state->lock);
  if (last.data == nullptr) return 0;
  state->plan.push_back({last, *call, *done});
  last = {};
  return 1;
}

// This thread begins a backward. `slots`: two for each bucket of the plan, or none; `seq`: the first bucket's. 0 where no
// bucket is taken any more.
int ddptrace_begin(Record* slots, int64_t seq, int thread) {
  const std::lock_guard<std::mutex> guard(state->lock);
  state->sending = !state->plan.empty() && !state->fooled;
  state->thread = pthread_self();
  state->slots = slots;
  state->first_seq = seq;
  state->number = static_cast<uint16_t>(thread);
  state->sent = 0;
  return state->sending;
}

// So many buckets were sent since it began, the last time that it did; none is the short way from now on.
int64_t ddptrace_end() {
  const std::lock_guard<std::mutex> guard(state->lock);
  state->sending = false;
  return static_cast<int64_t>(state->sent);
}

// Buckets whose end is still to be written.
int64_t ddptrace_under_way() {
  const std::lock_guard<std::mutex> guard(state->lock);
  return state->under_way;
}

// From now on nothing is written into any slot.
void ddptrace_let_go() {
  const std::lock_guard<std::mutex> guard(state->lock);
  state->sending = false;
  state->slots = nullptr;
  ++state->generation;
  state->under_way = 0;
}

// Takes the next one that failed; `words` ends in 0, as much of them as has room. 0 where there is none.
int ddptrace_failure(int64_t* seq, int64_t* at, char* words, size_t room) {
  const std::lock_guard<std::mutex> guard(state->lock);
  if (state->failed.empty()) return 0;
  const Failure failure = state->failed.front();
  state->failed.pop_front();
  *seq = failure.seq;
  *at = failure.at;
  std::strncpy(words, failure.words.c_str(), room - 1);
  words[room - 1] = 0;
  return 1;
}

}  // extern "C"
