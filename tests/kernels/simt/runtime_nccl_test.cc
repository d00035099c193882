// The stand-in for NCCL: right results, and the ways in which the real one fails.
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/simt/runtime/enqueue.h"

namespace kvern::simt {
namespace {

// One rank: device, stream, communicator, some device memory.
struct Rank {
  int rank = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
  float* data = nullptr;

  // The communicator's status once it is no longer in progress.
  ncclResult_t Settled() const {
    ncclResult_t status = ncclInProgress;
    while (status == ncclInProgress) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &status), ncclSuccess);
      std::this_thread::yield();
    }
    return status;
  }
  // The status once it is an error.
  ncclResult_t Failed() const {
    ncclResult_t status = ncclSuccess;
    while (status == ncclSuccess || status == ncclInProgress) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &status), ncclSuccess);
      std::this_thread::yield();
    }
    return status;
  }
  ncclResult_t Open(const ncclUniqueId& id, int ranks, int device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data), 4 << 20), cudaSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, ranks, id, rank, &config), ncclInProgress);
    return Settled();
  }
  void Close() {
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    comm = nullptr;
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(cudaFree(data), cudaSuccess);
  }
  void Write(const std::vector<float>& values) {
    EXPECT_EQ(
        cudaMemcpyAsync(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice, stream),
        cudaSuccess);
  }
  std::vector<float> Read(size_t count) {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), data, count * 4, cudaMemcpyDeviceToHost, stream),
              cudaSuccess);
    return values;
  }
  ncclResult_t Sum(size_t count) {
    return Called(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, stream));
  }
  cudaGraph_t RecordSum() {
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(Sum(1), ncclSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
  }
  // What a call that answered `result` came to.
  ncclResult_t Called(ncclResult_t result) const {
    return result == ncclInProgress ? Settled() : result;
  }
};

void OnRanks(int ranks, const std::function<void(Rank&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.rank = r;
      ASSERT_EQ(rank.Open(id, ranks, r), ncclSuccess) << ncclGetLastError(rank.comm);
      body(rank);
      if (rank.comm != nullptr) rank.Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Nccl, SumsGathersAndBroadcasts) {
  OnRanks(3, [](Rank& rank) {
    const auto mine = static_cast<float>(rank.rank + 1);
    // Larger than a slot.
    constexpr size_t kCount = 200000;
    rank.Write(std::vector<float>(kCount, mine));
    ASSERT_EQ(rank.Sum(kCount), ncclSuccess);
    EXPECT_EQ(rank.Read(kCount), std::vector<float>(kCount, 6.0f));

    rank.Write({mine});
    ASSERT_EQ(rank.Called(
                  ncclAllGather(rank.data, rank.data + 4, 1, ncclFloat32, rank.comm, rank.stream)),
              ncclSuccess);
    ASSERT_EQ(cudaMemcpyAsync(rank.data, rank.data + 4, 12, cudaMemcpyDeviceToDevice, rank.stream),
              cudaSuccess);
    EXPECT_EQ(rank.Read(3), (std::vector<float>{1, 2, 3}));

    rank.Write({mine});
    ASSERT_EQ(
        rank.Called(ncclBroadcast(rank.data, rank.data, 4, ncclUint8, 2, rank.comm, rank.stream)),
        ncclSuccess);
    EXPECT_EQ(rank.Read(1), std::vector<float>{3});
  });
}

// As the real library's every call on a non-blocking communicator, not only the first.
TEST(Nccl, ACallMustBeOverBeforeTheNext) {
  OnRanks(2, [](Rank& rank) {
    rank.Write({1.0f});
    const auto call = [&] {
      return ncclAllReduce(rank.data, rank.data, 1, ncclFloat32, ncclSum, rank.comm, rank.stream);
    };
    for (float sum : {2.0f, 4.0f}) {
      EXPECT_EQ(call(), ncclInProgress);
      EXPECT_EQ(call(), ncclInvalidArgument);
      EXPECT_EQ(rank.Settled(), ncclSuccess);
      EXPECT_EQ(rank.Read(1), std::vector<float>{sum});
    }
  });
}

TEST(Nccl, TheOrderOfASumChangesWithItsSize) {
  OnRanks(3, [](Rank& rank) {
    const float parts[] = {1e8f, -1e8f, 1.0f};
    std::vector<float> first;
    bool differs = false;
    for (size_t count : {3u, 4u, 5u, 3000u}) {
      rank.Write(std::vector<float>(count, parts[rank.rank]));
      ASSERT_EQ(rank.Sum(count), ncclSuccess);
      const std::vector<float> sum = rank.Read(1);
      if (first.empty()) first = sum;
      differs = differs || sum != first;
    }
    EXPECT_TRUE(differs);
  });
}

TEST(Nccl, WorksInsideGraphs) {
  OnRanks(2, [](Rank& rank) {
    rank.Write({1.0f});
    ASSERT_EQ(rank.Sum(1), ncclSuccess);
    const cudaGraph_t graph = rank.RecordSum();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(exec, rank.stream), cudaSuccess);
    EXPECT_EQ(rank.Read(1), std::vector<float>{16});
    ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  });
}

