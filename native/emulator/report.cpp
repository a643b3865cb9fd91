// Places become file and line, faults of one place become one, and all of it JSON or words.
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <tuple>

#include "emulator.h"
#include "machine.h"

namespace emulator {
namespace {

struct Place {
  std::string file = "?";
  int line = 0;
  std::vector<std::string> functions = {};  // from the innermost to the one that the others are inlined into
};
std::map<std::uint64_t, Place> places;

// What addr2line, which comes with g++, prints of addresses in this program, without the ends of lines.
std::vector<std::string> addr2line(const std::string& options, std::span<const std::uint64_t> addresses) {
  std::ostringstream command;
  command << "addr2line " << options << " -f -C -e /proc/" << getpid() << "/exe" << std::hex;
  for (const auto address : addresses) command << " 0x" << address - load_base();
  command << " 2>/dev/null";
  std::vector<std::string> lines;
  std::FILE* pipe = popen(command.str().c_str(), "r");
  if (!pipe) return lines;
  static char text[1 << 16];  // a template's name can be long
  while (std::fgets(text, sizeof text, pipe)) {
    std::string& line = lines.emplace_back(text);
    line.erase(line.find_last_not_of("\n ") + 1);
  }
  pclose(pipe);
  return lines;
}

// addr2line names the inlined functions inside out: the first line that is not the emulator's.
void resolve(const std::vector<std::uint64_t>& wanted) {
  std::vector<std::uint64_t> missing;
  for (const auto place : wanted)
    if (place && !places.contains(place)) missing.push_back(place);
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  constexpr std::size_t kTogether = 500;
  for (std::size_t first = 0; first < missing.size(); first += kTogether) {
    const std::size_t last = std::min(missing.size(), first + kTogether);
    std::size_t at = first;
    bool begun = false, found = false, function = false;  // function: the next line names one
    for (auto& line : addr2line("-a -i", std::span(missing).subspan(first, last - first))) {
      if (line.starts_with("0x")) {
        if (begun) ++at;
        begun = true;
        found = false;
        function = true;
        if (at < last) places[missing[at]] = {};
        continue;
      }
      if (function && at < last) places[missing[at]].functions.push_back(line);
      function = !function;
      if (!function) continue;
      if (const auto comment = line.find(" ("); comment != std::string::npos) line.resize(comment);
      const auto colon = line.rfind(':');
      if (found || at >= last || colon == std::string::npos || line.find("emulator/include/") != std::string::npos ||
          line.starts_with("/usr/"))
        continue;
      found = true;
      std::string file = line.substr(0, colon);
      if (const auto below = file.rfind("/kernels/"); below != std::string::npos) file = file.substr(below + 1);
      places[missing[at]].file = file;
      places[missing[at]].line = std::atoi(line.c_str() + colon + 1);
    }
  }
}

const std::string kNote = "note";
std::map<const void*, std::string> kernel_names;

struct Key {
  std::string kind, kernel;
  std::uint64_t place, other;
  auto operator<=>(const Key&) const = default;
};
struct Seen {
  std::string words;
  std::int64_t count = 0;
};
std::map<Key, Seen> faults;
struct Recent {
  const char* kind = nullptr;
  std::uint64_t place = 0, other = 0;
  const char* kernel = nullptr;
  Seen* seen = nullptr;
};
Recent recent[64];
Recent& recent_of(const char* kind, std::uint64_t place, std::uint64_t other) {
  return recent[(std::uint64_t(kind) ^ place * 31 ^ other * 17) % std::size(recent)];
}

struct CountKey {
  std::string kernel, name;
  std::uint64_t place;
  bool shared, write;
  int bytes;
  auto operator<=>(const CountKey&) const = default;
};
std::map<CountKey, Counted> counts;
std::map<std::string, Kernel> kernels;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

}  // namespace

std::uint64_t load_base() {
  std::uint64_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        *static_cast<std::uint64_t*>(to) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &base);
  return base;
}

bool same_line(std::uint64_t a, std::uint64_t b) {
  resolve({a, b});
  return places[a].line == places[b].line && places[a].file == places[b].file;
}

