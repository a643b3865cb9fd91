// What a load or store tells: the hooks of -fsanitize=thread, buffers with guards, shadow words, sectors and banks.
//
// g++ compiles a kernel with -fsanitize=thread and calls a function before each load and store. Ours, not those of the
// sanitizer's library, look the address up. Global memory is an arena of buffers with room between them, so an access
// outside a buffer is seen and does no harm. Each granule of a buffer, 4 bytes or 1, has a shadow: which thread wrote
// it last, which read it last, and when. Two accesses of different threads, one of them a store, are a race unless a
// barrier lies between them.
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "emulator.h"
#include "machine.h"

namespace emulator {
namespace {

constexpr std::size_t kPage = 64 << 10, kArena = std::size_t(64) << 30, kSharedArena = 512 << 10;

struct Access {
  std::uint32_t run = 0, block = 0, epoch = 0, time = 0;
  std::uint32_t place = 0;  // relative to the program
  std::uint16_t thread = 0;
  Strength strength = Strength::kPlain;
  bool late = false;         // a read: its block had told something before
  std::uint32_t blocks = 0;  // a read: those of other blocks, in Pass::readers; 0 if there are none
  std::uint32_t lanes = 0;   // a read: which lanes of its warp made it, at the same time
  std::uint32_t others = 0;  // a read: where in `more_reads` those of this epoch by others begin, one for each warp
};
struct Shadow {
  Access write, read;
};
static_assert(sizeof(Shadow) % 8 == 0);
// Reads by lanes of one warp at one time; `next` is the warp's next one, and 0 none.
struct Read {
  std::uint32_t time = 0, place = 0, lanes = 0, next = 0;
};
std::vector<Read> more_reads(1);

// An array by the name of the argument that points to it.
struct Named {
  const char* base;
  std::string name;
  std::size_t size;  // of an element
};

struct Buffer {
  std::string name;
  char* data = nullptr;
  std::size_t bytes = 0, granule = 4;
  bool shared = false, freed = false, managed = false;
  std::vector<std::uint8_t> set;  // by granule: whether it was written
  Shadow* shadow = nullptr;       // by granule; zero pages until touched
  std::size_t shadow_bytes = 0;
  std::vector<Named> names;         // into it, of this launch, by their bases
  std::vector<char> before, first;  // contents before the launch, and after its first order
  std::vector<std::uint8_t> set_before;

