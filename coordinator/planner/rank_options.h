// What may be decided for one block, and the running state of a search over blocks.
#ifndef HYPERFRAMES_COORDINATOR_PLANNER_RANK_OPTIONS_H_
#define HYPERFRAMES_COORDINATOR_PLANNER_RANK_OPTIONS_H_

#include <cstddef>
#include <vector>

#include "coordinator/planner/step_model.h"

namespace hyperframes {

struct Option {
  BlockChoice choice;
  BlockLoad load;
  std::vector<Bytes> uses;  // Slot bytes per path, between forward and backward.
  // Slot bytes per path while its backward runs, beyond those; empty: none. Blocks take turns
  // there.
  std::vector<Bytes> scratch;
};

// Options of `block` with storages of at most `cap` bytes moved (0: none). The first one keeps
// everything; then, saved and recomputed, the k largest movable storages go to one path, for a few
// k. Small blocks get every subset.
std::vector<Option> OptionsFor(const RankModel& model, const ModelBlock& block, Bytes cap);

Option MakeOption(const RankModel& model, const ModelBlock& block, BlockChoice choice);

// Decisions for every block, with their loads and what they use of each lender.
class SearchState {
 public:
  explicit SearchState(const RankModel& model);

  size_t size() const { return choices_.size(); }
  const std::vector<BlockChoice>& choices() const { return choices_; }
  const StepResult& result() const { return result_; }
  const CopyLimits& limits() const { return limits_; }
  bool fits() const { return result_.excess <= 0; }
  // Bytes that are moved or recomputed: of two equally fast plans the one that does less wins.
  Bytes disturbed() const { return disturbed_; }

  void set_limits(const CopyLimits& limits);
  void Set(size_t block, const Option& option);
  // True when every lender has room for `option` in place of what `block` has now.
  bool HasRoom(size_t block, const Option& option) const;
  // True when what is set now has room everywhere.
  bool RoomHolds() const;
  // The step with `option` in place of what `block` has now. Its seconds are simulated only where
  // the excess is at most `most_excess`: pricing is what takes the time.
  StepResult Try(size_t block, const Option& option, double most_excess);
  // Highest share in use of a lender that `option` uses; decides between equals.
  double Level(const Option& option) const;
  Bytes DisturbedWith(size_t block, const Option& option) const;

 private:
  const RankModel& model_;
  std::vector<BlockChoice> choices_;
  std::vector<BlockLoad> loads_;
  // Most scratch of one block on path `p`; `without` is not counted.
  Bytes ScratchOf(size_t p, size_t without) const;

  std::vector<std::vector<Bytes>> uses_;
  std::vector<std::vector<Bytes>> scratch_;
  std::vector<Bytes> used_;  // Per path.
  CopyLimits limits_;
  StepResult result_;
  Bytes disturbed_ = 0;
};

}  // namespace hyperframes

#endif  // HYPERFRAMES_COORDINATOR_PLANNER_RANK_OPTIONS_H_
