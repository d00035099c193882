// The memory of one device and what lives in it: activations, weight matrices, KV cache, batch
// tables. Implemented by the CPU (worker/device/cpu) and by GPUs, real or emulated
// (worker/device/cuda).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/files/dtype.h"
#include "schemas/ids.h"
#include "worker/device/tensor.h"

namespace kvern {

class Ops;

// How a weight matrix is kept in device memory.
//   kF32, kBf16: one value per element.
//   kInt8: w = scale * q, one scale per row and group of 32 columns.
//   kInt4: w = scale * q + min, q in [0, 15], scale and min per row and group of 32 columns.
enum class WeightFormat : uint8_t { kF32, kBf16, kInt8, kInt4 };
inline constexpr int64_t kQuantGroup = 32;

// Memory that the device owns; freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual size_t bytes() const = 0;  // as allocated, padding included
};

// A weight matrix [rows = outputs, cols = inputs] in the device's own layout, filled at load.
class Matrix {
 public:
  virtual ~Matrix() = default;
  virtual int64_t rows() const = 0;
  virtual int64_t cols() const = 0;
  virtual WeightFormat format() const = 0;
  virtual size_t bytes() const = 0;  // as allocated, padding included

  // Writes rows [first_row, first_row + count) from `source`: consecutive rows of cols() elements
  // in the file's encoding `dtype` (bytes of a row = cols / block_elements * block_bytes).
  // F32/F16/BF16 go to kF32 or kBf16 (round to nearest even), Q8_0 to kInt8 and Q4_0/Q4_1 to kInt4
  // without loss; every dtype may go to kF32. Different rows may be written by different threads at
  // once, before the first operation that uses the matrix. Errors: InvalidArgument for a pair of
  // dtype and format not listed here.
  virtual absl::Status SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                               std::span<const std::byte> source) = 0;
  absl::Status SetRow(int64_t row, FileDtype dtype, std::span<const std::byte> source) {
    return SetRows(row, 1, dtype, source);
  }
};

struct KvCacheShape {
  int64_t num_blocks = 0;
  int64_t num_layers = 0;
  int64_t kv_heads = 0;  // of this rank
  int64_t head_dim = 0;
  DType dtype = DType::kBf16;

  // Bytes of one block: layers * 2 * kv_heads * kBlockSize * head_dim * element size.
  size_t BlockBytes() const {
    return static_cast<size_t>(num_layers * 2 * kv_heads * kBlockSize * head_dim) * SizeOf(dtype);
  }
};

// Paged keys and values, layout [block][layer][K|V][kv_head][token][head_dim]: one head's tokens of
// a block are contiguous ("HND"). Allocated and touched when created.
class KvCache {
 public:
  virtual ~KvCache() = default;
  virtual const KvCacheShape& shape() const = 0;
  virtual void* data() = 0;
};

// One sequence's share of a step: `count` consecutive tokens from position `start`; its block table
// covers at least start + count tokens.
struct BatchSequence {
  int64_t first_row = 0;  // row of its first token in the step's tensors
  int64_t start = 0;
  int64_t count = 0;
  std::span<const uint32_t> block_table;
};

// All that the kernels need to know of a step, on the host. Rows of all tensors are the tokens of
// the step, sequence after sequence, without padding.
struct BatchLayout {
  std::vector<uint32_t> token_ids;  // [num_tokens]
  std::vector<uint32_t> positions;  // [num_tokens]
  std::vector<BatchSequence> sequences;
  std::vector<int64_t> logit_rows;  // rows whose logits are wanted, ascending
};

// What the layouts of a batch hold at most, and the attention that reads it.
struct BatchLimits {
  int64_t tokens = 0;
  int64_t logit_rows = 0;
  int64_t block_entries = 0;  // of all block tables together
  int64_t q_heads = 0;        // of this rank
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// The device's copy of a BatchLayout; reused from step to step. The layout passed to Load must stay
// alive until the step's ops are done where those run on the host. A GPU has a copy of its own: the
// next layout may be loaded when all ops of the step are enqueued, while they still run.
class Batch {
 public:
  static constexpr int kMaxSlots = 2;

  virtual ~Batch() = default;

  // `padded_rows` 0: the rows are the layout's. Else they are `padded_rows`, at least as many as
  // tokens and as logit rows, of both: the rows beyond the layout's compute what nobody reads and
  // store nothing, and the work depends on `padded_rows` alone, so that one graph serves all such
  // layouts. Only for devices that have graphs, and for sequences of one token each.
  virtual absl::Status Load(const BatchLayout& layout, int64_t padded_rows) = 0;

  // Takes the token ids of the layout that was loaded last anew; nothing else of it has changed.
  virtual absl::Status SetTokenIds(const BatchLayout& layout) = 0;

  // Where the layout lies that was loaded last, below kMaxSlots: a recorded step serves layouts of
  // its slot.
  virtual int slot() const = 0;

  virtual size_t bytes() const = 0;  // of device memory
};

// A recorded step.
class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues what was recorded, with the same pointers and sizes.
  virtual absl::Status Launch() = 0;
};

class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  // Records what `body` enqueues, operations and collectives, instead of running it. `body` neither
  // allocates nor waits.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Record(
      const std::function<absl::Status()>& body) = 0;
};

// One device of one rank. All calls from the rank's thread, except where a comment says otherwise.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;         // "cpu"
  virtual std::string description() const = 0;  // "AVX-512, 2 threads"
  // What lies between operations: outputs of norms, of attention and SwiGlu, q, k and v, gates. The
  // residual stream, what is added to it and the logits are float32 on every device.
  virtual DType activation_dtype() const = 0;
  // Bytes of kQuantGroup columns of one row of a matrix asked for in this format, padding left out.
  virtual size_t GroupBytes(WeightFormat format) const = 0;
  // Whether the host may use pointers into the device's memory itself.
  virtual bool host_memory() const = 0;

  struct Memory {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
  };
  // Of a device with memory of its own; FailedPrecondition where it is the host's. What is laid out
  // is not free.
  virtual absl::StatusOr<Memory> OwnMemory() = 0;

  // Memory that is asked for between the two is only laid out; Commit allocates all of it in one
  // piece, and it has addresses from then on. So a rank's size is known before it takes any, and
  // what it reports is what it has. ResourceExhausted when it cannot be had; the layout is lost.
  // Outside, and where the device's memory is the host's, memory is there at once.
  virtual void BeginLayout() = 0;
  virtual absl::Status Commit() = 0;
  // What the device takes for itself with the first memory that is asked for.
  virtual size_t own_bytes() const = 0;

  // ResourceExhausted when the memory cannot be had. The content is zero.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Matrix>> NewMatrix(WeightFormat format, int64_t rows,
                                                            int64_t cols) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheShape& shape) = 0;
  // InvalidArgument for an attention that this device has no kernel for.
  virtual absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) = 0;
  // Null where steps cannot be recorded.
  virtual GraphRecorder* graph_recorder() = 0;

  // Operations are enqueued in order; their results are visible to the host after Synchronize(),
  // which also tells of any operation that failed: what came after it is void, and the device too.
  virtual Ops& ops() = 0;
  virtual absl::Status Synchronize() = 0;
  // In order with the operations. On return `source` may be reused, and `target` of CopyToHost has
  // the bytes.
  virtual absl::Status CopyToDevice(void* target, const void* source, size_t bytes) = 0;
  virtual absl::Status CopyToHost(void* target, const void* source, size_t bytes) = 0;

  // Runs body(0..count-1) on the device's host threads; used to load weights in parallel.
  virtual void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) = 0;
};

}  // namespace kvern
