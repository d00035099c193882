// A system that gives no thread, for as long as the object lives.
#pragma once

#include <pthread.h>

#include "cluster/base/check.h"

namespace kvern {

// By a stack for new threads for which there is no room in any address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    KVERN_CHECK_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t none;
    KVERN_CHECK_EQ(pthread_attr_init(&none), 0);
    KVERN_CHECK_EQ(pthread_attr_setstacksize(&none, size_t{1} << 60), 0);
    KVERN_CHECK_EQ(pthread_setattr_default_np(&none), 0);
  }
  ~NoMoreThreads() { KVERN_CHECK_EQ(pthread_setattr_default_np(&before_), 0); }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace kvern