  void make_shadow() {
    if (shadow) munmap(shadow, shadow_bytes);
    shadow_bytes = (bytes / granule + 1) * sizeof(Shadow);
    shadow = static_cast<Shadow*>(
        mmap(nullptr, shadow_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  }
  // From here on by granules of `smaller` bytes.
  void refine(std::size_t smaller) {
    Shadow* old = shadow;
    const std::size_t old_bytes = shadow_bytes, by = granule / smaller, count = bytes / granule;
    for (auto* list : {&set, &set_before}) {
      std::vector<std::uint8_t> finer(list->size() * by);
      for (std::size_t k = 0; k < finer.size(); ++k) finer[k] = (*list)[k / by];
      *list = std::move(finer);
    }
    shadow = nullptr;
    granule = smaller;
    make_shadow();
    for (std::size_t k = 0; k < count; ++k)
      if (old[k].write.run || old[k].read.run)
        for (std::size_t j = 0; j < by; ++j) shadow[k * by + j] = old[k];
    munmap(old, old_bytes);
  }
  void mark_set(std::size_t from, std::size_t count) {
    if (count == 0) return;
    std::fill(set.begin() + std::ptrdiff_t(from / granule),
              set.begin() + std::ptrdiff_t((from + count - 1) / granule + 1), std::uint8_t(1));
  }
};

char* arena;
std::size_t arena_used;
std::vector<Buffer*> page_owner;
std::vector<std::unique_ptr<Buffer>> buffers;
std::vector<Buffer*> in_program;  // of them: variables of the GPU's memory
DeviceVariable* not_yet_known;    // variables that have no buffer yet

char* shared_arena;
std::size_t shared_used;
std::map<const void*, std::unique_ptr<Buffer>> shared_variables;  // by key; those of this block have data
std::vector<Buffer*> shared_now;
std::size_t dynamic_size;
const char kDynamicKey = 0;

std::uint64_t program_base;
// What blocks learn of each other in one pass over a grid.
struct Pass {
  // What was told by an atomic operation on an address: to all blocks, and to the block `block`.
  struct At {
    Knowledge to_all, in_block;
    std::uint32_t block = 0;
  };
  std::unordered_map<const void*, At> told;
  bool atomics = false;        // were there any
  std::uint32_t has_told = 0;  // the last block that told anything to all
  // Sets of blocks, each as one block beside another set; set 0 is empty.
  struct Reader {
    std::uint32_t others, block;
    bool late;
    auto operator<=>(const Reader&) const = default;
  };
  std::vector<Reader> readers{{}};
  std::map<Reader, std::uint32_t> sets;
  std::uint32_t last_set = 0;
};
Pass pass;

Named array_of(const Buffer& buffer, const char* address);

// ---- counting -------------------------------------------------------------------------------------------------------
// The n-th time that lanes of a warp come by one instruction counts as one access of the warp.
struct Group {
  unsigned lanes = 0;
  std::uint64_t address[kLanes];
};
struct Site : Counted {
  std::size_t used = 0;
  std::vector<Group> groups;
  std::uint32_t times[kLanes] = {};
  const char* base = nullptr;  // of the array
};
std::map<std::pair<std::uint64_t, const Buffer*>, Site> sites;  // by place and by what is accessed there
struct Cached {
  std::uint64_t place = 0;
  const Buffer* buffer = nullptr;
  Site* site = nullptr;
};
Cached cache[1 << 12];  // of `sites`
std::vector<Site*> touched;
std::int64_t global_bytes, least_bytes;

void count(const Buffer& buffer, const char* pointer, int bytes, bool write, std::uint64_t place) {
  const auto address = std::uint64_t(pointer);
  Cached& cached = cache[(place ^ std::uint64_t(&buffer) >> 4) % std::size(cache)];
  if (cached.place != place || cached.buffer != &buffer) {
    Site& made = sites[{place, &buffer}];
    made.place = place;
    made.bytes = bytes;
    made.write = write;
    made.shared = buffer.shared;
    const Named array = array_of(buffer, pointer);
    made.name = array.name;
    made.base = array.base;
    cached = {place, &buffer, &made};
  }
  Site& site = *cached.site;
  if (site.used == 0) touched.push_back(&site);
  const int lane = machine.current->lane();
  const std::size_t n = site.times[lane]++;
  if (n >= site.groups.size()) site.groups.emplace_back();
  if (n >= site.used) {
    for (std::size_t k = site.used; k <= n; ++k) site.groups[k].lanes = 0;
    site.used = n + 1;
  }
  Group& group = site.groups[n];
  group.lanes |= 1u << lane;
  group.address[lane] = address;
}

// The addresses of the lanes from `first` to `end`, sorted, each once; returns how many there are.
int distinct(const Group& group, int first, int end, std::uint64_t* sorted) {
  int count = 0;
  for (int k = first; k < end; ++k)
    if (group.lanes >> k & 1) sorted[count++] = group.address[k];
  if (!std::is_sorted(sorted, sorted + count)) std::sort(sorted, sorted + count);
  return int(std::unique(sorted, sorted + count) - sorted);
}

// Sectors of 32 bytes that the lanes of a warp touch.
void count_sectors(Site& site, const Group& group) {
  std::uint64_t sorted[kLanes], sectors = 0, next = 0;
  const int count = distinct(group, 0, kLanes, sorted);
  const std::uint64_t size = std::uint64_t(site.bytes);
  for (int k = 0; k < count; ++k) {
    const std::uint64_t from = std::max(sorted[k] / 32, next), to = (sorted[k] + size - 1) / 32;
    if (to >= from) sectors += to - from + 1;
    next = std::max(next, to + 1);
  }
  site.cost += std::int64_t(sectors);
  site.least += std::int64_t((std::uint64_t(count) * size + 31) / 32);
  global_bytes += std::int64_t(32 * sectors);
}

// Turns of the banks: each gives a word per turn, and lanes that read the same word share it. Where a lane's access is
// of 16 bytes, the halves of a warp have turns of their own: so many ncu counts where all lanes read one place. Other
// such accesses were not compared and may take more.
void count_turns(Site& site, const Group& group) {
  const std::uint64_t size = std::uint64_t(site.bytes);
  const int together = size == 16 ? kLanes / 2 : kLanes;
  for (int first = 0; first < kLanes; first += together) {
    std::uint64_t sorted[kLanes], next = 0;
    const int count = distinct(group, first, first + together, sorted);
    if (count == 0) continue;
    int turns[32] = {}, most = 1, words = 0;
    for (int k = 0; k < count; ++k)
      for (std::uint64_t word = std::max(sorted[k] / 4, next); word <= (sorted[k] + size - 1) / 4; ++word) {
        most = std::max(most, ++turns[word % 32]);
        ++words;
        next = word + 1;
      }
    site.cost += most;
    site.least += std::max(1, (words + 31) / 32);
  }
}

void close(Site& site, const Group& group) {
  if (++site.accesses == 1)
    for (int k = 0; k < kLanes; ++k)
      if (group.lanes >> k & 1) site.first[k] = std::int64_t(group.address[k] - std::uint64_t(site.base));
  site.lanes += std::popcount(group.lanes);
  site.shared ? count_turns(site, group) : count_sectors(site, group);
}

// ---- finding --------------------------------------------------------------------------------------------------------
bool in_arena(const char* address) { return arena && std::size_t(address - arena) < kArena; }

void know_variables() {
  for (; not_yet_known; not_yet_known = not_yet_known->next) {
    auto buffer = std::make_unique<Buffer>();
    buffer->name = not_yet_known->name;
    buffer->data = static_cast<char*>(const_cast<void*>(not_yet_known->data));
    buffer->bytes = not_yet_known->bytes;
    buffer->managed = not_yet_known->managed;
    buffer->granule = buffer->bytes % 4 == 0 && not_yet_known->alignment % 4 == 0 ? 4 : 1;
    buffer->set.assign(buffer->bytes / buffer->granule + 1, 1);
    buffer->set_before = buffer->set;  // one in a kernel is known only when a thread comes by
    buffer->before.assign(buffer->data, buffer->data + buffer->bytes);
    buffer->make_shadow();
    in_program.push_back(buffer.get());
    buffers.push_back(std::move(buffer));
  }
}

// The buffer of global memory that the address lies in or beside.
Buffer* global_buffer(const char* address) {
  if (in_arena(address)) {
    const std::size_t page = std::size_t(address - arena) / kPage;
    return page < page_owner.size() ? page_owner[page] : nullptr;
  }
  if (not_yet_known) know_variables();
  for (Buffer* buffer : in_program)
    if (address >= buffer->data - kGuard && address < buffer->data + buffer->bytes + kGuard) return buffer;
  return nullptr;
}

// The argument closest before the address; the first one of what lies before all; the buffer where there is none.
Named array_of(const Buffer& buffer, const char* address) {
  if (buffer.names.empty()) return {buffer.data, buffer.name, buffer.granule};
  const auto behind = std::ranges::upper_bound(buffer.names, address, {}, &Named::base);
  return behind == buffer.names.begin() ? *behind : *std::prev(behind);
}

std::string element(const Buffer& buffer, const char* address) {
  const auto [base, name, size] = array_of(buffer, address);
  const std::int64_t offset = address - base;
  const std::int64_t index =
      offset >= 0 ? offset / std::int64_t(size) : -((-offset + std::int64_t(size) - 1) / std::int64_t(size));
  return name + "[" + std::to_string(index) + "]" +
         (buffer.shared ? "" : " of " + std::to_string((buffer.data + buffer.bytes - base) / std::int64_t(size)));
}

inline bool is_ordered(const Access& before, bool shared, const Thread& me) {
  if (before.run != machine.run) return true;
  if (before.block != machine.block) {
    if (shared) return true;
    const Moment* known = me.told.known.of(before.block);
    return known &&
           (before.epoch < known->epoch || (before.epoch == known->epoch && known->of(before.thread) >= before.time));
  }
  if (before.epoch != machine.epoch || before.thread == me.number) return true;
  if (before.thread / kLanes != me.warp())
    return before.thread < me.known.size() && me.known[before.thread] >= before.time;
  return me.clock[before.thread % kLanes] >= before.time;
}

// A read by another block, of which this thread knows what came before the block told it. Reads by several threads in
// one epoch have left the last one.
bool is_ordered_read(const Access& read, const Thread& me) {
  if (!read.lanes) return true;  // a write has come behind it
  if (std::popcount(read.lanes) == 1 && !read.others) return is_ordered(read, false, me);
  const Moment* known = me.told.known.of(read.block);
  return known && (read.epoch < known->epoch || !read.late);
}
bool are_known(std::uint32_t blocks, const Thread& me) {
  for (; blocks; blocks = pass.readers[blocks].others)
    if (pass.readers[blocks].late || !me.told.known.of(pass.readers[blocks].block)) return false;
  return true;
}
std::uint32_t with_reader(std::uint32_t blocks, const Access& read) {
  const Pass::Reader reader{blocks, read.block, read.late};
  if (pass.readers[pass.last_set] == reader) return pass.last_set;  // as for the granule before it
  const auto [found, is_new] = pass.sets.try_emplace(reader, std::uint32_t(pass.readers.size()));
  if (is_new) pass.readers.push_back(reader);
  return pass.last_set = found->second;
}
// Accesses that were made to meet others: no race.
bool are_meant(Strength a, Strength b) {
  return std::min(a, b) >= Strength::kVolatile && std::max(a, b) >= Strength::kTelling;
}

// `by`: the thread that comes second, of the block that runs.
void report_race(const char* what, const Buffer& buffer, const char* address, const Access& before, int by,
                 std::uint64_t place) {
  // Of reads by several blocks the last one is known, which may be of this block; then one of another block counts.
  const bool in_block = before.block == machine.block && !before.blocks;
  const bool in_warp = in_block && before.thread / kLanes == by / kLanes;
  const char* kind = in_warp ? "race in a warp" : in_block ? "race in a block" : "race of blocks";
  if (known_fault(kind, place, program_base + before.place)) return;
  add_fault(kind,
            who(by, machine.block) + " " + what + " " +
                (before.block == machine.block && before.blocks ? "a thread" : who(before.thread, before.block)) +
                ", of " +
                (in_warp    ? "its own warp"
                 : in_block ? "another warp"
                            : "another block") +
                ", and no barrier lies between: " + element(buffer, address) + " in " +
                (buffer.shared ? "shared" : "global") + " memory",
            place, program_base + before.place);
}

// A store over another one that nothing orders. It is no race if both store the same value, which shows once it is
// done.
struct Overwritten {
  Buffer* buffer;
  char* at;
  Access before;
  int by;
  std::uint64_t place;
  char value[4];
};
std::vector<Overwritten> overwritten;
void settle() {
  for (const Overwritten& one : overwritten)
    if (std::memcmp(one.at, one.value, one.buffer->granule) != 0)
      report_race("writes what was just written by", *one.buffer, one.at, one.before, one.by, one.place);
  overwritten.clear();
}

// A read joins those of its epoch: each thread's last one counts.
void add_read(Access& first, const Access& now) {
  first.strength = std::min(first.strength, now.strength);
  first.late |= now.late;
  const std::size_t warp = now.thread / kLanes, warps = std::size_t(machine.thread_count + kLanes - 1) / kLanes;
  if (first.thread / kLanes == warp) {
    if (first.time == now.time) {
      first.lanes |= now.lanes;
      return;
    }
    first.lanes &= ~now.lanes;
  }
  if (first.others == 0) {
    first.others = std::uint32_t(more_reads.size());
    more_reads.resize(more_reads.size() + warps);
  }
  for (std::size_t at = first.others + warp;; at = more_reads[at].next) {
    Read& one = more_reads[at];
    if (one.time == now.time || one.lanes == 0) {
      one = {now.time, now.place, one.lanes | now.lanes, one.next};
      return;
    }
    one.lanes &= ~now.lanes;
    if (one.next == 0) {
      one.next = std::uint32_t(more_reads.size());
      more_reads.push_back({now.time, now.place, now.lanes, 0});
      return;
    }
  }
}

// The race of a write with a read, if there is one; otherwise whoever comes behind the write is behind the reads.
void check_reads(Shadow& shadow, const Buffer& buffer, const char* address, Strength strength, std::uint64_t place) {
  Access& read = shadow.read;
  const Thread& me = *machine.current;
  if (read.run != machine.run || (buffer.shared && read.block != machine.block)) return;
  if (are_meant(strength, read.strength)) return;
  const auto report = [&](const Access& one) {
    report_race("writes what may still be read by", buffer, address, one, me.number, place);
  };
  const auto forget = [&] { read.lanes = read.others = read.blocks = 0; };
  if (!are_known(read.blocks, me)) return report(read);
  if (read.block != machine.block) return is_ordered_read(read, me) ? forget() : report(read);
  if (read.epoch != machine.epoch) return forget();
  const auto races = [&](std::size_t warp, std::uint32_t time, std::uint32_t from, unsigned lanes) {
    Access one = read;
    one.blocks = 0;
    one.time = time;
    one.place = from;
    for (; lanes; lanes &= lanes - 1) {
      one.thread = std::uint16_t(warp * kLanes + std::size_t(__builtin_ctz(lanes)));
      if (is_ordered(one, buffer.shared, me)) continue;
      report(one);
      return true;
    }
    return false;
  };
  if (races(read.thread / kLanes, read.time, read.place, read.lanes)) return;
  for (std::size_t warp = 0; read.others && warp < std::size_t(machine.thread_count + kLanes - 1) / kLanes; ++warp)
    for (std::size_t at = read.others + warp; at; at = more_reads[at].next)
      if (races(warp, more_reads[at].time, more_reads[at].place, more_reads[at].lanes)) return;
  forget();
}

void check(Buffer& buffer, const char* address, int bytes, bool write, Strength strength, std::uint64_t place) {
  const bool atomic = strength == Strength::kAtomic;
  const std::size_t offset = std::size_t(address - buffer.data);
  if (const std::size_t even = (offset | std::size_t(bytes)) & -(offset | std::size_t(bytes)); even < buffer.granule)
    buffer.refine(even);
  const Thread& me = *machine.current;
  Access now{machine.run,
             machine.block,
             machine.epoch,
             me.clock[me.lane()],
             std::uint32_t(place - program_base),
             std::uint16_t(me.number),
             strength,
             pass.has_told == machine.block,
             0,
             1u << me.lane(),
             0};
  for (std::size_t k = offset / buffer.granule; k < (offset + std::size_t(bytes) + buffer.granule - 1) / buffer.granule;
       ++k) {
    Shadow& shadow = buffer.shadow[k];
    char* at = buffer.data + k * buffer.granule;
    if (!write && shadow.write.run != machine.run && buffer.set[k] && shadow.read.run == machine.run &&
        shadow.read.block == machine.block && shadow.read.thread / kLanes == me.warp() &&
        (shadow.read.lanes & now.lanes) && shadow.read.epoch == machine.epoch && shadow.read.time == now.time &&
        shadow.read.strength <= strength && shadow.read.late == now.late)
      continue;  // as it did just before
    const bool written = is_ordered(shadow.write, buffer.shared, me);
    if ((!write || atomic) && !buffer.set[k] && !known_fault("unset", place))
      add_fault("unset",
                who(me.number, machine.block) + " reads what nothing has written: " + element(buffer, at) + " in " +
                    (buffer.shared ? "shared" : "global") + " memory",
                place);
    if (write) {
      if (!written && !are_meant(strength, shadow.write.strength)) {
        overwritten.push_back({&buffer, at, shadow.write, me.number, place, {}});
        std::memcpy(overwritten.back().value, at, buffer.granule);
      }
      check_reads(shadow, buffer, at, strength, place);
      if (machine.counting && !buffer.shared && shadow.write.run != machine.run)
        least_bytes += std::int64_t(buffer.granule);
      shadow.write = now;
      buffer.set[k] = 1;
    } else {
      if (!written && !are_meant(strength, shadow.write.strength))
        report_race("reads what was just written by", buffer, at, shadow.write, me.number, place);
      Access& read = shadow.read;
      const bool now_running = read.run == machine.run && (!buffer.shared || read.block == machine.block);
      if (machine.counting && !buffer.shared && !now_running) least_bytes += std::int64_t(buffer.granule);
      if (now_running && read.block == machine.block && read.epoch == machine.epoch && read.lanes) {
        add_read(read, now);
      } else {
        std::uint32_t blocks = now_running ? read.blocks : 0;
        if (blocks && !me.told.empty() && are_known(blocks, me)) blocks = 0;
        if (now_running && read.block != machine.block && !is_ordered_read(read, me))
          blocks = with_reader(blocks, read);
        read = now;
        read.blocks = blocks;
      }
    }
  }
}

bool in_shared(const char* address) { return std::size_t(address - shared_arena) < kSharedArena; }
Buffer* shared_buffer(const char* address, int bytes) {
  for (Buffer* buffer : shared_now)
    if (address >= buffer->data && address + bytes <= buffer->data + buffer->bytes) return buffer;
  return nullptr;
}

// Whether it lies in a part of the program that the loader made read-only: literals and tables.
bool is_constant(const char* address) {
  static const auto parts = [] {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* to) {
          for (int k = 0; k < info->dlpi_phnum; ++k) {
            const auto& part = info->dlpi_phdr[k];
            const auto begin = info->dlpi_addr + part.p_vaddr;
            if ((part.p_type == PT_LOAD && !(part.p_flags & PF_W)) || part.p_type == PT_GNU_RELRO)
              static_cast<decltype(found)*>(to)->emplace_back(begin, begin + part.p_memsz);
          }
          return 0;
        },
        &found);
    return found;
  }();
  const auto at = std::uint64_t(address);
  return std::ranges::any_of(parts, [=](const auto& part) { return at >= part.first && at < part.second; });
}

void outside(const std::string& what, std::uint64_t place, bool fatal) {
  add_fault("outside", who(machine.current->number, machine.block) + " " + what, place);
  if (fatal) abandon_launch();
}

}  // namespace

void access(const void* pointer, int bytes, bool write, Strength strength, std::uint64_t place) {
  if (inside) return;
  const char* address = static_cast<const char*>(pointer);
  if (!machine.current) {
    const Buffer* buffer = global_buffer(address);
    if (buffer ? !buffer->managed : in_arena(address))
      add_fault("outside", "the host's code touches a GPU's memory, which ends a program on a GPU", place);
    return;
  }
  Thread& me = *machine.current;
  if (std::size_t(address - machine.stacks - kStack * std::size_t(me.number)) < kStack) return;  // its local memory
  const Inside own;
  if (!overwritten.empty()) settle();
  if (me.row.place) end_row(address, bytes);
  const char* verb = write ? "writes" : "reads";
  if (std::uint64_t(address) % std::uint64_t(bytes) && bytes <= 16)
    add_fault("misaligned",
              who(me.number, machine.block) + " " + verb + " " + std::to_string(bytes) +
                  " bytes at an address that is no multiple of that",
              place);
  if (in_shared(address)) {
    if (Buffer* buffer = shared_buffer(address, bytes)) {
      check(*buffer, address, bytes, write, strength, place);
      if (machine.counting && strength != Strength::kAtomic) count(*buffer, address, bytes, write, place);
      return;
    }
    const Buffer* near = nullptr;
    for (const Buffer* buffer : shared_now)
      if (!near || std::abs(address - buffer->data) < std::abs(address - near->data) ||
          (address >= buffer->data && near->data < buffer->data))
        near = buffer;
    return outside(
        std::string(verb) + " outside of shared memory's variables" + (near ? ": " + element(*near, address) : ""),
        place, false);
  }
  if (Buffer* buffer = global_buffer(address)) {
    if (buffer->freed) return outside(std::string(verb) + " a buffer that was freed: " + buffer->name, place, true);
    if (address < buffer->data || address + bytes > buffer->data + buffer->bytes)
      return outside(std::string(verb) + " outside of its buffer: " + element(*buffer, address), place, false);
    check(*buffer, address, bytes, write, strength, place);
    machine.atomics += strength == Strength::kAtomic;
    if (machine.counting && strength != Strength::kAtomic) count(*buffer, address, bytes, write, place);
    return;
  }
  if (in_arena(address)) return outside(std::string(verb) + " global memory that is no buffer's", place, true);
  if (std::size_t(address - machine.body) < machine.body_bytes) return;  // parameters
  if (std::size_t(address - reinterpret_cast<char*>(machine.threads)) < sizeof(Thread) * kMaxThreads)
    return;  // what meetings left
  if (is_constant(address)) return write ? outside("writes a constant of the program", place, true) : void();
  if (std::size_t(address - machine.stacks) < kStack * kMaxThreads)
    return outside(verb + std::string(" a local variable of ") +
                       who(int(std::size_t(address - machine.stacks) / kStack), machine.block),
                   place, false);
  outside(verb + std::string(std::uint64_t(address) < 4096 ? " through a null pointer" : " the host's memory"), place,
          true);
}

std::string who(int number, std::uint32_t block) {
  return "thread " + std::to_string(number) + " of block " + std::to_string(block - 1);
}

void begin_run() {
  pass = {};
  if (machine.counting) global_bytes = least_bytes = 0;
}

void begin_epoch() { more_reads.resize(1); }

void begin_block(std::size_t dynamic_bytes) {
  if (!shared_arena) {
    shared_arena = static_cast<char*>(
        mmap(nullptr, kSharedArena, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    program_base = load_base();
  }
  // What the last block left is no value: 0xff bytes, NaN as floats.
  if (shared_used) std::memset(shared_arena, 0xff, std::min(kSharedArena, shared_used + 4096));
  shared_used = 16;
  begin_epoch();
  shared_now.clear();
  for (auto& [key, variable] : shared_variables) variable->data = nullptr;
  dynamic_size = dynamic_bytes;
}

// A variable lies at a multiple of its alignment that is no multiple of twice that, so that no kernel relies on more.
void* shared_variable(const void* key, const char* name, std::size_t bytes, std::size_t alignment) {
  const Inside own;
  auto& variable = shared_variables[key];
  if (!variable) variable = std::make_unique<Buffer>();
  if (variable->data) return variable->data;
  std::size_t at = (shared_used + alignment - 1) / alignment * alignment;
  if (at / alignment % 2 == 0) at += alignment;
  if (at + bytes > kSharedArena / 2) {
    add_fault("launch", "shared memory of a block ran out: " + std::to_string(at + bytes) + " bytes",
              std::uint64_t(__builtin_return_address(0)) - 1);
    abandon_launch();
  }
  shared_used = at + bytes + 64;  // a gap, where nothing may be read
  variable->name = name;
  variable->shared = true;
  variable->data = shared_arena + at;
  variable->granule = bytes % 4 == 0 && alignment % 4 == 0 ? 4 : 1;
  variable->bytes = bytes;
  variable->set.assign(bytes / variable->granule + 1, 0);
  if (!variable->shadow || variable->shadow_bytes < (bytes / variable->granule + 1) * sizeof(Shadow))
    variable->make_shadow();
  shared_now.push_back(variable.get());
  return variable->data;
}

void* dynamic_shared(const char* name, std::size_t alignment) {
  return shared_variable(&kDynamicKey, name, dynamic_size, std::max<std::size_t>(alignment, 16));
}

void end_warp() {
  settle();
  for (Site* site : touched) {
    for (std::size_t k = 0; k < site->used; ++k)
      if (site->groups[k].lanes) close(*site, site->groups[k]);
    site->used = 0;
    std::fill(site->times, site->times + kLanes, 0u);
  }
  touched.clear();
}

void begin_launch() {
  know_variables();
  for (auto& buffer : buffers) {
    if (buffer->freed) continue;
    buffer->before.assign(buffer->data, buffer->data + buffer->bytes);
    buffer->set_before = buffer->set;
    buffer->first.clear();
  }
}

GlobalBytes finish_counts() {
  end_warp();
  for (const auto& [key, site] : sites) add_counts(site);
  sites.clear();
  std::fill(std::begin(cache), std::end(cache), Cached{});
  return {std::exchange(global_bytes, 0), std::exchange(least_bytes, 0)};
}

void restore_memory() {
  for (auto& buffer : buffers) {
    if (buffer->freed) continue;
    if (buffer->first.empty()) buffer->first.assign(buffer->data, buffer->data + buffer->bytes);
    std::memcpy(buffer->data, buffer->before.data(), buffer->bytes);
    buffer->set = buffer->set_before;
  }
}

void compare_memory(int order) {
  if (pass.atomics) return;  // they may come in any order
  for (auto& buffer : buffers) {
    if (buffer->freed || std::memcmp(buffer->data, buffer->first.data(), buffer->bytes) == 0) continue;
    const auto differ = std::mismatch(buffer->first.begin(), buffer->first.end(), buffer->data);
    const std::size_t at = std::size_t(differ.first - buffer->first.begin());
    const Access& write = buffer->shadow[at / buffer->granule].write;
    add_fault("order",
              std::string("the result depends on the order of threads and blocks: first in ") +
                  element(*buffer, buffer->data + at) +
                  (order == 1 ? ", run last to first" : ", run in a shuffled order"),
              write.run == machine.run ? program_base + write.place : 0);
  }
}

void forget(void* data, std::size_t bytes) {
  char* address = static_cast<char*>(data);
  Buffer& buffer = *global_buffer(address);
  std::memset(data, 0xff, bytes);
  const std::size_t from = std::size_t(address - buffer.data);
  if (const std::size_t even = (from | bytes) & -(from | bytes); even && even < buffer.granule) buffer.refine(even);
  for (std::size_t k = from / buffer.granule; k < (from + bytes) / buffer.granule; ++k) buffer.set[k] = 0;
}

std::vector<char> stored(const void* data, std::size_t bytes) {
  const char* address = static_cast<const char*>(data);
  const Buffer& buffer = *global_buffer(address);
  std::vector<char> bits((bytes + 7) / 8);
  for (std::size_t k = 0; k < bytes; ++k)
    if (buffer.set[(std::size_t(address - buffer.data) + k) / buffer.granule]) bits[k / 8] |= char(1 << k % 8);
  return bits;
}

void name_arguments(const char* names, const Argument* list, int count) {
  for (auto& buffer : buffers) buffer->names.clear();
  std::vector<std::string> words(1);
  int depth = 0;
  for (const char* at = names; *at; ++at) {
    depth += (*at == '(' || *at == '[' || *at == '{') - (*at == ')' || *at == ']' || *at == '}');
    if (*at == ',' && depth == 0)
      words.emplace_back();
    else if (*at != ' ' || !words.back().empty())
      words.back() += *at;
  }
  if (int(words.size()) != count) return;
  for (int k = 0; k < count; ++k) {
    const char* pointer = static_cast<const char*>(list[k].pointer);
    if (Buffer* buffer = pointer ? global_buffer(pointer) : nullptr) {
      buffer->names.push_back({pointer, words[std::size_t(k)], list[k].element});
      std::ranges::stable_sort(buffer->names, {}, &Named::base);
    }
  }
}

std::size_t shared_address(const void* pointer) {
  return std::size_t(static_cast<const char*>(pointer) - shared_arena);
}

const void* shared_data(std::uint32_t address) { return shared_arena + address % kSharedArena; }

char* shared_pointer(std::uint32_t address, int bytes, std::uint64_t place) {
  if (address + std::uint64_t(bytes) > kSharedArena)
    outside("names shared memory that no block has: byte " + std::to_string(address), place, true);
  return shared_arena + address;
}

__attribute__((noinline)) void async_copy(std::uint32_t shared, const void* global, int bytes, int given) {
  Thread& thread = *machine.current;
  const auto place = std::uint64_t(__builtin_return_address(0)) - 1;
  char* to = shared_pointer(shared, bytes, place);
  if (given > 0) access(global, given, false, Strength::kPlain, place);
  access(to, bytes, true, Strength::kPlain, place);
  const Inside own;
  std::memset(to, 0xff, std::size_t(bytes));
  for (Buffer* buffer : shared_now)
    if (to >= buffer->data && to < buffer->data + buffer->bytes)
      for (std::size_t k = 0; k < std::size_t(bytes); ++k)
        buffer->set[(std::size_t(to - buffer->data) + k) / buffer->granule] = 0;
  thread.copies.push_back({to, global, bytes, given, thread.groups, place});
}

void async_commit() { ++machine.current->groups; }
void async_finish() {
  async_commit();
  async_wait(0);
}

void async_wait(int pending) {
  Thread& thread = *machine.current;
  const bool counting = std::exchange(machine.counting, false);  // they were counted when they began
  const Inside own;
  auto copy = thread.copies.begin();
  for (; copy != thread.copies.end() && copy->group < thread.groups - pending; ++copy) {
    std::memset(copy->to, 0, std::size_t(copy->bytes));
    std::memcpy(copy->to, copy->from, std::size_t(copy->given));
    --inside;
    access(copy->to, copy->bytes, true, Strength::kPlain, copy->place);
    ++inside;
  }
  thread.copies.erase(thread.copies.begin(), copy);
  machine.counting = counting;
}

__attribute__((noinline)) void unknown_instruction(const char* instruction) {
  const Inside own;
  add_fault("unsupported", std::string("the emulator does not know ") + instruction,
            std::uint64_t(__builtin_return_address(0)) - 1);
  abandon_launch();
}

void copy_bytes(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

// ---- what threads tell each other by atomic operations and volatile flags -------------------------------------------
void Moment::join(const Moment& other) {
  if (other.epoch < epoch || other.clock.empty()) return;
  if (other.epoch > epoch || clock.empty()) {
    *this = other;
    return;
  }
  const std::size_t begin = std::min(first, other.first),
                    end = std::max(first + clock.size(), other.first + other.clock.size());
  std::vector<std::uint32_t> both(end - begin);
  for (std::size_t k = begin; k < end; ++k) both[k - begin] = std::max(of(k), other.of(k));
  first = begin;
  clock = std::move(both);
}

const Moment* Knowledge::of(std::uint32_t block) const {
  if (!all_) return nullptr;
  const auto found = all_->find(block);
  return found == all_->end() ? nullptr : found->second.get();
}

void Knowledge::join(const Knowledge& other) {
  if (!other.all_ || other.all_ == all_) return;
  if (!all_) {
    all_ = other.all_;
    return;
  }
  std::shared_ptr<Moments> both;
  for (const auto& [block, moment] : *other.all_) {
    const auto found = all_->find(block);
    if (found != all_->end() && found->second == moment) continue;
    if (!both) both = std::make_shared<Moments>(*all_);
    auto& mine = (*both)[block];
    if (mine) {
      auto joined = std::make_shared<Moment>(*mine);
      joined->join(*moment);
      mine = std::move(joined);
    } else {
      mine = moment;
    }
  }
  if (both) all_ = std::move(both);
}

void Knowledge::join(std::uint32_t block, const std::shared_ptr<const Moment>& moment) {
  if (!moment) return;
  Knowledge one;
  one.all_ = std::make_shared<Moments>(Moments{{block, moment}});
  join(one);
}

void Fence::join(const Fence& other) {
  known.join(other.known);
  if (!other.own || other.own == own) return;
  if (!own) {
    own = other.own;
    return;
  }
  auto both = std::make_shared<Moment>(*own);
  both->join(*other.own);
  own = std::move(both);
}

void join_told(std::span<Thread* const> threads) {
  if (!machine.telling) return;
  Told all;
  const Told* last = nullptr;
  for (const Thread* thread : threads)
    if (!last || !(thread->told == *last)) all.join(*(last = &thread->told));
  for (Thread* thread : threads) thread->told = all;
}

namespace {

// What this thread knows behind the last operation that told something at the address.
void listen(const void* address) {
  if (pass.told.empty()) return;
  const auto found = pass.told.find(address);
  if (found == pass.told.end()) return;
  Thread& me = *machine.current;
  machine.telling = true;
  me.told.known.join(found->second.to_all);
  if (found->second.block == machine.block) me.told.known.join(found->second.in_block);
  const Moment* own = me.told.known.of(machine.block);
  if (!own || own->epoch != machine.epoch) return;
  me.known.resize(std::size_t(machine.thread_count));
  for (std::size_t k = own->first; k < own->first + own->clock.size(); ++k) {
    auto& mine = k / kLanes == std::size_t(me.warp()) ? me.clock[k % kLanes] : me.known[k];
    mine = std::max(mine, own->of(k));
  }
}

// Whether there was anything that it knew at a fence.
bool tell(const void* address) {
  const Told& mine = machine.current->told;
  if (!mine.fenced_in_block.own) return false;
  Pass::At& at = pass.told[address];
  if (at.block != machine.block) at.in_block = {};
  at.block = machine.block;
  at.in_block.join(mine.fenced_in_block.known);
  at.in_block.join(machine.block, mine.fenced_in_block.own);
  if (!mine.fenced.own) return true;
  pass.has_told = machine.block;
  at.to_all.join(mine.fenced.known);
  at.to_all.join(machine.block, mine.fenced.own);
  return true;
}

// `bytes` one after the other, by words where that is possible, as a GPU's loop does it.
void range(const void* pointer, std::size_t bytes, bool write, std::uint64_t place) {
  if (!machine.current) {
    if (bytes) access(pointer, 1, write, Strength::kPlain, place);
    return;
  }
  const char* at = static_cast<const char*>(pointer);
  const std::size_t word = std::uint64_t(at) % 4 || bytes % 4 ? 1 : 4;
  for (; bytes; bytes -= word, at += word) access(at, int(word), write, Strength::kPlain, place);
}

void volatile_access(const void* pointer, int bytes, bool write, std::uint64_t place) {
  Strength strength = Strength::kVolatile;
  if (machine.current && !inside) {
    const char* address = static_cast<const char*>(pointer);
    if (!write && (in_shared(address) || global_buffer(address))) poll(pointer, bytes, place);
    const Inside own;
    if (!write) listen(pointer);
    if (write && tell(pointer)) strength = Strength::kTelling;
  }
  access(pointer, bytes, write, strength, place);
}

}  // namespace

__attribute__((noinline)) void atomic_access(const void* address, std::size_t bytes) {
  pass.atomics = true;
  if (machine.current) {
    const Inside own;
    listen(address);
    tell(address);
  }
  access(address, int(bytes), true, Strength::kAtomic, std::uint64_t(__builtin_return_address(0)) - 1);
}

void fence(bool of_block) {
  const Inside own;
  Thread& me = *machine.current;
  auto now = std::make_shared<Moment>();
  now->epoch = machine.epoch;
  now->first = me.known.empty() ? std::size_t(me.warp()) * kLanes : 0;
  now->clock = me.known;
  const std::size_t first = std::size_t(me.warp()) * kLanes - now->first;
  now->clock.resize(std::max(now->clock.size(), first + kLanes));
  std::copy(me.clock, me.clock + kLanes, now->clock.begin() + std::ptrdiff_t(first));
  ++me.clock[me.lane()];  // what it does from here on is not told
  machine.telling = true;
  const Fence fence{me.told.known, std::move(now)};
  me.told.fenced_in_block.join(fence);
  if (!of_block) me.told.fenced.join(fence);
}

// ---- indices beyond the bounds of an array, which -fsanitize=bounds notices -----------------------------------------
namespace {

// Whether two indices follow each other in this line of a file.
bool has_rows(const char* file, int line) {
  static std::map<std::pair<std::string, int>, bool> known;
  const auto [found, is_new] = known.try_emplace({file, line}, true);
  if (is_new) {
    std::ifstream source(file);
    std::string text;
    for (int k = 0; k < line; ++k) std::getline(source, text);
    std::erase(text, ' ');
    found->second = !source || text.find("][") != std::string::npos;
  }
  return found->second;
}

void beyond(const char* kind, const Row& row, const std::string& more) {
  if (known_fault(kind, row.place)) return;
  const std::string type = row.type;  // 'float [8]', with its quotes
  add_fault(kind,
            who(machine.current->number, machine.block) + " takes element " + std::to_string(row.index) +
                " of an array of type " + type.substr(1, type.size() - 2) + more,
            row.place);
}

}  // namespace

// The row's element may be what is accessed now: then it may lie in the array's next row.
void end_row(const char* address, int bytes) {
  const Row row = std::exchange(machine.current->row, {});
  const char* begin = address - row.index * bytes;
  const Buffer* array = !address ? nullptr : in_shared(begin) ? shared_buffer(begin, 1) : global_buffer(begin);
  if (array && address >= array->data && address + bytes <= array->data + array->bytes)
    beyond("note", row, ", which lies in another row of it");
  else
    beyond("outside", row, "");
}

namespace {
// As libubsan's handlers get it.
struct TypeDescriptor {
  std::uint16_t kind, info;
  char name[];
};
struct OutOfBounds {
  const char* file;
  std::uint32_t line, column;
  const TypeDescriptor *array, *index;
};

void out_of_bounds(const OutOfBounds& what, std::uint64_t index, std::uint64_t place) {
  if (!machine.current || inside) return;
  const Inside own;
  Thread& me = *machine.current;
  if (me.row.place) end_row(nullptr, 1);
  const int bits = 1 << (what.index->info >> 1);  // the lowest one: whether it has a sign
  if (bits < 64 && what.index->info & 1) index = std::uint64_t(std::int64_t(index << (64 - bits)) >> (64 - bits));
  const Row row{place, std::int64_t(index), what.array->name};
  const char* first = std::strchr(row.type, '[');
  const bool is_row = first && !std::strchr(first + 1, '[') && has_rows(what.file, int(what.line));
  if (is_row)
    me.row = row;
  else
    beyond("outside", row, "");
}
}  // namespace

}  // namespace emulator

// ---- memory of the runtime ------------------------------------------------------------------------------------------
bool emulator::DeviceVariable::is_known() {
  if (!known) next = std::exchange(not_yet_known, this);
  return known = true;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  using namespace emulator;
  if (!arena) {
    arena = static_cast<char*>(mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (arena == MAP_FAILED) return cudaErrorMemoryAllocation;
  }
  const std::size_t pages = (bytes + kPage - 1) / kPage + 2;  // one before it and one behind it
  if ((arena_used + pages) * kPage > kArena) return cudaErrorMemoryAllocation;
  char* first = arena + arena_used * kPage;
  arena_used += pages;
  mprotect(first, pages * kPage, PROT_READ | PROT_WRITE);
  auto buffer = std::make_unique<Buffer>();
  buffer->name = "allocation " + std::to_string(buffers.size() + 1);
  buffer->data = first + kPage;
  buffer->bytes = bytes;
  buffer->set.assign(bytes / buffer->granule + 1, 0);
  buffer->make_shadow();
  page_owner.resize(arena_used, buffer.get());
  std::memset(buffer->data, 0xff, bytes);  // NaN
  *data = buffer->data;
  buffers.push_back(std::move(buffer));
  return cudaSuccess;
}

cudaError_t cudaMallocManaged(void** data, std::size_t bytes) {
  const cudaError_t error = cudaMalloc(data, bytes);
  if (error == cudaSuccess) emulator::buffers.back()->managed = true;
  return error;
}

cudaError_t cudaFree(void* data) {
  using namespace emulator;
  if (!data) return cudaSuccess;
  Buffer* buffer = global_buffer(static_cast<char*>(data));
  if (!in_arena(buffer ? buffer->data : nullptr) || buffer->data != data || buffer->freed) return cudaErrorInvalidValue;
  munmap(buffer->shadow, buffer->shadow_bytes);
  mmap(buffer->data - kPage, ((buffer->bytes + kPage - 1) / kPage + 2) * kPage, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  // The address is never given again, so that its use is noticed.
  auto gone = std::find_if(buffers.begin(), buffers.end(), [&](const auto& one) { return one.get() == buffer; });
  *buffer = {.name = buffer->name, .data = buffer->data, .bytes = buffer->bytes, .freed = true};
  gone->release();
  buffers.erase(gone);
  return cudaSuccess;
}

namespace {
bool within(const void* data, std::size_t bytes, bool write) {
  using namespace emulator;
  const char* address = static_cast<const char*>(data);
  Buffer* buffer = global_buffer(address);
  if (!buffer && !in_arena(address)) return true;
  if (!buffer || buffer->freed || address < buffer->data || address + bytes > buffer->data + buffer->bytes) {
    add_fault("outside", "a copy or memset goes outside of a buffer", std::uint64_t(__builtin_return_address(0)) - 1);
    return false;
  }
  if (write) buffer->mark_set(std::size_t(address - buffer->data), bytes);
  return true;
}
}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (!within(from, bytes, false) || !within(to, bytes, true)) return cudaErrorInvalidValue;
  emulator::later_or_now([=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t) {
  for (std::size_t row = 0; row < height; ++row)
    if (const auto error = cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch,
                                           static_cast<const char*>(from) + row * from_pitch, width, kind))
      return error;
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  if (!within(to, bytes, true)) return cudaErrorInvalidValue;
  emulator::later_or_now([=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) { return cudaMemsetAsync(to, value, bytes); }

// ---- the hooks ------------------------------------------------------------------------------------------------------
#define HERE (std::uint64_t(__builtin_return_address(0)) - 1)
using emulator::Strength;
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
#define HOOKS(bytes)                                                                                        \
  void __tsan_read##bytes(void* p) { emulator::access(p, bytes, false, Strength::kPlain, HERE); }           \
  void __tsan_write##bytes(void* p) { emulator::access(p, bytes, true, Strength::kPlain, HERE); }           \
  void __tsan_unaligned_read##bytes(void* p) { emulator::access(p, bytes, false, Strength::kPlain, HERE); } \
  void __tsan_unaligned_write##bytes(void* p) { emulator::access(p, bytes, true, Strength::kPlain, HERE); } \
  void __tsan_volatile_read##bytes(void* p) { emulator::volatile_access(p, bytes, false, HERE); }           \
  void __tsan_volatile_write##bytes(void* p) { emulator::volatile_access(p, bytes, true, HERE); }           \
  void __tsan_unaligned_volatile_read##bytes(void* p) { emulator::volatile_access(p, bytes, false, HERE); } \
  void __tsan_unaligned_volatile_write##bytes(void* p) { emulator::volatile_access(p, bytes, true, HERE); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
// Guards of static variables in host code.
char __tsan_atomic8_load(const volatile char* p, int) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
void __tsan_read_range(void* p, std::size_t bytes) { emulator::access(p, int(bytes), false, Strength::kPlain, HERE); }
void __tsan_write_range(void* p, std::size_t bytes) { emulator::access(p, int(bytes), true, Strength::kPlain, HERE); }
void __ubsan_handle_out_of_bounds(void* what, std::size_t index) {
  emulator::out_of_bounds(*static_cast<emulator::OutOfBounds*>(what), index, HERE);
}

// rewrite.py gives the C library's functions these names: as accesses byte by byte, of which each is checked.
void* emulator_memcpy(void* to, const void* from, std::size_t bytes) {
  emulator::range(from, bytes, false, HERE);
  emulator::range(to, bytes, true, HERE);
  return std::memcpy(to, from, bytes);
}
void* emulator_memmove(void* to, const void* from, std::size_t bytes) {
  emulator::range(from, bytes, false, HERE);
  emulator::range(to, bytes, true, HERE);
  return std::memmove(to, from, bytes);
}
void* emulator_memset(void* to, int value, std::size_t bytes) {
  emulator::range(to, bytes, true, HERE);
  return std::memset(to, value, bytes);
}
int emulator_memcmp(const void* a, const void* b, std::size_t bytes) {
  emulator::range(a, bytes, false, HERE);
  emulator::range(b, bytes, false, HERE);
  return std::memcmp(a, b, bytes);
}
}
