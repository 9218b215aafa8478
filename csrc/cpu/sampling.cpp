#include "foreword/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "philox.h"
#include "sampling_isa.h"
#include "sampling_stage.h"

namespace foreword {
namespace {

constexpr float kGreedyBelow = 1e-4f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kMinCapacity = 1024;  // ids gathered beyond the best k before they are thinned
constexpr std::size_t kChunk = 256;         // ids summed together when a row is drawn from as a whole

const LogitPasses& passes_for([[maybe_unused]] InstructionSet isa) {
#if FOREWORD_HAVE_AVX2
  if (isa == InstructionSet::kAvx2) return kLogitPassesAvx2;
#endif
#if FOREWORD_HAVE_NEON
  if (isa == InstructionSet::kNeon) return kLogitPassesNeon;
#endif
  return kLogitPassesScalar;
}

// Room to work on one row. Not initialised: what is not used is never touched.
struct Scratch {
  explicit Scratch(std::size_t vocab_size)
      : capacity(vocab_size + kMinCapacity + kGatherSlack),
        ids(std::make_unique_for_overwrite<std::int32_t[]>(capacity)),
        keys(std::make_unique_for_overwrite<std::uint64_t[]>(capacity)),
        spare_keys(std::make_unique_for_overwrite<std::uint64_t[]>(capacity)),
        logits(std::make_unique_for_overwrite<float[]>(vocab_size)),
        weights(std::make_unique_for_overwrite<double[]>(vocab_size + kChunk)) {}

  std::size_t capacity;
  std::unique_ptr<std::int32_t[]> ids;    // just gathered
  std::unique_ptr<std::uint64_t[]> keys;  // the list: logits and ids, see key_of
  std::unique_ptr<std::uint64_t[]> spare_keys;
  std::unique_ptr<float[]> logits;    // of the list
  std::unique_ptr<double[]> weights;  // of the list, the largest of the row being 1; or of chunks
};

// Orders ids by falling logit, then rising id: 32 bits that fall as the logit rises, then the id.
std::uint64_t key_of(float logit, std::int32_t id) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(logit + 0.0f);  // no negative zero
  const std::uint32_t rising = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return static_cast<std::uint64_t>(~rising) << 32 | static_cast<std::uint32_t>(id);
}

std::int32_t id_of(std::uint64_t key) {
  return static_cast<std::int32_t>(key & 0xffffffffU);
}

// Sorts keys whose ids already rise, in three stable passes over the upper half; for few keys an ordinary sort is
// faster.
void sort_keys(std::uint64_t* keys, std::uint64_t* spare, std::size_t count) {
  if (count < 2048) return std::sort(keys, keys + count);
  constexpr unsigned kDigitBits = 11, kShifts[] = {32, 43, 54};
  constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
  std::array<std::uint32_t, kDigits> places;
  for (const unsigned shift : kShifts) {
    places.fill(0);
    for (std::size_t i = 0; i < count; ++i) ++places[keys[i] >> shift & (kDigits - 1)];
    std::uint32_t next = 0;
    for (std::uint32_t& place : places) next += std::exchange(place, next);
    for (std::size_t i = 0; i < count; ++i) spare[places[keys[i] >> shift & (kDigits - 1)]++] = keys[i];
    std::swap(keys, spare);
  }
  std::copy(keys, keys + count, spare);  // three passes leave the result in the other array
}

// Scratch of each thread that has a row which wants some; made before the region, in which nothing may fail.
template <class Wants>
std::vector<std::unique_ptr<Scratch>> make_scratch(std::size_t num_threads, std::size_t num_rows,
                                                   std::size_t vocab_size, Wants wants) {
  std::vector<std::unique_ptr<Scratch>> made(num_threads);
  for (std::size_t thread = 0; thread < num_threads; ++thread) {
    const auto [begin, end] = split_evenly(num_rows, thread, num_threads);
    for (std::size_t r = begin; r < end && made[thread] == nullptr; ++r) {
      if (wants(r)) made[thread] = std::make_unique<Scratch>(vocab_size);
    }
  }
  return made;
}

bool is_greedy(const SampleRow& settings) {
  return settings.temperature < kGreedyBelow;
}

// The first of ids [begin, end) with the largest logit, which is `peak`; id 0 where none is above -infinity.
std::int32_t first_with(const LogitPasses& passes, const float* logits, float peak, std::size_t begin,
                        std::size_t end) {
  if (peak == -kInfinity) return 0;
  std::int32_t first[kGatherSlack];
  std::size_t next;
  passes.gather_above(logits, begin, end, std::nextafter(peak, -kInfinity), first, kGatherSlack, &next);
  return first[0];
}

// One row of logits. Lists of ids live in the scratch, which is null where none are made and nothing is drawn.
class LogitRow {
 public:
  LogitRow(const LogitPasses& passes, const float* logits, std::size_t vocab_size, Scratch* scratch)
      : passes_(passes), logits_(logits), vocab_size_(vocab_size), scratch_(scratch) {
    peak_ = passes.largest(logits, vocab_size);
  }

