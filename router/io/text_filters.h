// The router core's view of text, by the text code of router/text.
#pragma once

#include <memory>

#include "router/core/text_filter.h"
#include "router/text/tokenizer.h"

namespace kvern {

// Thread-safe; the filters it makes are not. `tokenizer` outlives both.
std::unique_ptr<TextFilterFactory> MakeTextFilters(const Tokenizer* tokenizer);

}  // namespace kvern