// A kernel's name without namespaces and what is in brackets.
std::string plain(std::string name) {
  for (const std::string part : {"(anonymous namespace)::", "void "})
    for (auto at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  name.resize(std::min(name.size(), name.find_first_of("<(")));
  return name.substr(name.rfind(':') + 1);  // npos + 1 is 0
}

// As addr2line writes it, without what every kernel of ours has: "void", namespaces, parameters.
const char* name_of_kernel(const void* kernel) {
  auto& name = kernel_names[kernel];
  if (!name.empty()) return name.c_str();
  const auto address = std::uint64_t(kernel);
  const auto lines = addr2line("", {&address, 1});
  name = lines.empty() ? "?" : lines.front();
  for (const std::string part : {"void ", "(mnist::Precision)", "mnist::", "fused::", "kernels::"})
    for (auto at = name.find(part); at != std::string::npos; at = name.find(part)) name.erase(at, part.size());
  name.resize(std::min(name.size(), name.find('(')));
  return name.c_str();
}

bool known_fault(const char* kind, std::uint64_t place, std::uint64_t other) {
  const Recent& last = recent_of(kind, place, other);
  if (last.kind != kind || last.place != place || last.other != other || last.kernel != machine.kernel) return false;
  ++last.seen->count;
  return true;
}

void add_fault(const char* kind, const std::string& words, std::uint64_t place, std::uint64_t other) {
  const Inside own;
  Seen& seen = faults[{kind, machine.kernel, place, other}];
  if (seen.count++ == 0) seen.words = words;
  recent_of(kind, place, other) = {kind, place, other, machine.kernel, &seen};
}

void add_counts(const Counted& c) {
  Counted& sum = counts[{machine.kernel, c.name, c.place, c.shared, c.write, c.bytes}];
  sum.accesses += c.accesses;
  sum.lanes += c.lanes;
  sum.cost += c.cost;
  sum.least += c.least;
  if (sum.accesses == c.accesses) sum.first = c.first;
}

void add_kernel(const GlobalBytes& bytes, std::size_t dynamic_bytes) {
  const std::int64_t blocks = std::int64_t(machine.grid.x) * machine.grid.y * machine.grid.z;
  const std::int64_t threads = blocks * machine.thread_count;
  Kernel& kernel = kernels[machine.kernel];
  kernel.name = machine.kernel;
  ++kernel.launches;
  kernel.blocks += blocks;
  kernel.threads += threads;
  kernel.barriers += machine.barriers;
  kernel.atomics += machine.atomics;
  kernel.bytes += bytes.all;
  kernel.least_bytes += bytes.least;
  if (threads > kernel.largest) {
    kernel.largest = threads;
    kernel.block = machine.thread_count;
    kernel.dynamic_bytes = std::int64_t(dynamic_bytes);
  }
}

void reset() {
  faults.clear();
  std::fill(std::begin(recent), std::end(recent), Recent{});
  counts.clear();
  kernels.clear();
}

bool any_fault() {
  return std::ranges::any_of(faults, [](const auto& one) { return one.first.kind != kNote; });
}

Report report() {
  std::vector<std::uint64_t> wanted;
  for (const auto& [key, seen] : faults) wanted.insert(wanted.end(), {key.place, key.other});
  for (const auto& [key, sum] : counts) wanted.push_back(key.place);
  resolve(wanted);
  Report result;
  std::map<std::tuple<std::string, std::string, int, std::string, int>, Fault> by_line;
  for (const auto& [key, seen] : faults) {
    const Place here = key.place ? places[key.place] : Place{}, there = key.other ? places[key.other] : Place{};
    Fault& fault = by_line[{key.kind, here.file, here.line, there.file, there.line}];
    if (fault.count == 0)
      fault = {key.kind,  seen.words + (key.kernel.empty() ? "" : ", in " + key.kernel),
               here.file, there.file,
               here.line, there.line,
               0};
    fault.count += seen.count;
  }
  for (auto& [key, fault] : by_line) (fault.kind == kNote ? result.notes : result.faults).push_back(std::move(fault));
  std::map<std::tuple<std::string, std::string, int, std::string, bool, int>, Line> lines;
  std::map<const Line*, double> wastes;
  for (const auto& [key, sum] : counts) {
    const Place here = places[key.place];
    Line& line = lines[{key.kernel, here.file, here.line, key.name, key.write, key.bytes}];
    line.file = here.file;
    line.kernel = key.kernel;
    line.name = key.name;
    line.line = here.line;
    line.bytes = key.bytes;
    line.write = key.write;
    line.shared = key.shared;
    // Several accesses of a line: the first place of the one that wastes most.
    const double waste = double(sum.cost - sum.least) / double(sum.accesses);
    if (const auto [most, is_new] = wastes.try_emplace(&line, waste);
        is_new || waste > most->second || (waste == most->second && sum.first < line.first)) {
      most->second = waste;
      line.first = sum.first;
    }
    line.accesses += sum.accesses;
    line.lanes += sum.lanes;
    line.cost += sum.cost;
    line.least += sum.least;
  }
  for (auto& [key, line] : lines) result.lines.push_back(std::move(line));
  for (auto& [name, kernel] : kernels) {
    std::set<std::string> functions;
    for (const auto& [key, sum] : counts)
      for (const auto& function : places[key.place].functions)
        if (key.kernel == name && plain(function) == plain(name)) functions.insert(function);
    kernel.functions.assign(functions.begin(), functions.end());
    result.kernels.push_back(kernel);
  }
  return result;
}

std::string to_json(const Report& report) {
  std::ostringstream out;
  const char* comma = "";
  const auto add_faults = [&](const char* name, const std::vector<Fault>& list) {
    out << "\"" << name << "\": [";
    comma = "";
    for (const auto& f : list) {
      out << comma << "{\"kind\": " << quoted(f.kind) << ", \"words\": " << quoted(f.words)
          << ", \"file\": " << quoted(f.file) << ", \"line\": " << f.line
          << ", \"other_file\": " << quoted(f.other_file) << ", \"other_line\": " << f.other_line
          << ", \"count\": " << f.count << "}";
      comma = ", ";
    }
  };
  out << "{";
  add_faults("faults", report.faults);
  out << "], ";
  add_faults("notes", report.notes);
  out << "], \"lines\": [";
  comma = "";
  for (const auto& l : report.lines) {
    out << comma << "{\"kernel\": " << quoted(l.kernel) << ", \"file\": " << quoted(l.file) << ", \"line\": " << l.line
        << ", \"array\": " << quoted(l.name) << ", \"write\": " << (l.write ? "true" : "false") << ", \"memory\": \""
        << (l.shared ? "shared" : "global") << "\", \"bytes\": " << l.bytes << ", \"accesses\": " << l.accesses
        << ", \"lanes\": " << l.lanes << ", \"" << (l.shared ? "turns" : "sectors") << "\": " << l.cost
        << ", \"least\": " << l.least << ", \"first\": [";
    for (std::size_t k = 0; k < l.first.size(); ++k)
      out << (k ? ", " : "") << (l.first[k] ? std::to_string(*l.first[k]) : "null");
    out << "]}";
    comma = ", ";
  }
  out << "], \"kernels\": [";
  comma = "";
  for (const auto& k : report.kernels) {
    out << comma << "{\"name\": " << quoted(k.name) << ", \"launches\": " << k.launches << ", \"blocks\": " << k.blocks
        << ", \"threads\": " << k.threads << ", \"barriers\": " << k.barriers << ", \"bytes\": " << k.bytes
        << ", \"least_bytes\": " << k.least_bytes << ", \"block\": " << k.block
        << ", \"dynamic_bytes\": " << k.dynamic_bytes << ", \"atomics\": " << k.atomics << ", \"functions\": [";
    for (std::size_t n = 0; n < k.functions.size(); ++n) out << (n ? ", " : "") << quoted(k.functions[n]);
    out << "]}";
    comma = ", ";
  }
  out << "]}";
  return out.str();
}

std::string to_words(const Report& report) {
  std::ostringstream out;
  auto faults = report.faults;
  faults.insert(faults.end(), report.notes.begin(), report.notes.end());
  for (const auto& f : faults) {
    out << f.file << ":" << f.line << ": " << f.kind << ": " << f.words;
    if (f.other_line) out << "; the other is at " << f.other_file << ":" << f.other_line;
    out << " (" << f.count << (f.count == 1 ? " time)\n" : " times)\n");
  }
  char text[300];
  for (const auto& k : report.kernels) {
    std::snprintf(text, sizeof text, "%s: %lld bytes of global memory, at least %lld; %lld barriers of %lld blocks\n",
                  k.name.c_str(), (long long)k.bytes, (long long)k.least_bytes, (long long)k.barriers,
                  (long long)k.blocks);
    out << text;
  }
  for (const auto& l : report.lines) {
    const double n = double(l.accesses);
    std::snprintf(
        text, sizeof text,
        "%s:%d: %s of %s, %d bytes a lane: %.1f %s an access of a warp, at best %.1f; %.0f %% of lanes idle\n",
        l.file.c_str(), l.line, l.write ? "store" : "load", l.name.c_str(), l.bytes, double(l.cost) / n,
        l.shared ? "turns of the banks" : "sectors", double(l.least) / n, 100 - 100 * double(l.lanes) / (32 * n));
    out << text;
  }
  return out.str();
}

}  // namespace emulator
