#include "router/io/status_server.h"

// One thread runs all handlers, so fences order nothing; ThreadSanitizer does not understand them.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "cluster/base/threads.h"

namespace kvern {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr uint32_t kMaxHeaderBytes = 8 * 1024;
constexpr uint64_t kMaxBodyBytes = 1024;
constexpr size_t kMaxConnections = 64;
// For one request to arrive and its answer to leave, and for a kept connection to be silent.
constexpr std::chrono::seconds kTimeout(5);

class Session;
// The open ones, those without progress for longest first.
using Sessions = std::list<Session*>;

// One connection: reads a request, answers, and again while both sides keep it open.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, StatusSource* source, Sessions* sessions)
      : stream_(std::move(socket)), source_(source), sessions_(sessions) {
    place_ = sessions_->insert(sessions_->end(), this);
  }
  ~Session() { Leave(); }

  // Its pending operation fails, and with it the last reference to this goes.
  void Close() {
    Leave();
    stream_.close();
  }

  void Read() {
    Progress();
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(kMaxBodyBytes);
    stream_.expires_after(kTimeout);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       if (!error) {
                         self->Answer();
                       } else if (error.category() == UnparsableCategory() &&
                                  error != http::error::end_of_stream) {
                         self->Refuse(error);
                       }
                     });
  }

 private:
  void Progress() {
    if (place_) sessions_->splice(sessions_->end(), *sessions_, *place_);
  }
  void Leave() {
    if (place_) sessions_->erase(*place_);
    place_.reset();
  }

  // Of errors in what was read, rather than of the connection.
  static const boost::system::error_category& UnparsableCategory() {
    return http::make_error_code(http::error::bad_method).category();
  }

  // The connection ends with this: where the next request would begin is not known.
  void Refuse(beast::error_code error) {
    int code = error == http::error::header_limit ? 431
               : error == http::error::body_limit ? 413
                                                  : 400;
    Write({code, "application/json", absl::StrCat("{\"error\":\"", error.message(), "\"}\n")}, 11,
          false, false);
  }

  void Answer() {
    const auto& request = parser_->get();
    StatusPage page;
    if (request.method() == http::verb::get || request.method() == http::verb::head) {
      page = RespondTo({request.target().data(), request.target().size()}, *source_);
    } else {
      page = {405, "application/json", "{\"error\":\"only GET is answered\"}\n"};
    }
    Write(std::move(page), request.version(), request.keep_alive(),
          request.method() == http::verb::head);
  }

  // version: 10 or 11. A head_only answer says how long the page is, without it.
  void Write(StatusPage page, unsigned version, bool keep_alive, bool head_only) {
    Progress();
    response_ = {};
    response_.version(version);
    response_.keep_alive(keep_alive);
    response_.set(http::field::server, "kvern-router");
    response_.set(http::field::cache_control, "no-store");
    response_.result(static_cast<unsigned>(page.code));
    response_.set(http::field::content_type, page.content_type);
    response_.content_length(page.body.size());
    if (!head_only) response_.body() = std::move(page.body);
    stream_.expires_after(kTimeout);
    http::async_write(stream_, response_,
                      [self = shared_from_this()](beast::error_code error, size_t) {
                        if (!error && self->response_.keep_alive()) self->Read();
                      });
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxHeaderBytes + kMaxBodyBytes};
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  StatusSource* source_;
  Sessions* sessions_;  // of the server's thread
  std::optional<Sessions::iterator> place_;
};

class Server : public StatusServer {
 public:
  Server(tcp::endpoint endpoint, StatusSource* source)
      : acceptor_(context_, endpoint), source_(source) {
    Accept();
  }
  ~Server() override {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Run() {
    KVERN_ASSIGN_OR_RETURN(thread_, StartThread([this] { context_.run(); }));
    return absl::OkStatus();
  }

  std::string address() const override {
    return absl::StrCat(acceptor_.local_endpoint().address().to_string(), ":",
                        acceptor_.local_endpoint().port());
  }

 private:
  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (!error) {
        // Those who hold connections and say nothing do not shut out a probe.
        if (sessions_.size() >= kMaxConnections) sessions_.front()->Close();
        std::make_shared<Session>(std::move(socket), source_, &sessions_)->Read();
      }
      if (error == asio::error::operation_aborted) return;
      if (error) {
        Later();  // Out of descriptors, most likely: not a busy loop.
      } else {
        Accept();
      }
    });
  }

  void Later() {
    timer_.expires_after(std::chrono::milliseconds(100));
    timer_.async_wait([this](beast::error_code error) {
      if (!error) Accept();
    });
  }

  Sessions sessions_;  // outlives the handlers that the context still holds
  asio::io_context context_{1};
  asio::steady_timer timer_{context_};
  tcp::acceptor acceptor_;
  StatusSource* source_;
  std::thread thread_;
};

absl::StatusOr<tcp::endpoint> ParseAddress(std::string_view text) {
  const std::string address(text);
  size_t colon = address.rfind(':');
  uint16_t port = 0;
  bool parsed = false;
  if (colon != std::string::npos) {
    const char* end = address.data() + address.size();
    auto [stop, error] = std::from_chars(address.data() + colon + 1, end, port);
    parsed = error == std::errc() && stop == end;
  }
  beast::error_code error;
  asio::ip::address host;
  if (parsed) host = asio::ip::make_address(address.substr(0, colon), error);
  if (!parsed || error) {
    return InvalidArgument("'", address, "' is not an address and a port, allowed: 127.0.0.1:PORT");
  }
  if (!host.is_loopback()) {
    return FailedPrecondition("'", address, "' is not a loopback address, allowed: 127.0.0.1:PORT");
  }
  return tcp::endpoint(host, port);
}

}  // namespace

absl::Status CheckStatusAddress(std::string_view address) { return ParseAddress(address).status(); }

absl::StatusOr<std::unique_ptr<StatusServer>> StatusServer::Start(const std::string& address,
                                                                  StatusSource* source) {
  KVERN_ASSIGN_OR_RETURN(tcp::endpoint endpoint, ParseAddress(address));
  try {  // The acceptor says by exception that the port is taken.
    auto server = std::make_unique<Server>(endpoint, source);
    KVERN_RETURN_IF_ERROR(server->Run());
    return server;
  } catch (const boost::system::system_error& error) {
    return Unavailable("cannot listen on ", address, ": ", error.code().message());
  }
}

}  // namespace kvern
