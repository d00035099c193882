// kvern-router itself: what it announces, how it ends, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cluster/base/clock.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "schemas/codec.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A model without text: 320 tokens, 512 positions.
constexpr char kModel[] = "tests/golden/tiny/llama_gqa";

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ready_file_ = ::testing::TempDir() + "kvern_router_ready_" + std::to_string(getpid());
    ASSERT_EQ(pipe(ready_), 0);
    ASSERT_EQ(pipe(output_), 0);
    ASSERT_EQ(pipe(errors_), 0);
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (int fd : {ready_[0], output_[0], errors_[0]}) close(fd);
    std::filesystem::remove(ready_file_);
  }

  void Start(std::vector<std::string> arguments) {
    const char* bin = std::getenv("KVERN_BIN_DIR");
    ASSERT_NE(bin, nullptr);
    arguments.insert(arguments.begin(), std::string(bin) + "/kvern-router");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Above what the test has open, so that no pipe's end is overwritten.
    posix_spawn_file_actions_adddup2(&actions, ready_[1], 99);
    posix_spawn_file_actions_adddup2(&actions, output_[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, errors_[1], STDERR_FILENO);
    ASSERT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    for (int fd : {ready_[1], output_[1], errors_[1]}) close(fd);
  }
  void StartListening() {
    Start({"--model", kModel, "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
           "--ready-fd", "99", "--ready-file", ready_file_, "--model-name", "tiny"});
    addresses_ = nlohmann::json::parse(ReadLine(ready_[0]));
  }

  static std::string ReadLine(int fd) {
    std::string line;
    for (char c; read(fd, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  static std::string ReadAll(int fd) {
    std::string all;
    for (char c; read(fd, &c, 1) == 1;) all += c;
    return all;
  }
  // The exit code; -1: killed by a signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  DealerSocket Connect(const char* which) {
    SocketOptions options;
    options.max_message_bytes = 1 << 20;
    return DealerSocket::Connect(*context_, addresses_[which].get<std::string>(), options).value();
  }
  // Waits for a message.
  static Frame Receive(DealerSocket& socket) {
    Poller poller;
    poller.Add(socket);
    Frame frame;
    Time end = MonotonicNow() + 60 * kSecond;
    while (socket.Receive(&frame).value() == ReceiveResult::kNothing) {
      EXPECT_LT(MonotonicNow(), end);
      EXPECT_TRUE(poller.Wait(kSecond).ok());
    }
    return frame;
  }
  static void Send(DealerSocket& socket, std::string bytes) {
    ASSERT_EQ(socket.Send(bytes).value(), SendResult::kSent);
  }

  static Join TinyJoin(const std::string& group, Incarnation incarnation) {
    Join join;
    join.group = group;
    join.group_incarnation = incarnation;
    join.world = 1;
    join.model = "tiny";
    join.kv_blocks = 32;
    join.max_seq_len = 512;
    join.vocab_size = 320;
    return join;
  }

  // A group of one rank that reports once, so that it is live.
  DealerSocket JoinGroup() {
    DealerSocket worker = Connect("worker_endpoint");
    Send(worker, EncodeWorkerToRouter(TinyJoin("group-0", 3)));
    Decoded<RouterToWorker> start = DecodeRouterToWorker(Receive(worker).bytes());
    const auto* refused = std::get_if<JoinRefused>(&start.message);
    EXPECT_EQ(refused, nullptr) << refused->reason;
    StepReport report;
    report.group_incarnation = 3;
    Send(worker, EncodeWorkerToRouter(report));
    return worker;
  }

  std::unique_ptr<NetContext> context_ = std::move(NetContext::Create().value());
  nlohmann::json addresses_;
  std::string ready_file_;
  int ready_[2];
  int output_[2];
  int errors_[2];
  pid_t pid_ = -1;
};

TEST_F(ProgramTest, ItAnnouncesItselfAndItsGroupsAndDrains) {
  StartListening();
  EXPECT_EQ(addresses_["pid"], pid_);
  EXPECT_THAT(addresses_["endpoint"].get<std::string>(), StartsWith("tcp://127.0.0.1:"));
  EXPECT_THAT(addresses_["status"].get<std::string>(), StartsWith("127.0.0.1:"));
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
  DealerSocket worker = JoinGroup();
  EXPECT_EQ(ReadLine(ready_[0]), "{\"joining\":\"group-0\",\"incarnation\":3}");
  EXPECT_EQ(ReadLine(ready_[0]), "{\"ready\":true}");
  EXPECT_EQ(ReadLine(output_[0]), "ready " + addresses_["endpoint"].get<std::string>());
  std::ifstream file(ready_file_);
  nlohmann::json ready =
      nlohmann::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(ready["endpoint"], addresses_["endpoint"]);
  kill(pid_, SIGTERM);
  // The group is told to leave before the router ends.
  Frame frame = Receive(worker);
  Decoded<RouterToWorker> told = DecodeRouterToWorker(frame.bytes());
  ASSERT_TRUE(std::holds_alternative<Commands>(told.message));
  EXPECT_TRUE(std::get<Commands>(told.message).drain);
  Send(worker, EncodeWorkerToRouter(Leave{3}));
  EXPECT_EQ(Wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
  EXPECT_THAT(ReadAll(errors_[0]), HasSubstr("group group-0: 1 ranks, 32 KV blocks"));
}

// Whoever started the processes must know: they may hang, and then nobody else ends them.
TEST_F(ProgramTest, AStartThatIsGivenUpIsSaidToTheLauncher) {
  StartListening();
  DealerSocket worker = JoinGroup();
  EXPECT_EQ(ReadLine(ready_[0]), "{\"joining\":\"group-0\",\"incarnation\":3}");
  EXPECT_EQ(ReadLine(ready_[0]), "{\"ready\":true}");
  Send(worker, EncodeWorkerToRouter(TinyJoin("group-0", 4)));
  EXPECT_EQ(
      ReadLine(ready_[0]),
      "{\"given_up\":\"group-0\",\"incarnation\":3,\"reason\":\"one connection joined twice\"}");
}

TEST_F(ProgramTest, ALauncherThatDoesNotReadHoldsUpNobody) {
  StartListening();
  DealerSocket stranger = Connect("worker_endpoint");
  // More than a pipe holds.
  for (int i = 0; i < 2000; ++i) {
    Join join = TinyJoin("stranger-" + std::to_string(i), 1);
    join.model = "none such";
    Send(stranger, EncodeWorkerToRouter(join));
    Decoded<RouterToWorker> answer = DecodeRouterToWorker(Receive(stranger).bytes());
    ASSERT_TRUE(std::holds_alternative<JoinRefused>(answer.message)) << i;
  }
}

TEST_F(ProgramTest, ItMayHaveAsManyDescriptorsAsThereMayBe) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 100;  // each client is one
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  StartListening();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit of_router{};
  ASSERT_EQ(prlimit(pid_, RLIMIT_NOFILE, nullptr, &of_router), 0);
  EXPECT_EQ(of_router.rlim_cur, before.rlim_max);
}

TEST_F(ProgramTest, ASecondSignalEndsItAtOnce) {
  StartListening();
  DealerSocket worker = JoinGroup();
  DealerSocket client = Connect("endpoint");
  Send(client, EncodeClientMessage(Hello{1, "", ""}));
  GenerateRequest request;
  request.prompt_token_ids = {1, 2, 3};
  Send(client, EncodeClientMessage(request));
  Receive(client);  // Welcome
  Receive(client);  // Accepted: it cannot drain now, since this worker never answers.
  kill(pid_, SIGINT);
  std::string line;
  while (line.find("draining") == std::string::npos) {
    line = ReadLine(errors_[0]);
    ASSERT_FALSE(line.empty());
  }
  // Passed on by a launcher that was told, too: no second one. What is said after it is answered.
  ASSERT_EQ(sigqueue(pid_, SIGTERM, sigval{}), 0);
  for (int i = 0; i < 2; ++i) {
    Send(client, EncodeClientMessage(KeepAlive{}));
    Receive(client);
  }
  kill(pid_, SIGTERM);
  EXPECT_EQ(Wait(), 1);
}

TEST_F(ProgramTest, WhatCannotBeServedIsRefusedByName) {
  Start({"--model", "tests/golden/nothing", "--listen", "tcp://127.0.0.1:0", "--status",
         "127.0.0.1:0"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(ReadAll(errors_[0]),
              HasSubstr("kvern-router: cannot open model tests/golden/nothing"));
}

TEST_F(ProgramTest, ALimitAboveTheModelsIsRefused) {
  Start({"--model", kModel, "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
         "--max-seq-len", "100000"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(ReadAll(errors_[0]), HasSubstr("--max-seq-len: 100000, the model allows"));
}

TEST_F(ProgramTest, ADefaultThatNeverFitsIsRefused) {
  Start({"--model", kModel, "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
         "--default-max-tokens", "512"});
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(ReadAll(errors_[0]),
              HasSubstr("--default-max-tokens: 512, allowed: below the longest prompt + answer, "
                        "512"));
}

// It would be ready, and refuse every request.
TEST_F(ProgramTest, AQueueWithoutRoomIsRefused) {
  Start({"--model", kModel, "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
         "--queue-bytes", "0"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(ReadAll(errors_[0]), HasSubstr("--queue-bytes: '0', allowed: 1KiB or more"));
}

TEST_F(ProgramTest, AReadyFileThatIsSomethingElseIsRefusedAndStays) {
  std::ofstream(ready_file_) << "precious";
  Start({"--model", kModel, "--listen", "tcp://127.0.0.1:0", "--status", "127.0.0.1:0",
         "--ready-file", ready_file_});
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(ReadAll(errors_[0]),
              HasSubstr("--ready-file: '" + ready_file_ + "' is not a ready file, allowed: "));
  EXPECT_EQ(std::filesystem::file_size(ready_file_), 8u);
}

TEST_F(ProgramTest, AForeignAddressIsRefused) {
  Start({"--model", kModel, "--listen", "tcp://0.0.0.0:0"});
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(ReadAll(errors_[0]),
              HasSubstr("--listen: 'tcp://0.0.0.0:0' is not a loopback address"));
}

TEST_F(ProgramTest, FlagsCanComeFromTheEnvironment) {
  setenv("KVERN_QUEUE_ENTRIES", "none", 1);
  Start({"--model", kModel});
  unsetenv("KVERN_QUEUE_ENTRIES");
  EXPECT_EQ(Wait(), 2);
  EXPECT_THAT(ReadAll(errors_[0]),
              HasSubstr("KVERN_QUEUE_ENTRIES: 'none' is not a whole number from 1 to 1048576"));
}

TEST_F(ProgramTest, AMissingModelIsAUsageError) {
  unsetenv("KVERN_MODEL");  // which other tests may be told
  Start({});
  EXPECT_EQ(Wait(), 2);
  EXPECT_EQ(ReadAll(errors_[0]), "kvern-router: --model: needed (see --help)\n");
}

}  // namespace
}  // namespace kvern
