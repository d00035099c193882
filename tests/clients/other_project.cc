// A program of another project, linked with nothing but kvern_client. Its authors choose what they
// are warned of: with this tree's warnings it would not compile.
#include "tools/clients/cpp/client.h"

int main(int arguments, char**) {
  unsigned never_used = arguments;
  kvern::ClientOptions options;
  options.timeout = 0;
  return absl::IsInvalidArgument(kvern::Client::Connect(options).status()) ? 0 : 1;
}
