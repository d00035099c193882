// Ring: the queue of this code base. A FIFO with a capacity fixed at construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "cluster/base/check.h"

namespace kvern {

// Not thread-safe. Storage grows up to the capacity as it is first used and is then reused.
// T must be default-constructible and movable.
template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : capacity_(capacity) { KVERN_CHECK(capacity > 0); }

  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == capacity_; }

  // REQUIRES: !full().
  void PushBack(T value) {
    KVERN_CHECK(!full()) << "ring of " << capacity_;
    if (size_ == slots_.size()) Grow();
    slots_[Index(size_)] = std::move(value);
    ++size_;
  }

  // REQUIRES: !empty().
  T PopFront() {
    KVERN_CHECK(!empty());
    T value = std::move(slots_[head_]);
    slots_[head_] = T();
    head_ = Index(1);
    --size_;
    return value;
  }

  // The i-th oldest. REQUIRES: i < size().
  T& operator[](size_t i) {
    KVERN_CHECK_LT(i, size_);
    return slots_[Index(i)];
  }
  const T& operator[](size_t i) const {
    KVERN_CHECK_LT(i, size_);
    return slots_[Index(i)];
  }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }

  // Removes the i-th oldest, keeping the order of the rest. O(size).
  T RemoveAt(size_t i) {
    T value = std::move((*this)[i]);
    for (size_t k = i; k + 1 < size_; ++k) slots_[Index(k)] = std::move(slots_[Index(k + 1)]);
    slots_[Index(size_ - 1)] = T();
    --size_;
    return value;
  }

 private:
  size_t Index(size_t i) const { return (head_ + i) % slots_.size(); }

  void Grow() {
    std::vector<T> grown(std::min(capacity_, slots_.empty() ? size_t{16} : slots_.size() * 2));
    for (size_t i = 0; i < size_; ++i) grown[i] = std::move(slots_[Index(i)]);
    slots_ = std::move(grown);
    head_ = 0;
  }

  size_t capacity_;
  size_t head_ = 0;
  size_t size_ = 0;
  std::vector<T> slots_;
};

}  // namespace kvern
