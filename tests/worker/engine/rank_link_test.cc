// A rank's connection to the router, against a socket that plays the router.
#include "worker/engine/rank_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "schemas/codec.h"
#include "worker/engine/leave_signal.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;

// The router's socket for workers.
class FakeRouter {
 public:
  FakeRouter() : context_(*NetContext::Create()) {
    SocketOptions options;
    options.max_message_bytes = 1 << 20;
    socket_.emplace(*RouterSocket::Bind(*context_, "tcp://127.0.0.1:0", options));
  }

  const std::string& endpoint() const { return socket_->endpoint(); }

  // Waits for the next message of a rank.
  WorkerToRouter Take() {
    Poller poller;
    poller.Add(*socket_);
    Frame frame;
    while (*socket_->Receive(&peer_, &frame) != ReceiveResult::kMessage) {
      EXPECT_TRUE(poller.Wait(kTimeMax).ok());
    }
    Decoded<WorkerToRouter> decoded = DecodeWorkerToRouter(frame.bytes());
    EXPECT_TRUE(decoded.ok()) << decoded.error;
    EXPECT_NE(decoded.sender, 0u);
    return decoded.message;
  }

  // To the rank that spoke last.
  void Say(const RouterToWorker& message) { SayBytes(EncodeRouterToWorker(message)); }
  void SayBytes(std::string bytes) { EXPECT_EQ(*socket_->Send(peer_, bytes), SendResult::kSent); }

  void Close() { socket_.reset(); }

 private:
  std::unique_ptr<NetContext> context_;
  std::optional<RouterSocket> socket_;
  std::string peer_;
};

class RankLinkTest : public ::testing::Test {
 protected:
  RankLinkTest() : link_(*RankLink::Connect(router_.endpoint())) {
    Join join;
    join.group = "g";
    join.world = 1;
    join.build = "test";
    join.model = "m";
    EXPECT_TRUE(link_->SendJoin(join).ok());
    EXPECT_EQ(std::get<Join>(router_.Take()).group, "g");
  }

  FakeRouter router_;
  std::unique_ptr<RankLink> link_;
};

TEST_F(RankLinkTest, JoinsTakesCommandsAndReports) {
  GroupStart start;
  start.group_incarnation = 9;
  start.kv_blocks = 50;
  start.lease_ms = 1000;
  router_.Say(start);
  router_.Say(Commands{9, 1, {}, {}, false});
  router_.Say(Commands{9, 2, {}, {}, true});
  auto started = link_->AwaitStart(kSecond * 60);
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_EQ(*started, start);
  std::vector<Commands> commands;
  while (commands.size() < 2) ASSERT_TRUE(link_->Receive(kSecond, commands).ok());
  EXPECT_EQ(commands[0].sequence, 1u);
  EXPECT_TRUE(commands[1].drain);
  StepReport report;
  report.group_incarnation = 9;
  report.step_id = 4;
  ASSERT_TRUE(link_->Send(report).ok());
  EXPECT_EQ(std::get<StepReport>(router_.Take()), report);
  ASSERT_TRUE(link_->Send(Leave{9}).ok());
  EXPECT_EQ(std::get<Leave>(router_.Take()).group_incarnation, 9u);
}

// Told to end while it waits for commands, it wakes up and says so, once; the group goes on.
TEST_F(RankLinkTest, Case24SigtermAsksForADrainAndTheSecondOneEnds) {
  ASSERT_TRUE(LeaveSignal::Install().ok());
  link_->PassOnLeaveSignal(9);
  EXPECT_FALSE(LeaveSignal::told());
  link_->SayIfToldToLeave();
  std::vector<Commands> commands;
  std::thread teller([] { kill(getpid(), SIGTERM); });
  // Two waits, either of which the signal may end: without it they would take two days.
  while (!LeaveSignal::told()) ASSERT_TRUE(link_->Receive(24 * 3600 * kSecond, commands).ok());
  teller.join();
  ASSERT_TRUE(link_->Receive(0, commands).ok());
  link_->SayIfToldToLeave();
  EXPECT_EQ(std::get<LeaveSoon>(router_.Take()).group_incarnation, 9u);
  StepReport report;
  report.step_id = 3;
  ASSERT_TRUE(link_->Send(report).ok());
  EXPECT_EQ(std::get<StepReport>(router_.Take()), report) << "it says so once";
  EXPECT_EXIT(raise(SIGTERM), testing::KilledBySignal(SIGTERM), "");
}

TEST_F(RankLinkTest, NothingToTakeIsNoError) {
  std::vector<Commands> commands;
  EXPECT_TRUE(link_->Receive(0, commands).ok());
  EXPECT_TRUE(link_->Receive(kMillisecond, commands).ok());
  EXPECT_TRUE(commands.empty());
}

TEST_F(RankLinkTest, ARefusalCarriesItsReason) {
  router_.Say(JoinRefused{"model is 'm', served: 'other'"});
  absl::Status status = link_->AwaitStart(kSecond * 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("served: 'other'"));
}

TEST_F(RankLinkTest, AGroupThatDoesNotStartIsADeadline) {
  absl::Status status = link_->AwaitStart(kMillisecond).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(router_.endpoint()));
}

TEST_F(RankLinkTest, ALongWaitForTheStartIsSaid) {
  std::unique_ptr<RankLink> link = *RankLink::Connect("tcp://127.0.0.1:1");  // nobody listens there
  testing::internal::CaptureStderr();
  EXPECT_FALSE(link->AwaitStart(kSecond * 3).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("waits_for_the_start endpoint=tcp://127.0.0.1:1 waited_s="));
}

TEST_F(RankLinkTest, RubbishEndsIt) {
  router_.SayBytes("rubbish");
  absl::Status status = link_->AwaitStart(kSecond * 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

// A router that does not read fills queues; the step loop that reports to it is told, and not held.
TEST_F(RankLinkTest, Case31SendingNeverWaitsForTheRouter) {
  absl::Status status;
  while (status.ok()) status = link_->Send(StepReport{});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("takes no more messages"));
}

TEST_F(RankLinkTest, ABrokenConnectionEndsItAfterWhatWasSaid) {
  router_.Say(GroupStart{});
  ASSERT_TRUE(link_->AwaitStart(kSecond * 60).ok());
  router_.Close();
  std::vector<Commands> commands;
  absl::Status status;
  while (status.ok()) status = link_->Receive(kSecond, commands);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("broke"));
}

}  // namespace
}  // namespace kvern