  float peak() const { return peak_; }

  float logit(std::int32_t id) const {
    const float value = logits_[static_cast<std::size_t>(id)];
    return std::isnan(value) ? -kInfinity : value;
  }

  std::int32_t best() const { return first_with(passes_, logits_, peak_, 0, vocab_size_); }

  std::int32_t listed(std::size_t i) const { return id_of(room().keys[i]); }

  double weight_sum(double inverse_temperature) const {
    return passes_.weigh(logits_, vocab_size_, peak_, inverse_temperature, nullptr);
  }

  std::size_t num_above(float bound) const { return passes_.count_above(logits_, vocab_size_, bound); }

  // Lists the k best, best first. k <= vocab_size.
  void list_best(std::size_t k) {
    std::uint64_t* const keys = room().keys.get();
    std::size_t found = 0, next = 0;
    float bound = -kInfinity;
    while (next < vocab_size_) {
      const std::size_t capacity = k + kMinCapacity + kGatherSlack - found;
      found += gather(&next, bound, capacity, keys + found);
      if (found <= k) continue;
      // An id that follows loses against an equal logit among these: only larger ones need gathering.
      std::nth_element(keys, keys + k - 1, keys + found);
      bound = logit(id_of(keys[k - 1]));
      found = k;
    }
    for (std::int32_t id = 0; found < k; ++id) {
      if (logit(id) == -kInfinity) keys[found++] = key_of(-kInfinity, id);
    }
    std::sort(keys, keys + k);
  }

  // Lists every id with a logit above `bound`, in ascending order; returns how many.
  std::size_t list_above(float bound) {
    std::size_t next = 0;
    return gather(&next, bound, room().capacity, room().keys.get());
  }

  void sort_listed(std::size_t count) { sort_keys(room().keys.get(), room().spare_keys.get(), count); }

  // Weights of the first `count` listed ids; returns their sum.
  double weigh_listed(std::size_t count, double inverse_temperature) {
    for (std::size_t i = 0; i < count; ++i) room().logits[i] = logit(listed(i));
    return passes_.weigh(room().logits.get(), count, peak_, inverse_temperature, room().weights.get());
  }

  // The id at which the running sum of all weights, by id, exceeds u of their total: first the chunk, then the id in
  // it.
  std::int32_t draw_by_id(double inverse_temperature, double u) {
    double* const chunk_sums = room().weights.get();
    const std::size_t num_chunks = (vocab_size_ + kChunk - 1) / kChunk;
    double total = 0;
    for (std::size_t c = 0; c < num_chunks; ++c) {
      const std::size_t size = std::min(kChunk, vocab_size_ - c * kChunk);
      chunk_sums[c] = passes_.weigh(logits_ + c * kChunk, size, peak_, inverse_temperature, nullptr);
      total += chunk_sums[c];
    }
    double running = 0;
    const std::size_t chunk = first_to_exceed(chunk_sums, num_chunks, u * total, running);
    const std::size_t size = std::min(kChunk, vocab_size_ - chunk * kChunk);
    double* const weights = chunk_sums + num_chunks;
    passes_.weigh(logits_ + chunk * kChunk, size, peak_, inverse_temperature, weights);
    return static_cast<std::int32_t>(chunk * kChunk + first_to_exceed(weights, size, u * total, running));
  }

  std::int32_t draw_listed(std::size_t count, double u) const {
    double total = 0, running = 0;
    for (std::size_t i = 0; i < count; ++i) total += room().weights[i];
    return listed(first_to_exceed(room().weights.get(), count, u * total, running));
  }

  // How many of the first `count` listed ids it takes to reach `share`; count + 1 where they do not.
  std::size_t num_reaching(std::size_t count, double share) const {
    double running = 0;
    for (std::size_t i = 0; i < count; ++i) {
      running += room().weights[i];
      if (running >= share) return i + 1;
    }
    return count + 1;
  }

