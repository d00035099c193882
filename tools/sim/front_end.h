// Who stands between clients and groups: the real Router, or a stand-in to compare it with.
#pragma once

#include <memory>

#include "router/core/router.h"

namespace kvern::sim {

// The calls of Router that the simulation makes, with its contracts.
class FrontEnd {
 public:
  virtual ~FrontEnd() = default;
  virtual void Step(Time now, RouterEvent&& event, RouterEffects& effects) = 0;
  virtual void PrefetchReport(PeerId rank, size_t stage) = 0;
  virtual void Flush(Time now, RouterEffects& effects) = 0;
  virtual Time NextDeadline() const = 0;
  virtual bool Drained() const = 0;
  virtual RouterStatus Status(Time now) = 0;
  virtual RouterBooks Books(Time now, PeerId rank) = 0;
  virtual uint64_t ReservedBlocks(PeerId rank) = 0;
  virtual absl::StatusOr<RequestStatus> Find(const RequestId& id) = 0;
  virtual void Audit() const = 0;
};

// `R`: Router, or one that admits otherwise.
template <typename R>
class RouterFrontEnd : public FrontEnd {
 public:
  template <typename... Arguments>
  explicit RouterFrontEnd(const Arguments&... arguments) : router_(arguments...) {}
  void Step(Time now, RouterEvent&& event, RouterEffects& effects) override {
    router_.Step(now, std::move(event), effects);
  }
  void PrefetchReport(PeerId rank, size_t stage) override { router_.PrefetchReport(rank, stage); }
  // A turn of the simulation reads all there is, and is never late by more than its deadlines.
  void Flush(Time now, RouterEffects& effects) override {
    router_.Flush(now, {.clients = now, .workers = now}, effects);
  }
  Time NextDeadline() const override { return router_.NextDeadline(); }
  bool Drained() const override { return router_.Drained(); }
  RouterStatus Status(Time now) override { return router_.Status(now); }
  RouterBooks Books(Time now, PeerId rank) override { return router_.Books(now, rank); }
  uint64_t ReservedBlocks(PeerId rank) override { return router_.ReservedBlocks(rank); }
  absl::StatusOr<RequestStatus> Find(const RequestId& id) override { return router_.Find(id); }
  void Audit() const override { router_.Audit(); }

 private:
  R router_;
};

}  // namespace kvern::sim
