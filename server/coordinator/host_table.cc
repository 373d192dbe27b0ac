#include "server/coordinator/host_table.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nereus {

HostTable::HostTable(State saved) : state_(std::move(saved)) {
  for (const Host& host : state_.hosts) {
    numbers_.emplace(host.claim, static_cast<int32_t>(numbers_.size()));
  }
}

HostTable::Numbered HostTable::NumberOf(const JoinRequest& request) {
  const bool is_own =
      request.host.machine.empty() || IsSplit(request.incarnation);
  if (is_own) return {};
  const auto known = numbers_.find(request.host);
  if (known != numbers_.end()) return {known->second, ""};
  if (state_.hosts.size() >= size_t{kHostsMax}) return {};
  Numbered added = {static_cast<int32_t>(state_.hosts.size()),
                    DescribeTwin(request)};
  numbers_.emplace(request.host, added.host);
  state_.hosts.push_back({request.host, request.name});
  return added;
}

std::optional<std::string> HostTable::Split(const JoinRequest& elder,
                                            const JoinRequest& younger,
                                            absl::string_view reason) {
  if (IsSplit(elder.incarnation) || IsSplit(younger.incarnation)) return "";
  if (state_.split.size() >= size_t{kHostsMax}) return std::nullopt;
  state_.split.insert(younger.incarnation);
  const std::string& node = younger.host.node;
  return absl::StrCat(
      "worker ", younger.name, " and worker ", elder.name,
      " cannot connect, although both run on one machine and ",
      node.empty() ? "in one network namespace"
                   : absl::StrCat("say --node=", node),
      ": ", reason, ". From now on worker ", younger.name,
      " counts as a host of its own, which costs speed. Let workers of one "
      "host connect to each other, or give them different --node");
}

void HostTable::KeepSplits(const std::set<uint64_t>& alive) {
  std::erase_if(state_.split, [&](uint64_t incarnation) {
    return !alive.contains(incarnation);
  });
}

// Claims of one node are next to each other in the map. If two machines have
// claimed the node before, this is no news.
std::string HostTable::DescribeTwin(const JoinRequest& request) const {
  const std::string& node = request.host.node;
  if (node.empty()) return "";
  const auto twin = numbers_.lower_bound(HostClaim{node, ""});
  if (twin == numbers_.end() || twin->first.node != node) return "";
  const auto third = std::next(twin);
  if (third != numbers_.end() && third->first.node == node) return "";
  return absl::StrCat(state_.hosts[twin->second].member, " and ", request.name,
                      " both say --node=", node,
                      " and run on different machines: they count as two "
                      "hosts");
}

}  // namespace nereus
