#include "gpu/hosts/slices.h"

#include <algorithm>

#include "engine/program/program.h"

namespace ringreduce {

std::vector<Block> blocks_of(const Call& call, bool of_input, int world, int rank) {
  const Extents* const extents = of_input ? call.input_extents : call.output_extents;
  if (!has_blocks(call.collective)) return {{0, call.count}};
  if (has_own_block_only(call, of_input)) return {{0, extents ? extents->count[rank] : call.count}};
  std::vector<Block> blocks;
  for (int block = 0; block < world; ++block) {
    blocks.push_back(extents ? Block{extents->offset[block], extents->count[block]}
                             : Block{call.count * static_cast<std::size_t>(block), call.count});
  }
  return blocks;
}

Cut::Cut(const Call& call, int world, std::size_t bytes) {
  if (is_blind(call)) return;
  const std::size_t blocks = blocks_of(call, true, world, 0).size() + blocks_of(call, false, world, 0).size();
  const std::size_t longest =
      call.input_extents ? *std::ranges::max_element(call.input_extents->count) : call.count;
  each = std::max<std::size_t>(bytes / (blocks * size_of(call.dtype)), 1);
  slices = (longest + each - 1) / each;
}

Block Cut::of(const Block& block, std::size_t slice) const {
  const std::size_t begin = std::min(slice * each, block.count);
  return {block.begin + begin, std::min(each, block.count - begin)};
}

}  // namespace ringreduce
