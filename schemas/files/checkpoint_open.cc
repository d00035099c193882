// Checkpoint::Open: which format a path holds, and the files behind it.
#include <sys/stat.h>

#include <cerrno>

#include "schemas/files/checkpoint.h"
#include "schemas/files/file.h"

namespace kvern {

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return ErrnoStatus(absl::StrCat("cannot open model ", path), errno);
  }
  if (S_ISDIR(info.st_mode)) {
    std::string folder = path;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    auto open =
        [folder](const std::string& file) -> absl::StatusOr<std::shared_ptr<const ByteSource>> {
      return File::Open(absl::StrCat(folder, "/", file));
    };
    return FromFolder({folder, open});
  }
  KVERN_ASSIGN_OR_RETURN(std::shared_ptr<const ByteSource> source, File::Open(path));
  return FromGguf(std::move(source));
}

}  // namespace kvern
