#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/network/simulated_network.h"
#include "common/protocol/frame.h"
#include "common/protocol/machine.h"
#include "common/protocol/membership.h"
#include "tests/simulation/simulated_partition.h"
#include "tests/simulation/simulated_process.h"
#include "tests/simulation/simulated_world.h"

namespace nereus {

// The connections between members: carries frames over the simulated network,
// and breaks connections where a fault script says so.
//
//   connected --Break--> broken --both ends follow a new epoch--> connected
//
// Workers of one host may be unable to connect (MakeUnreachable):
//
//   apart --a worker gives up, and the coordinator makes two hosts of them-->
//     connected
//
// A connection may let nothing through (Cut), although both ends still reach
// the coordinator. As in a real transport, it breaks when nothing has arrived
// for a lease, and a new one is tried for a lease:
//
//   connected --Cut, a lease--> broken --new epoch--> apart --a lease--> lost
//                                                      '---Mend---> connected
//
// Frames go through the same steps as in a real transport: values are encoded
// to the wire type and get a checksum at the sender; the receiver's machine
// says where the payload is to land; checksum and encoding are checked there.
class SimulatedConnections {
 public:
  // `network_seed` is the seed of the frames' delays. Neither pointer is owned;
  // both must outlive this.
  SimulatedConnections(uint64_t network_seed, SimulatedWorld* world,
                       SimulatedPartition* partition);

  // Sends `frame` from a process to the member `to` of its epoch.
  void Transmit(SimulatedProcess& from, PeerId to, const Frame& frame);
  // Makes new connections when a process enters an epoch: to each peer to which
  // it has lost or given up a connection.
  void Follow(SimulatedProcess& process, const EpochStart& start);

  // Breaks the connection between two processes: frames under way are lost, and
  // each end hears of it after a drawn delay. Does nothing if there is none.
  void Break(ProcessId a, ProcessId b);
  // Breaks all connections of a process, which has just died.
  void BreakAll(ProcessId process);
  // Breaks the connection in the middle of a frame from `from` to `to`, after
  // `frames` more have arrived whole. Does nothing if there is no connection.
  void BreakInFrame(ProcessId from, ProcessId to, int frames);

  // Lets no frame from `from` to `to` arrive until Mend. The other direction
  // needs a call of its own.
  void Cut(ProcessId from, ProcessId to);
  // Ends Cut: frames that were held up arrive, if the connection still is.
  void Mend(ProcessId from, ProcessId to);

  // Lets the process and other workers of its host make no connection while
  // they are mates. Connections that are made already stay.
  void MakeUnreachable(ProcessId process) { unreachable_.insert(process); }
  // True if the process has been a mate of a process that it could not reach.
  bool WasApart(ProcessId process) const {
    return were_apart_.contains(process);
  }

  SimulatedNetwork& network() { return network_; }
  const SimulatedNetwork& network() const { return network_; }
  // Bytes that node i (worker of rank i and server i) exchanged with other
  // nodes, headers included.
  const std::vector<int64_t>& node_bytes() const { return node_bytes_; }

 private:
  using Direction = std::pair<ProcessId, ProcessId>;  // Sender, receiver.

  // Offers a frame to its receiver. False: it is not ready, offer it again.
  bool Deliver(ProcessId from, ProcessId to, const Frame& frame);
  // Hands a frame to the machine at its landing. False: its payload is wrong.
  bool Land(SimulatedProcess& receiver, ProcessId from, const Frame& frame,
            const Landing& landing);
  // True if one of the two knows the other as a member of its epoch.
  bool AreConnected(ProcessId a, ProcessId b) const;
  // Tells `self` that its connection to `peer` has ended.
  void Lose(ProcessId self, ProcessId peer);
  // True if a fault breaks the connection in the frame that has just come.
  bool BreaksHere(Direction direction);
  // Connects a process to its mates in an epoch, or leaves it apart from them.
  void MeetMates(SimulatedProcess& process, const EpochStart& start);
  // Leaves a process of the epoch `start` without a connection to `peer`.
  void KeepApart(ProcessId self, const EpochStart& start, ProcessId peer);
  // Connects a process to a peer that it is apart from.
  void EndApart(ProcessId self, ProcessId peer);
  // Tries again to connect a process to a peer that it has been apart from
  // since `since`, or gives up.
  void TryAgain(ProcessId self, ProcessId peer, absl::Time since);
  // True if the two cannot connect: one of them cannot reach the other, or they
  // are mates that MakeUnreachable keeps from each other.
  bool AreKeptApart(ProcessId a, ProcessId b) const;
  // True if a direction between the two is cut.
  bool IsCut(ProcessId a, ProcessId b) const {
    return cut_.contains({a, b}) || cut_.contains({b, a});
  }
  // Breaks a connection that has been silent for a lease, again and again, as
  // long as the direction has been cut since `since`.
  void WatchCut(Direction direction, absl::Time since);
  // True if one of the two is apart from the other in its epoch.
  bool AreApart(ProcessId a, ProcessId b) const {
    return apart_.contains({a, b}) || apart_.contains({b, a});
  }
  // Lets half of a frame land, then breaks the connection.
  void LoseRestOfFrame(Direction direction, const Frame& frame,
                       const Buffer& place);

  SimulatedWorld* const world_;
  SimulatedPartition* const partition_;
  SimulatedNetwork network_;
  // Frames that still arrive before a connection breaks in the next one.
  std::map<Direction, int> frames_to_break_;
  // Peers to which a process has lost its connection, by process.
  std::map<ProcessId, std::set<ProcessId>> lost_;
  // Connections that a process has given up to make a new one, by process and
  // peer: what it hears of an older one counts no more.
  std::map<Direction, int> renewed_count_;
  // Processes that no mate can connect to.
  std::set<ProcessId> unreachable_;
  // Pairs of mates that have been connected; the lower number is first.
  std::set<Direction> met_;
  // Peers that a process is apart from in its epoch, by process and peer.
  std::set<Direction> apart_;
  std::set<ProcessId> were_apart_;  // See WasApart.
  // Peers that a process tries to connect to, by process and peer.
  std::set<Direction> trying_;
  // Frames to peers that a process is apart from.
  std::map<Direction, std::vector<Frame>> waiting_;
  // Directions that let nothing through, and the time since when.
  std::map<Direction, absl::Time> cut_;
  std::vector<int64_t> node_bytes_;
};

}  // namespace nereus
