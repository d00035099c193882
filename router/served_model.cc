#include "router/served_model.h"

#include <algorithm>
#include <thread>

#include "router/io/text_filters.h"
#include "schemas/files/checkpoint.h"
#include "schemas/files/model_name.h"

namespace kvern {

RouterText ServedModel::Text() const {
  RouterText text;
  if (!tokenizer) return text;
  text.tokenizer = &*tokenizer;
  text.filters = filters.get();
  text.chat_template = chat_template;
  // Ranks need the cores more: prompts arrive far more slowly than a thread can encode them.
  text.threads = std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
  return text;
}

absl::StatusOr<std::unique_ptr<ServedModel>> LoadServedModel(const ServedModelOptions& options) {
  KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(options.path));
  const ModelConfig& config = checkpoint->config();
  auto model = std::make_unique<ServedModel>();
  model->name = options.name.empty() ? ModelNameOf(options.path) : options.name;
  model->max_seq_len = options.max_seq_len == 0 ? config.max_seq_len : options.max_seq_len;
  if (model->max_seq_len > config.max_seq_len) {
    return InvalidArgument("--max-seq-len: ", options.max_seq_len, ", the model allows ",
                           config.max_seq_len);
  }
  model->vocab_size = config.vocab_size;
  model->eos_ids = config.eos_ids;
  if (checkpoint->tokenizer() == nullptr) {
    if (options.chat_template.empty()) return model;
    return InvalidArgument("--chat-template: '", options.chat_template,
                           "' is of no use: the model has no tokenizer");
  }
  KVERN_ASSIGN_OR_RETURN(model->tokenizer, Tokenizer::Create(*checkpoint->tokenizer()));
  model->filters = MakeTextFilters(&*model->tokenizer);
  model->chat_template =
      ChatTemplate::Choose(options.chat_template, model->tokenizer->chat_template());
  if (!options.chat_template.empty() && !model->chat_template.ok()) {
    return InvalidArgument("--chat-template: ", model->chat_template.status().message());
  }
  return model;
}

}  // namespace kvern
