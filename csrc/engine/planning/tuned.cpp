#include "engine/planning/tuned.h"

#include <cctype>
#include <fstream>
#include <sstream>

#include "engine/planning/description.h"
#include "transport/interface/cores.h"
#include "transport/interface/environment.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 1);
  }
  return "unknown";
}

std::string as_file_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (kept) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (!kept && !name.empty() && name.back() != '-') name += '-';
  }
  return name;
}

// For example "all_reduce shm 4 1 32768 one_shot 65536 1": the fields of TuningRow, with the transport after
// the collective.
Tuned::Row parse(const std::string& line) {
  std::istringstream words(line);
  std::string collective, transport, algorithm, more;
  Tuned::Row found{};
  TuningRow& row = found.row;
  words >> collective >> transport >> row.max_world >> row.oversubscribed >> row.max_bytes >> algorithm >>
      row.slice_bytes >> row.lanes;
  if (!words || words >> more) throw InvalidArgument("expected 8 words");
  found.tuning = tuning_of(transport);
  for (const Entry& entry : catalogue()) {
    if (entry.name != algorithm || name_of(entry.collective) != collective) continue;
    row.collective = entry.collective;
    row.algorithm = entry.name;
  }
  if (row.algorithm.empty())
    throw InvalidArgument("there is no " + collective + " algorithm '" + algorithm + "'");
  if (row.slice_bytes == 0 || row.lanes < 1) throw InvalidArgument("slices and lanes must be at least 1");
  return found;
}

}  // namespace

std::string tuning_file() {
  std::string folder = environment("RINGREDUCE_CACHE");
  const std::string cache = environment("XDG_CACHE_HOME"), home = environment("HOME");
  if (folder.empty() && !cache.empty()) folder = cache + "/ringreduce";
  if (folder.empty() && !home.empty()) folder = home + "/.cache/ringreduce";
  if (folder.empty()) return "";
  const std::string cores = std::to_string(cores_of_host());
  static const std::string kind = processor();  // constant, and slow to read on machines with many cores
  return folder + "/" RINGREDUCE_VERSION "/" + as_file_name(kind + " " + cores + " cores") + ".tuning";
}

std::shared_ptr<const Tuned> tuned_rows() {
  const std::string wanted = environment("RINGREDUCE_TUNING");
  const std::string path = wanted.empty() ? tuning_file() : wanted;
  if (wanted == "off" || path.empty()) return nullptr;
  std::ifstream file(path);
  if (!file && wanted.empty()) return nullptr;
  const std::string whose = wanted.empty() ? "" : "RINGREDUCE_TUNING: ";
  if (!file) throw InvalidArgument(whose + "cannot read " + path);
  auto tuned = std::make_shared<Tuned>();
  std::string all;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    try {
      tuned->rows.push_back(parse(line));
    } catch (const Error& error) {
      throw InvalidArgument(whose + path + ", line " + std::to_string(number) + ": " + error.what() +
                            "; run ringreduce tune again, or delete the file");
    }
    all += line + '\n';
  }
  if (file.bad()) throw InvalidArgument(whose + "cannot read " + path);  // a directory
  tuned->digest = hash_of(all);
  tuned->file = path;
  return tuned->rows.empty() ? nullptr : tuned;
}

}  // namespace ringreduce
