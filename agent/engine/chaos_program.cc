#include "agent/engine/chaos_program.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

namespace hyperframes {

ChaosProgram::ChaosProgram(ConformanceBackend* backend, std::vector<EngineArena> arenas,
                           const FrameEngineOptions& options, Bytes largest)
    : backend_(backend),
      largest_(largest),
      sources_memory_(backend, largest),
      reloads_memory_(backend, largest),
      engine_(FrameEngine::Create(backend->compute(), std::move(arenas), options).value()) {}

void ChaosProgram::Put(Tier tier, Bytes bytes) {
  const char value = static_cast<char>(1 + puts_ % 100);
  char* const source = sources_memory_.Next();
  backend_->FillOnCompute(source, value, bytes);
  StorageKey key;
  key.ordinal = static_cast<int32_t>(puts_++ % 8);
  const Placement put = engine_->Put(key, source, bytes, tier, "", -1, nullptr).value();
  if (put.handle == 0) return;  // It stayed: nothing to compare.
  ++moved_;
  live_.push_back({put.handle, value, bytes});
  sources_.push_back(source);
}

void ChaosProgram::Release(Bytes limit) {
  for (size_t i = engine_->TakeReleasable(limit, nullptr).size(); i > 0; --i) {
    backend_->FillOnCompute(sources_.front(), 0x77, largest_);
    sources_.pop_front();
  }
}

void ChaosProgram::Consume(size_t index) {
  const Live storage = live_[index];
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  char* const back = reloads_memory_.Next();
  backend_->FillOnCompute(back, 0, storage.bytes);
  EXPECT_TRUE(engine_->Fetch(storage.handle, back, false, nullptr).ok());
  Finish(storage, back);
}

void ChaosProgram::ConsumeAhead() {
  std::vector<std::pair<Live, char*>> reloads;
  for (const StorageHandle handle : engine_->NextToPrefetch()) {
    const auto found = std::find_if(live_.begin(), live_.end(), [handle](const Live& storage) {
      return storage.handle == handle;
    });
    char* const back = reloads_memory_.Next();
    backend_->FillOnCompute(back, 0, found->bytes);
    EXPECT_TRUE(engine_->Fetch(handle, back, true, nullptr).ok());
    reloads.emplace_back(*found, back);
    live_.erase(found);
  }
  for (const auto& [storage, back] : reloads) Finish(storage, back);
}

void ChaosProgram::Finish(const Live& storage, char* back) {
  EXPECT_TRUE(engine_->Wait(storage.handle, nullptr).ok());
  bool wrong = false;
  for (const char byte : backend_->ReadOnCompute(back, storage.bytes)) {
    wrong |= byte != storage.value;
  }
  wrong_storages_ += wrong;
  engine_->Drop(storage.handle);
}

}  // namespace hyperframes
