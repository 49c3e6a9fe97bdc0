#include "transport/ofi/hardware.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "transport/interface/cores.h"

namespace ringreduce::ofi {
namespace {

namespace fs = std::filesystem;

// By driver; any other InfiniBand, RoCE or iWARP card is one of verbs.
struct Kind {
  std::string_view provider, driver;
};
constexpr std::string_view any_driver = "";
constexpr Kind kinds[] = {
    {"efa", "efa"},       {"efa-direct", "efa"}, {"cxi", "cxi"},      {"opx", "hfi1"},     {"psm2", "hfi1"},
    {"psm3", any_driver}, {"verbs", any_driver}, {"ucx", any_driver}, {"mlx", any_driver},
};
// Of which other providers make more, or the only use.
constexpr std::string_view no_cards_of_verbs[] = {"efa", "cxi", "hfi1"};

fs::path root() {
  return described_host() + "/sys";
}

std::string line_of(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int number_of(const std::string& text) {
  try {
    return std::stoi(text);
  } catch (const std::exception&) {
    return -1;
  }
}

void look_at_ports(const fs::path& device, Card& card) {
  for (const std::string& port : names_in(device / "ports")) {
    if (line_of(device / "ports" / port / "state").find("ACTIVE") == std::string::npos) continue;
    card.up = true;
    card.rate = line_of(device / "ports" / port / "rate");
    return;
  }
}

bool drives(std::string_view provider, const Card& card) {
  const std::string_view core = provider.substr(0, provider.find(';'));
  for (const Kind& kind : kinds) {
    if (kind.provider != core) continue;
    if (kind.driver != any_driver) return card.driver == kind.driver;
    return std::find(std::begin(no_cards_of_verbs), std::end(no_cards_of_verbs), card.driver) ==
           std::end(no_cards_of_verbs);
  }
  return false;
}

}  // namespace

std::string Card::in_words() const {
  std::string text = name + " (" + driver;
  if (!rate.empty()) text += ", " + rate;
  if (node >= 0) text += ", NUMA node " + std::to_string(node);
  return text + ")";
}

std::vector<Card> cards() {
  std::vector<Card> found;
  std::error_code none;
  for (const std::string_view kind : {"infiniband", "cxi"}) {
    const fs::path folder = root() / "class" / kind;
    for (const std::string& name : names_in(folder)) {
      const fs::path device = folder / name;
      const fs::path driver = fs::read_symlink(device / "device" / "driver", none);
      // What the kernel pretends has no driver, or, in older kernels, that of the Ethernet card beneath it.
      if (none || fs::exists(device / "parent", none)) continue;
      Card card{name, kind == "cxi" ? "cxi" : driver.filename().string(), "", -1, kind == "cxi"};
      card.node = number_of(line_of(device / "device" / "numa_node"));
      look_at_ports(device, card);
      found.push_back(std::move(card));
    }
  }
  return found;
}

std::string why_no_card(const std::vector<Card>& cards) {
  if (std::any_of(cards.begin(), cards.end(), [](const Card& card) { return card.up; })) return "";
  if (cards.empty()) {
    return "there is no fabric card in " + (root() / "class/infiniband").string() + " or " +
           (root() / "class/cxi").string();
  }
  std::string names;
  for (const Card& card : cards) names += (names.empty() ? "" : ", ") + card.name;
  return "no port of the host's fabric cards is active (" + names + ")";
}

bool needs_card(std::string_view provider) {
  const std::string_view core = provider.substr(0, provider.find(';'));
  return std::any_of(std::begin(kinds), std::end(kinds),
                     [&](const Kind& one) { return one.provider == core; });
}

// A domain has its card's name, perhaps with an ending ("rdmap0s31-rdm"). Providers that name their domains
// otherwise use any card; psm3 uses an Ethernet card through the kernel then.
const Card* card_of(std::string_view provider, std::string_view domain, const std::vector<Card>& cards) {
  const Card* other = nullptr;
  for (const Card& card : cards) {
    const bool is_usable = card.up && drives(provider, card);
    const std::string_view rest = domain.starts_with(card.name) ? domain.substr(card.name.size()) : "?";
    if (rest.empty() || rest.starts_with('-')) return is_usable ? &card : nullptr;
    if (is_usable) other = &card;
  }
  return provider.starts_with("psm3") ? nullptr : other;
}

int own_node() {
  const Cores own = usable_cores();
  const fs::path nodes = root() / "devices/system/node";
  int found = -1;
  for (const std::string& name : names_in(nodes)) {
    const int node = name.starts_with("node") ? number_of(name.substr(4)) : -1;
    if (node < 0) continue;
    // Words of 32 bits, the last one first.
    std::string mask = line_of(nodes / name / "cpumap");
    bool shares = false;
    for (int word = 0; !mask.empty() && word / 2 < Cores::words; ++word) {
      const auto comma = mask.rfind(',');
      const std::string last = comma == std::string::npos ? mask : mask.substr(comma + 1);
      mask.resize(comma == std::string::npos ? 0 : comma);
      const std::uint64_t bits = std::strtoull(last.c_str(), nullptr, 16);
      shares |= (own.allowed[word / 2] >> (word % 2 * 32) & bits) != 0;
    }
    if (!shares) continue;
    if (found >= 0) return -1;
    found = node;
  }
  return found;
}

}  // namespace ringreduce::ofi
