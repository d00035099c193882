// The meeting of processes, and what happens when one of them dies.
#include "worker/comm/shm.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvern {
namespace {

std::unique_ptr<ShmHost> Listen(int world) {
  auto host = ShmHost::Listen(world);
  EXPECT_TRUE(host.ok()) << host.status();
  return host.ok() ? *std::move(host) : nullptr;
}

// A process that joins as `rank` and takes part in barriers until it is killed or the group fails.
pid_t ForkRank(const std::string& rendezvous, int rank, int world) {
  pid_t child = fork();
  if (child != 0) return child;
  auto comm = ConnectShm(rendezvous, rank, world, 20 * kSecond);
  if (!comm.ok()) _exit(1);
  (*comm)->SetTimeout(kTimeMax);
  while ((*comm)->Barrier().ok()) {
  }
  _exit(2);  // the group failed while this rank waited
}

int ExitStatus(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(ShmTest, RendezvousIsAFreshAbstractName) {
  auto first = Listen(2);
  auto second = Listen(2);
  EXPECT_EQ(first->rendezvous().size(), 7u + 32u);
  EXPECT_EQ(first->rendezvous().rfind("@kvern-", 0), 0u);
  EXPECT_NE(first->rendezvous(), second->rendezvous());
}

TEST(ShmTest, ProcessesMeetAndAKilledOneIsNoticed) {
  auto host = Listen(3);
  pid_t first = ForkRank(host->rendezvous(), 1, 3);
  pid_t second = ForkRank(host->rendezvous(), 2, 3);
  auto comm = host->Accept(20 * kSecond);
  ASSERT_TRUE(comm.ok()) << comm.status();
  (*comm)->SetTimeout(kTimeMax);  // only the death itself can end the wait
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*comm)->Barrier().ok());

  kill(second, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(ExitStatus(second)));
  // It may have published one more epoch before it died, never two.
  absl::Status status = (*comm)->Barrier();
  if (status.ok()) status = (*comm)->Barrier();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("rank 2 of 3 is gone"), absl::string_view::npos) << status;
  EXPECT_TRUE(absl::IsUnavailable((*comm)->Barrier()));
  // The survivor hears of it too, though it has no connection to the dead one.
  int survivor = ExitStatus(first);
  EXPECT_TRUE(WIFEXITED(survivor) && WEXITSTATUS(survivor) == 2) << survivor;
}

// As a rank looks that waits for its GPU, not for a collective.
TEST(ShmTest, CheckPeersNoticesAKilledProcess) {
  auto host = Listen(2);
  pid_t peer = ForkRank(host->rendezvous(), 1, 2);
  auto comm = host->Accept(20 * kSecond);
  ASSERT_TRUE(comm.ok()) << comm.status();
  EXPECT_TRUE((*comm)->CheckPeers().ok());
  kill(peer, SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(ExitStatus(peer)));
  absl::Status status;
  while (status.ok()) status = (*comm)->CheckPeers();  // it asks the kernel now and then only
  EXPECT_NE(status.message().find("rank 1 of 2 is gone"), absl::string_view::npos) << status;
}

TEST(ShmTest, OthersNoticeTheDeathOfRankZero) {
  auto host = Listen(2);
  pid_t leader = fork();
  if (leader == 0) {
    auto comm = host->Accept(20 * kSecond);
    kill(getpid(), SIGKILL);
  }
  std::string rendezvous = host->rendezvous();
  host.reset();  // the child's copy still listens
  auto comm = ConnectShm(rendezvous, 1, 2, 20 * kSecond);
  ASSERT_TRUE(comm.ok()) << comm.status();
  (*comm)->SetTimeout(kTimeMax);
  absl::Status status = (*comm)->Barrier();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  ExitStatus(leader);
}

TEST(ShmTest, DeadlineNamesTheAbsentRanks) {
  auto host = Listen(4);
  std::thread present([rendezvous = host->rendezvous()] {
    auto comm = ConnectShm(rendezvous, 2, 4, 2 * kSecond);
    EXPECT_FALSE(comm.ok());  // rank 0 gave up, or was not there any more
  });
  auto comm = host->Accept(200 * kMillisecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(comm.status())) << comm.status();
  EXPECT_NE(comm.status().message().find("1, "), absl::string_view::npos) << comm.status();
  host.reset();
  present.join();
}

TEST(ShmTest, RefusesAnotherWorldAndATakenRank) {
  auto host = Listen(3);
  std::string rendezvous = host->rendezvous();
  std::vector<absl::Status> twins(2);
  std::atomic<int> refused = 0;
  auto connect_twin = [&](size_t twin) {
    auto comm = ConnectShm(rendezvous, 1, 3, 20 * kSecond);
    twins[twin] = comm.status();
    if (!comm.ok()) refused.fetch_add(1);
    refused.notify_all();
  };
  std::thread twin0(connect_twin, 0);
  std::thread twin1(connect_twin, 1);
  std::thread last([&] {
    refused.wait(0);  // the group is not complete before one twin was turned away
    auto wrong_world = ConnectShm(rendezvous, 2, 4, 20 * kSecond);
    EXPECT_TRUE(absl::IsInvalidArgument(wrong_world.status())) << wrong_world.status();
    auto comm = ConnectShm(rendezvous, 2, 3, 20 * kSecond);
    EXPECT_TRUE(comm.ok()) << comm.status();
  });
  auto comm = host->Accept(20 * kSecond);
  EXPECT_TRUE(comm.ok()) << comm.status();
  twin0.join();
  twin1.join();
  last.join();
  EXPECT_NE(twins[0].ok(), twins[1].ok());
  EXPECT_TRUE(absl::IsInvalidArgument(twins[0].ok() ? twins[1] : twins[0]));
}

TEST(ShmTest, BadArgumentsAreRefusedByName) {
  EXPECT_TRUE(absl::IsInvalidArgument(ShmHost::Listen(0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ShmHost::Listen(65).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ConnectShm("@kvern-x", 0, 2, kSecond).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ConnectShm("@kvern-x", 2, 2, kSecond).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ConnectShm("/tmp/x", 1, 2, kSecond).status()));
  auto nobody = ConnectShm("@kvern-nobody-listens-here", 1, 2, 30 * kMillisecond);
  EXPECT_TRUE(absl::IsDeadlineExceeded(nobody.status())) << nobody.status();
}

}  // namespace
}  // namespace kvern