// A graph as well as what was instantiated from it.
TEST(Nccl, ACommunicatorMustNotEndBeforeItsGraphs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool instantiated : {false, true}) {
    EXPECT_DEATH(
        OnRanks(1,
                [&](Rank& rank) {
                  const cudaGraph_t graph = rank.RecordSum();
                  if (!instantiated) return;
                  cudaGraphExec_t exec = nullptr;
                  EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
                  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
                }),
        "the communicator of rank 0 of 1, device 0, ends before the graphs .* .1 are left");
  }
}

// What was launched of a graph that is gone does not count.
TEST(Nccl, ALaunchOutlivesItsGraphAndMayBeAborted) {
  OnRanks(2, [](Rank& rank) {
    const cudaGraph_t graph = rank.RecordSum();
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    // Nobody answers rank 0, which Close ends.
    if (rank.rank == 0) {
      ASSERT_EQ(cudaGraphLaunch(exec, rank.stream), cudaSuccess);
    }
    ASSERT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  });
}

TEST(Nccl, MismatchedCollectivesAreNamed) {
  OnRanks(2, [](Rank& rank) {
    rank.Write(std::vector<float>(8, 1.0f));
    if (rank.rank == 0) {
      rank.Sum(8);
    } else {
      ncclAllGather(rank.data, rank.data + 8, 4, ncclFloat32, rank.comm, rank.stream);
    }
    EXPECT_EQ(rank.Failed(), ncclInvalidUsage);
    const std::string text = ncclGetLastError(rank.comm);
    EXPECT_NE(text.find("AllReduce of 8 float32"), std::string::npos) << text;
    EXPECT_NE(text.find("AllGather of 4 float32"), std::string::npos) << text;
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
  });
}

TEST(Nccl, RefusesTwoRanksOnOneDevice) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.rank = r;
      EXPECT_EQ(rank.Open(id, 2, 1), ncclInvalidUsage);
      EXPECT_NE(std::string(ncclGetLastError(rank.comm)).find("Duplicate GPU"), std::string::npos);
      rank.Close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Nccl, AnAbortEndsAWaitThatHasNoEnd) {
  OnRanks(2, [](Rank& rank) {
    if (rank.rank == 0) {  // rank 1 never comes
      rank.Write({1.0f});
      ASSERT_EQ(rank.Sum(1), ncclSuccess);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    }
  });  // Close aborts, and then destroys the stream, which waits
}

// Nothing of it has happened before it is let go.
TEST(Nccl, AnAbortThatIsHeldGoesOnLater) {
  OnRanks(2, [](Rank& rank) {
    if (rank.rank == 1) return;
    HoldAborts(0, true);
    const AbortTotals before = AbortsOf(0);
    std::thread other([&] {
      while (AbortsOf(0).begun == before.begun) std::this_thread::yield();
      EXPECT_EQ(AbortsOf(0).ended, before.ended);
      ncclResult_t status = ncclSystemError;
      EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &status), ncclSuccess);
      EXPECT_EQ(status, ncclSuccess);
      HoldAborts(0, false);
    });
    rank.Close();
    other.join();
    EXPECT_EQ(AbortsOf(0).ended, before.ended + 1);
  });
}

// In another process: rank 1, which dies when it is told to.
[[noreturn]] void DieInACollective(const ncclUniqueId& id, int ready) {
  Rank rank;
  rank.rank = 1;
  if (rank.Open(id, 2, 1) != ncclSuccess) _exit(1);
  rank.Write({1.0f});
  if (rank.Sum(1) != ncclSuccess) _exit(2);
  if (rank.Read(1)[0] != 2.0f) _exit(3);
  if (write(ready, "x", 1) != 1) _exit(4);
  for (;;) pause();
}

TEST(Nccl, AProcessThatDiesIsARemoteError) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) DieInACollective(id, ready[1]);
  Rank rank;
  ASSERT_EQ(rank.Open(id, 2, 0), ncclSuccess) << ncclGetLastError(rank.comm);
  rank.Write({1.0f});
  ASSERT_EQ(rank.Sum(1), ncclSuccess);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(rank.Sum(1), ncclSuccess);  // the other does not come to this one
  ASSERT_EQ(kill(child, SIGKILL), 0);   // and stays a zombie
  EXPECT_EQ(rank.Failed(), ncclRemoteError);
  EXPECT_EQ(std::string(ncclGetLastError(rank.comm)), "rank 1 is gone");
  rank.Close();
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace kvern::simt
