// The C++ client when the router has forgotten it, or has much to say.
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/clients/small_router.h"

// libzmq is not instrumented: what it hands from thread to thread looks like a race.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libzmq.so.5\n"; }
#endif

namespace kvern {
namespace {

// Serves those it knows; the first message of others must be Hello.
class ForgetfulRouter {
 public:
  std::atomic<bool> knows{false};
  std::atomic<bool> forgets{false};  // whoever said Hello, at once
  std::atomic<int> hellos{0};
  std::atomic<int> served{0};

  SmallRouter::Answer Answer() {
    return [this](const ClientMessage& message, const SmallRouter::Reply& reply) {
      const auto* request = std::get_if<GenerateRequest>(&message);
      if (std::holds_alternative<Hello>(message)) {
        ++hellos;
        knows = !forgets;
      } else if (!knows) {
        RequestError error{{}, ErrorCode::kInvalidArgument, "the first message must be Hello", {}};
        if (request != nullptr) error.request_id = request->request_id;
        return reply(error);
      }
      served += request != nullptr;
      Serve(message, reply);
    };
  }
};

TEST(CppClient, AQuietClientThatWasForgottenIsServed) {
  ForgetfulRouter forgetful;
  SmallRouter router(forgetful.Answer());
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
  forgetful.knows = false;
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
  forgetful.knows = false;
  EXPECT_TRUE(client->Capacity().ok());
  EXPECT_EQ(forgetful.hellos, 3);
  EXPECT_EQ(forgetful.served, 2);
}

TEST(CppClient, ManyRequestsOfAForgottenClientAreServedOnceEach) {
  ForgetfulRouter forgetful;
  SmallRouter router(forgetful.Answer());
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  forgetful.knows = false;
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 50; ++i) streams.push_back(client->Generate(Ask("x")));
  for (const auto& stream : streams) {
    std::optional<RequestEvent> last;
    while (std::optional<RequestEvent> event = stream->Next()) last = event;
    EXPECT_TRUE(std::holds_alternative<Delta>(*last));
  }
  EXPECT_EQ(forgetful.served, 50);
}

TEST(CppClient, AForgottenClientHearsThatItsStreamsAreOver) {
  ForgetfulRouter forgetful;
  SmallRouter router(forgetful.Answer());
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  // Its next keep-alive tells.
  RequestError error = LastWords(*client, [&](const RequestId&) { forgetful.knows = false; });
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_NE(error.message.find("the router forgot this client"), std::string::npos);
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
  EXPECT_EQ(forgetful.hellos, 2);
}

TEST(CppClient, ARouterThatAlwaysWantsHelloIsGivenUp) {
  ForgetfulRouter forgetful;
  SmallRouter router(forgetful.Answer());
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  forgetful.forgets = true;
  forgetful.knows = false;
  for (int i = 0; i < 2; ++i) {
    Answer answer = client->Complete(Ask("x"));
    ASSERT_TRUE(answer.error.has_value());
    EXPECT_EQ(answer.error->code, ErrorCode::kUnavailable);
    EXPECT_NE(answer.error->message.find("does not know this client after 4 Hellos"),
              std::string::npos);
  }
  EXPECT_LE(forgetful.hellos, 1 + 3 + 4);
  forgetful.forgets = false;
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
}

TEST(CppClient, AClientWhoseHelloWasRefusedSaysItAgain) {
  std::atomic<bool> full{false};
  std::atomic<bool> knows{false};
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    bool hello = std::holds_alternative<Hello>(message);
    if (hello && full) return reply(RequestError{{}, ErrorCode::kOverloaded, "too many", {}});
    knows = knows || hello;
    if (knows) return Serve(message, reply);
    RequestError error{{}, ErrorCode::kInvalidArgument, "the first message must be Hello", {}};
    error.request_id = std::get<GenerateRequest>(message).request_id;
    reply(error);
  });
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  knows = false;
  full = true;
  EXPECT_EQ(client->Complete(Ask("x")).error->code, ErrorCode::kOverloaded);
  full = false;
  EXPECT_EQ(client->Complete(Ask("x")).choices[0].text, "012");
}

TEST(CppClient, KeepAlivesGoWhileThereIsMuchToRead) {
  Heard keep_alives;
  SmallRouter router([&](const ClientMessage& message, const SmallRouter::Reply& reply) {
    if (std::holds_alternative<KeepAlive>(message)) keep_alives.Add(1);
    Serve(message, reply);
  });
  Heard done;
  std::unique_ptr<Client> client = ConnectTo(router.endpoint());
  constexpr uint32_t kDeltas = 100;
  client->Start(Ask("endless", kDeltas), [&, left = kDeltas](RequestEvent event) mutable {
    if (!std::holds_alternative<Delta>(event)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (--left > 0) return;
    keep_alives.Await(4);  // here, on the client's thread: so they were sent before
    done.Add(1);
  });
  done.Await(1);
}

}  // namespace
}  // namespace kvern
