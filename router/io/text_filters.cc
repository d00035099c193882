#include "router/io/text_filters.h"

#include "cluster/base/check.h"
#include "router/text/text_stream.h"

namespace kvern {
namespace {

class StreamFilter : public TextFilter {
 public:
  explicit StreamFilter(TextStream stream) : stream_(std::move(stream)) {}

  Piece Append(std::span<const uint32_t> ids, bool final, bool hidden_last) override {
    KVERN_CHECK(!hidden_last || !ids.empty());
    std::span<const uint32_t> shown = hidden_last ? ids.first(ids.size() - 1) : ids;
    TextStream::Piece piece = stream_.Append(shown, final);
    Piece result;
    result.text = std::move(piece.text);
    result.stopped = piece.stopped;
    result.stop_string = std::move(piece.stop_string);
    result.tokens_kept = piece.stopped ? piece.tokens_kept : ids.size();
    return result;
  }

 private:
  TextStream stream_;
};

class StreamFilterFactory : public TextFilterFactory {
 public:
  explicit StreamFilterFactory(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  std::unique_ptr<TextFilter> NewFilter(const std::vector<std::string>& stop,
                                        uint32_t min_tokens) const override {
    TextStreamOptions options;
    options.stop = stop;
    options.min_tokens = min_tokens;
    absl::StatusOr<TextStream> stream = TextStream::Create(tokenizer_, std::move(options));
    // The codec has refused stop strings that are too many, too long, empty or ill-formed.
    KVERN_CHECK(stream.ok()) << stream.status().ToString();
    return std::make_unique<StreamFilter>(*std::move(stream));
  }

 private:
  const Tokenizer* tokenizer_;
};

}  // namespace

std::unique_ptr<TextFilterFactory> MakeTextFilters(const Tokenizer* tokenizer) {
  return std::make_unique<StreamFilterFactory>(tokenizer);
}

}  // namespace kvern
