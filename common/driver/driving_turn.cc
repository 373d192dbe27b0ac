#include "common/driver/driving_turn.h"

#include "common/base/clock.h"

namespace nereus {
namespace {

// Number of naps in a row, each of at most kOwnerYield. After each nap, the
// owner looks whether the turn is free. If a guest has the turn after this
// number of naps, the owner sleeps until the guest wakes it: if a guest drives
// for long, one wake-up costs less than many naps.
constexpr int kLooksMax = 20;

}  // namespace

bool DrivingTurn::OwnerTakes() {
  Lock lock(mu_);
  looks_ = 0;
  while (!stopped_) {
    const bool left_to_guest =
        guest_ || (comes_back_ && SteadyNow() < given_at_ + kOwnerYield);
    if (!left_to_guest) {
      owner_ = true;
      taken_ = true;
      return true;
    }
    Doze(lock);
  }
  return false;
}

// The owner takes short naps while the guest is likely to give the turn back or
// to come back soon. If the owner slept instead, the guest would have to wake
// it, and this would cost more time than the naps.
void DrivingTurn::Doze(Lock& lock) {
  if (guest_ && looks_ >= kLooksMax) {
    sleeps_ = true;
    back_.wait(lock, [this] { return stopped_ || !guest_; });
    sleeps_ = false;
    looks_ = 0;
    return;
  }
  ++looks_;
  const absl::Duration rest =
      guest_ ? kOwnerYield : given_at_ + kOwnerYield - SteadyNow();
  back_.wait_for(lock, absl::ToChronoNanoseconds(rest));
}

void DrivingTurn::OwnerGives() {
  {
    Lock lock(mu_);
    owner_ = false;
    taken_ = guest_;
  }
  given_.notify_all();
}

bool DrivingTurn::GuestTakes() {
  Lock lock(mu_);
  if (guest_ || stopped_) return false;
  guest_ = true;
  comes_back_ = SteadyNow() - given_at_ < kGuestReturnMax;
  if (owner_) {
    wanted_ = true;
    // The owner needs the lock in OwnerGives, so this thread unlocks it.
    lock.unlock();
    interrupt_();
    lock.lock();
    given_.wait(lock, [this] { return !owner_; });
    wanted_ = stopped_;
  }
  taken_ = true;
  return true;
}

void DrivingTurn::GuestGives() {
  // This thread holds the lock until the end: when it unlocks, a thread in Stop
  // can return and destroy this object.
  Lock lock(mu_);
  guest_ = false;
  taken_ = false;
  given_at_ = SteadyNow();
  if (sleeps_ || !comes_back_) back_.notify_one();
  if (stopped_) given_.notify_all();
}

void DrivingTurn::Stop() {
  Lock lock(mu_);
  stopped_ = true;
  wanted_ = true;
  lock.unlock();
  interrupt_();
  back_.notify_one();
  lock.lock();
  given_.wait(lock, [this] { return !guest_; });
}

}  // namespace nereus