  // How many of the first `count` listed ids weigh at least `floor`; no less than one.
  std::size_t num_heavy(std::size_t count, double floor) const {
    while (count > 1 && !(room().weights[count - 1] >= floor)) --count;
    return count;
  }

 private:
  Scratch& room() const { return *scratch_; }

  std::size_t gather(std::size_t* next, float bound, std::size_t capacity, std::uint64_t* keys) {
    const std::int32_t* const ids = room().ids.get();
    const std::size_t count =
        passes_.gather_above(logits_, *next, vocab_size_, bound, room().ids.get(), capacity, next);
    for (std::size_t i = 0; i < count; ++i) keys[i] = key_of(logits_[static_cast<std::size_t>(ids[i])], ids[i]);
    return count;
  }

  // Index at which `running` + the sum so far exceeds target; rounding may miss it, then the last that weighs
  // something. `running` becomes the sum before that index.
  static std::size_t first_to_exceed(const double* weights, std::size_t count, double target, double& running) {
    std::size_t last = 0;
    double before_last = running, sum = running;
    for (std::size_t i = 0; i < count; ++i) {
      if (weights[i] == 0) continue;
      last = i;
      before_last = sum;
      sum += weights[i];
      if (sum > target) break;
    }
    running = before_last;
    return last;
  }

  const LogitPasses& passes_;
  const float* logits_;
  std::size_t vocab_size_;
  Scratch* scratch_;
  float peak_;
};

// Lists the ids that top_p and min_p are to choose from, heaviest first, with their weights; returns how many. Without
// top_k the light ones are left out as far as possible: sorting a whole vocabulary costs more than all the rest.
std::size_t list_candidates(LogitRow& row, const SampleRow& settings, std::size_t vocab_size,
                            double inverse_temperature, double& share) {
  if (settings.top_k > 0) {
    const std::size_t count = std::min(static_cast<std::size_t>(settings.top_k), vocab_size);
    row.list_best(count);
    share = settings.top_p * row.weigh_listed(count, inverse_temperature);
    return count;
  }
  const bool has_top_p = settings.top_p < 1;
  share = has_top_p ? settings.top_p * row.weight_sum(inverse_temperature) : 0;
  // By how many units of temperature a listed logit may fall short of the peak: up to what min_p asks for, with some
  // to spare; no weight is left beyond 708.
  const double deepest = settings.min_p > 0 ? std::min(708.0, 0.01 - std::log(std::min(settings.min_p, 1.0f))) : 708.0;
  for (double depth = has_top_p ? std::min(4.0, deepest) : deepest;; depth = std::min(2 * depth, deepest)) {
    const double bound = row.peak() - depth / inverse_temperature;
    const std::size_t count = row.list_above(std::nextafter(static_cast<float>(bound), -kInfinity));
    const double listed = row.weigh_listed(count, inverse_temperature);
    if (depth < deepest && listed < share) continue;
    row.sort_listed(count);
    row.weigh_listed(count, inverse_temperature);
    if (depth >= deepest || row.num_reaching(count, share) <= count) return count;
  }
}

std::int32_t sample_row(LogitRow& row, const SampleRow& settings, std::size_t vocab_size) {
  // An infinite peak leaves no choice, and none at all leaves the first id.
  if (!std::isfinite(row.peak())) return row.best();
  const double inverse_temperature = 1.0 / static_cast<double>(settings.temperature);
  const double u = uniform_at(settings.seed, settings.sequence_index, settings.position);
  const bool has_top_p = settings.top_p < 1, has_min_p = settings.min_p > 0;
  if (settings.top_k <= 0 && !has_top_p && !has_min_p) return row.draw_by_id(inverse_temperature, u);
  double share = 0;
  std::size_t count = list_candidates(row, settings, vocab_size, inverse_temperature, share);
  if (has_top_p) count = std::min(count, row.num_reaching(count, share));
  if (has_min_p) count = row.num_heavy(count, settings.min_p);
  return row.draw_listed(count, u);
}

// log softmax of one row. An infinite peak shares all the probability with its equals.
class LogSoftmax {
 public:
  LogSoftmax(const LogitRow& row, std::size_t vocab_size) : peak_(row.peak()) {
    if (std::isfinite(peak_)) {
      log_sum_ = std::log(row.weight_sum(1.0));
    } else {
      const std::size_t equals = peak_ > 0 ? row.num_above(std::numeric_limits<float>::max()) : vocab_size;
      log_sum_ = std::log(static_cast<double>(equals));
    }
  }

