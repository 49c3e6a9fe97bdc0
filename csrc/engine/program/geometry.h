// Where chunks lie in memory and how they are cut into slices: arithmetic only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/extents.h"
#include "engine/program/program.h"
#include "reduce/encoding.h"

namespace ringreduce {

// A run of elements: where it begins in the buffer of its memory, and how long it is.
struct Run {
  std::size_t offset = 0;
  std::size_t count = 0;
};

struct Geometry {
  bool whole = true;               // slices are cut from the whole buffer, and each divided into chunks
  std::size_t element = 1;         // bytes
  Encoding wire = Encoding::none;  // what messages are encoded as
  std::size_t count = 0;           // whole: elements in all; else: of every chunk, if there are no extents
  std::size_t slice = 0;           // elements of a slice: whole: of the buffer; else: of each chunk
  std::size_t slices = 1;
  std::size_t chunk = 0;  // whole: elements of a chunk in a slice, and its stride in temporary memory
  int chunks = 1;
  const Extents* input = nullptr;  // uneven chunks
  const Extents* output = nullptr;
  // What arrays of 16-bit floats hold that are worked on as float32, in memory that each slice has for them,
  // laid out as temporary memory is. `element` is a float32's then.
  Encoding narrow = Encoding::none;

  // The run of chunks [first, first + n) of a slice, where it is worked on. n > 1 only if whole.
  Run run(Memory memory, std::size_t s, int first, int n) const {
    Run found = in_arrays(memory, s, first, n);
    if (memory == Memory::temp || narrow != Encoding::none) found.offset = stride() * first;
    return found;
  }

  // The same run where the user has it.
  Run in_arrays(Memory memory, std::size_t s, int first, int n) const {
    const int user = first < chunks ? first : (first - chunks) % chunks;
    if (whole) {
      const std::size_t start = s * slice;
      const std::size_t length = std::min(slice, count - start);
      const std::size_t begin = std::min(user * chunk, length);
      const std::size_t end = std::min((user + n) * chunk, length);
      return {start + begin, end - begin};
    }
    const Extents* extents = memory == Memory::input ? input : output;
    const std::size_t total = extents ? extents->count[user] : count;
    const std::size_t begin = std::min(s * slice, total);
    const std::size_t length = std::min(slice, total - begin);
    return {(extents ? extents->offset[user] : user * count) + begin, length};
  }

  // From a chunk to the next one in temporary memory, in elements.
  std::size_t stride() const { return whole ? chunk : slice; }

  // Bytes of temporary memory for one slice.
  std::size_t temp_bytes(const Schedule& schedule) const {
    return stride() * element * static_cast<std::size_t>(schedule.chunks + schedule.scratch);
  }

  // Bytes for the values of one slice, where arrays are narrow.
  std::size_t widened_bytes() const {
    return narrow == Encoding::none ? 0 : stride() * element * static_cast<std::size_t>(chunks);
  }
};

// Cuts slices so that the messages of one round take about `target` bytes, before they are encoded, and at
// most half of `capacity`. `count` as in Geometry; with extents, the largest count of any chunk of any rank.
// Where messages are encoded, chunks begin with a block of the wire format, in every slice: so a value's
// block is the same whoever sends it, in whatever message. Throws InvalidArgument if a round of messages of a
// block each takes more than half of `capacity`.
Geometry make_geometry(const Program& program, std::size_t element, std::size_t count, std::size_t target,
                       std::size_t capacity, Encoding wire = Encoding::none);

}  // namespace ringreduce
