#pragma once

#include <string>

namespace nereus {

// Runs a test's shell scripts, which start programs as users do.
class ScriptRun {
 public:
  // Runs `script` in sh and returns its exit code. The script has the paths of
  // the programs in $server, $worker, $ctl and $examples, an empty folder in
  // $dir, and
  //
  //   start_server FLAGS    starts a server in the background: its addresses
  //                         are then in $control and $data, its log in
  //                         $dir/server.log
  //   await TEXT FILE       waits until the file has the text, for two minutes
  //                         at least
  //
  // Processes in the background end with the script. Fails the test if it takes
  // more than ProgramRun::kLimit.
  int RunScript(const std::string& script);

  // Output of the last script: standard output, then standard error.
  const std::string& output() const { return output_; }

 private:
  std::string output_;
};

}  // namespace nereus
