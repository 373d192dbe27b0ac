#include "server/coordinator/place_claims.h"

#include "absl/strings/str_cat.h"

namespace nereus {

void PlaceClaims::Add(Claim claim, const absl::Status& taken,
                      CoordinatorOutbox& out) {
  out.push_back(SendToMember{
      claim.session,
      Waiting{absl::StrCat(taken.message(),
                           ": waiting to see if that process is dead")}});
  // This process may have claimed the place in a session that broke.
  std::erase_if(claims_, [&](const Claim& each) {
    if (each.request.incarnation != claim.request.incarnation) return false;
    out.push_back(EndSession{each.session});
    return true;
  });
  claims_.push_back(std::move(claim));
}

bool PlaceClaims::End(SessionId session) {
  return std::erase_if(claims_, [&](const Claim& claim) {
           return claim.session == session;
         }) > 0;
}

void PlaceClaims::Delay(absl::Duration pause) {
  for (Claim& claim : claims_) claim.since += pause;
}

}  // namespace nereus