  float of(float logit) const {
    const double difference = logit == peak_ ? 0.0 : static_cast<double>(logit) - peak_;
    return static_cast<float>(difference - log_sum_);
  }

 private:
  float peak_;
  double log_sum_;
};

}  // namespace

double uniform_at(std::uint64_t seed, std::uint32_t sequence_index, std::uint32_t position) {
  const auto words = philox4x32({sequence_index, position, 0, 0},
                                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[1]) << 32 | words[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

BestStage::BestStage(const Context& context, const float* logits, std::size_t stride, std::size_t num_rows,
                     std::size_t vocab_size)
    : context_(context),
      logits_(logits),
      stride_(stride),
      num_rows_(num_rows),
      vocab_size_(vocab_size),
      found_(num_rows * context.pool.num_threads()) {}

void BestStage::work(std::size_t thread, std::size_t row) {
  const LogitPasses& passes = passes_for(context_.isa);
  const std::size_t num_threads = context_.pool.num_threads();
  const auto [begin, end] = split_evenly(vocab_size_, thread, num_threads);
  const float* const logits = logits_ + row * stride_;
  const float peak = passes.largest(logits + begin, end - begin);
  found_[row * num_threads + thread] = {peak, first_with(passes, logits, peak, begin, end)};
}

std::int32_t BestStage::token(std::size_t row) const {
  const auto num_threads = static_cast<std::ptrdiff_t>(context_.pool.num_threads());
  const auto of_row = found_.begin() + static_cast<std::ptrdiff_t>(row) * num_threads;
  const auto lower = [](const Best& a, const Best& b) { return a.peak < b.peak; };
  return std::max_element(of_row, of_row + num_threads, lower)->id;
}

void sample(Context& context, const float* logits, std::size_t num_rows, std::size_t vocab_size, const SampleRow* rows,
            std::int32_t* tokens) {
  const LogitPasses& passes = passes_for(context.isa);
  const std::size_t num_threads = context.pool.num_threads();
  const auto scratch =
      make_scratch(num_threads, num_rows, vocab_size, [&](std::size_t r) { return !is_greedy(rows[r]); });
  BestStage best(context, logits, vocab_size, num_rows, vocab_size);
  context.pool.run([&](std::size_t thread) {
    for (std::size_t r = 0; r < num_rows; ++r) {
      if (is_greedy(rows[r])) best.work(thread, r);
    }
    context.pool.barrier();
    const auto [begin, end] = split_evenly(num_rows, thread, num_threads);
    for (std::size_t r = begin; r < end; ++r) {
      if (is_greedy(rows[r])) {
        tokens[r] = best.token(r);
        continue;
      }
      LogitRow row(passes, logits + r * vocab_size, vocab_size, scratch[thread].get());
      tokens[r] = sample_row(row, rows[r], vocab_size);
    }
  });
}

void top_logprobs(Context& context, const float* logits, std::size_t num_rows, std::size_t vocab_size,
                  const std::int32_t* tokens, std::size_t k, float* chosen_logprobs, std::int32_t* chosen_ranks,
                  std::int32_t* top_ids, float* top_logprobs) {
  const LogitPasses& passes = passes_for(context.isa);
  const std::size_t num_threads = context.pool.num_threads();
  const auto scratch = make_scratch(num_threads, num_rows, vocab_size, [&](std::size_t) { return k > 0; });
  context.pool.run([&](std::size_t thread) {
    const auto [begin, end] = split_evenly(num_rows, thread, num_threads);
    for (std::size_t r = begin; r < end; ++r) {
      LogitRow row(passes, logits + r * vocab_size, vocab_size, scratch[thread].get());
      const LogSoftmax log_softmax(row, vocab_size);
      const float chosen = row.logit(tokens[r]);
      chosen_logprobs[r] = log_softmax.of(chosen);
      chosen_ranks[r] = static_cast<std::int32_t>(1 + row.num_above(chosen));
      if (k == 0) continue;
      row.list_best(k);
      for (std::size_t i = 0; i < k; ++i) {
        const std::int32_t id = row.listed(i);
        top_ids[r * k + i] = id;
        top_logprobs[r * k + i] = log_softmax.of(row.logit(id));
      }
    }
  });
}

}  // namespace foreword
