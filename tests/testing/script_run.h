#pragma once

#include <string>

namespace nereus {

// Runs shell scripts that start the programs of Nereus as users do.
class ScriptRun {
 public:
  // Runs `script` in sh and returns its exit code. The variables $server,
  // $worker and $ctl are the paths of programs, $examples is the folder of the
  // examples, $dir is an empty folder, and $port is a HeldPort. The script may
  // call two functions:
  //
  //   start_server FLAGS    starts a server in the background and waits until
  //                         it listens. Sets $control and $data to its
  //                         addresses; its log is $dir/server.log. Ends the
  //                         script with 99 if the server ends.
  //   await TEXT FILE       waits until the file has the text. Ends the script
  //                         with 98 after about two minutes.
  //
  // Processes in the background end with the script. Fails the test if the
  // script takes more than ProgramRun::kLimit.
  int RunScript(const std::string& script);

  // Output of the last script: standard output, then standard error.
  const std::string& output() const { return output_; }

 private:
  std::string output_;
};

}  // namespace nereus
