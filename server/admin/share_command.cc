// Command `share`: shows the boards of the devices that jobs share on this
// computer.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/base/status.h"
#include "common/base/text_table.h"
#include "common/flags/flags.h"
#include "common/share/file/board_file.h"
#include "nlohmann/json.hpp"
#include "server/admin/commands.h"

namespace nereus {
namespace {

using Json = nlohmann::ordered_json;

// A board, as read.
struct Device {
  std::string folder;
  absl::StatusOr<TurnTable> table;
};

const char* StateName(const TurnTable& table, int slot) {
  if (table.holder == slot) return "has the turn";
  switch (table.slots[slot].state) {
    case TurnSlot::State::kAsks:
      return "waits";
    case TurnSlot::State::kIn:
      return "was passed";
    case TurnSlot::State::kOut:
      return "away";
  }
  return "";
}

// Time for which the client of a slot has been in its state.
absl::Duration SinceOf(const TurnSlot& slot, absl::Time now) {
  return std::max(now - slot.since, absl::ZeroDuration());
}

// Seconds of an iteration if the client had the device alone; 0: not known.
double AloneSeconds(const TurnSlot& slot) {
  return absl::ToDoubleSeconds(slot.step_time);
}

// Time of all turns of a device so far.
absl::Duration TotalOf(const TurnTable& table) {
  absl::Duration total;
  for (const TurnSlot& slot : table.slots) {
    if (slot.is_alive) total += slot.turn_time;
  }
  return total;
}

std::string Seconds(double seconds) {
  return seconds > 0 ? absl::StrFormat("%.3g s", seconds) : "-";
}

std::string TextOf(const Device& device, absl::Time now) {
  if (!device.table.ok()) {
    return absl::StrCat("device ", device.folder, ": ",
                        device.table.status().message(), "\n");
  }
  const TurnTable& table = *device.table;
  const absl::Duration total = TotalOf(table);
  TextTable rows("llrllrrrrr");
  rows.Row("job", "worker", "process", "state", "since", "step", "turns",
           "share", "mean turn", "step alone");
  int clients = 0;
  for (int i = 0; i < static_cast<int>(table.slots.size()); ++i) {
    const TurnSlot& slot = table.slots[i];
    if (!slot.is_alive) continue;
    ++clients;
    const double mean = slot.turn_count > 0
                            ? absl::ToDoubleSeconds(slot.turn_time) /
                                  static_cast<double>(slot.turn_count)
                            : 0;
    rows.Row(slot.job, slot.rank, slot.process, StateName(table, i),
             Seconds(absl::ToDoubleSeconds(SinceOf(slot, now))), slot.step,
             slot.turn_count,
             total > absl::ZeroDuration()
                 ? absl::StrFormat("%.0f %%", 100 * absl::FDivDuration(
                                                        slot.turn_time, total))
                 : "-",
             Seconds(mean), Seconds(AloneSeconds(slot)));
  }
  if (clients == 0) {
    return absl::StrCat("device ", device.folder, ": no job shares it now\n");
  }
  return absl::StrCat("device ", device.folder, ":\n", rows.Text());
}

Json JsonOf(const Device& device, absl::Time now) {
  if (!device.table.ok()) {
    return {{"folder", device.folder},
            {"error", device.table.status().message()}};
  }
  const TurnTable& table = *device.table;
  Json clients = Json::array();
  for (int i = 0; i < static_cast<int>(table.slots.size()); ++i) {
    const TurnSlot& slot = table.slots[i];
    if (!slot.is_alive) continue;
    clients.push_back({{"job", slot.job},
                       {"worker", slot.rank},
                       {"process", slot.process},
                       {"state", StateName(table, i)},
                       {"seconds", absl::ToDoubleSeconds(SinceOf(slot, now))},
                       {"step", slot.step},
                       {"weight", slot.weight},
                       {"turns", slot.turn_count},
                       {"turn_seconds", absl::ToDoubleSeconds(slot.turn_time)},
                       {"wait_seconds", absl::ToDoubleSeconds(slot.wait_time)},
                       {"step_seconds_alone", AloneSeconds(slot)},
                       {"resident_bytes", slot.resident_bytes},
                       {"turn_bytes", slot.turn_bytes}});
  }
  return {{"folder", device.folder},
          {"memory_bytes", table.memory_bytes},
          {"clients", std::move(clients)}};
}

class ShareCommand final : public Command {
 public:
  ShareCommand()
      : Command("share",
                "Shows the devices that jobs share on this computer: which "
                "job has the turn, which ones wait, and what each has had") {}

 private:
  void AddFlags(CLI::App& app) override {
    app.add_option("folder", folder_,
                   "folder of a device (NEREUS_SHARE of a worker), or of "
                   "several devices (`nereusctl run --share`)")
        ->required();
    AddSwitch(app, "json", json_, "print JSON");
  }

  absl::StatusOr<int> Execute(std::ostream& out,
                              std::ostream& /*err*/) override {
    const std::vector<Device> devices = NEREUS_TRY(ReadAll());
    const absl::Time now = SteadyNow();
    Json json = Json::array();
    for (const Device& device : devices) {
      if (json_) {
        json.push_back(JsonOf(device, now));
      } else {
        out << TextOf(device, now);
      }
    }
    if (json_) out << FormatJson(json) << "\n";
    const bool all = absl::c_all_of(
        devices, [](const Device& device) { return device.table.ok(); });
    return all ? kExitDone : kExitFailed;
  }

  // Reads the board of the folder, or those of its subfolders. One that cannot
  // be read does not keep the others from being shown.
  absl::StatusOr<std::vector<Device>> ReadAll() const {
    std::vector<std::string> folders;
    std::error_code error;
    // Adds a folder that has a board, or of which this cannot be known.
    const auto add = [&](const std::string& folder) {
      if (std::filesystem::exists(folder + "/board", error) || error) {
        folders.push_back(folder);
      }
    };
    add(folder_);
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_, error)) {
      if (entry.is_directory(error)) add(entry.path().string());
    }
    if (folders.empty()) {
      return NotFoundError("neither ", folder_,
                           " nor its subfolders have a board: no job has "
                           "shared a device by this folder");
    }
    std::sort(folders.begin(), folders.end());
    std::vector<Device> devices;
    for (const std::string& folder : folders) {
      const auto file = BoardFile::OpenToRead(folder);
      devices.push_back(
          {folder, file.ok() ? (*file)->board().Read() : file.status()});
    }
    return devices;
  }

  std::string folder_;  // Folder to show.
  bool json_ = false;   // --json
};

}  // namespace

std::unique_ptr<Command> MakeShareCommand() {
  return std::make_unique<ShareCommand>();
}

}  // namespace nereus
