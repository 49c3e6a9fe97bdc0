// How chunks lie in memory and are cut into slices. Arithmetic only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/program/extents.h"
#include "engine/program/program.h"
#include "reduce/encoding.h"

namespace ringreduce {

// A run of elements: its start in the buffer of its memory, and its length.
struct Run {
  std::size_t offset = 0;
  std::size_t count = 0;
};

struct Geometry {
  bool whole = true;               // slices are cut from the whole buffer, and each is divided into chunks
  Encoding wire = Encoding::none;  // the encoding of messages
  // The format of arrays of 16-bit floats that are converted to float32, in memory of each slice that is laid
  // out like temporary memory. `element` then is that of float32.
  Encoding narrow = Encoding::none;
  int chunks = 1;
  std::size_t element = 1;  // bytes
  std::size_t slices = 1;
  std::size_t slice = 0;  // elements of a slice: whole: of the buffer; otherwise: of each chunk
  std::size_t chunk = 0;  // whole: elements of a chunk in a slice, and its stride in temporary memory
  std::size_t count = 0;  // whole: elements in total; otherwise: of every chunk, if there are no extents
  const Extents* input = nullptr;  // uneven chunks
  const Extents* output = nullptr;

  // The run of chunks [first, first + n) of a slice, in the memory that is worked on. n > 1 only if whole.
  Run run(Memory memory, std::size_t s, int first, int n) const {
    Run found = in_arrays(memory, s, first, n);
    if (memory == Memory::temp || narrow != Encoding::none) found.offset = stride() * first;
    return found;
  }

  // The same run in the user's arrays.
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

  // The distance between chunks in temporary memory, in elements.
  std::size_t stride() const { return whole ? chunk : slice; }

  // Bytes of temporary memory for one slice.
  std::size_t temp_bytes(const Schedule& schedule) const {
    return stride() * element * static_cast<std::size_t>(schedule.chunks + schedule.scratch);
  }

  // Bytes for the float32 values of one slice of narrow arrays.
  std::size_t widened_bytes() const {
    return narrow == Encoding::none ? 0 : stride() * element * static_cast<std::size_t>(chunks);
  }
};

// Cuts slices so that the messages of one round take about `target` bytes before they are encoded, and at
// most half of `capacity`. `count` is as in Geometry; with extents, the largest count of any chunk of any
// rank. If messages are encoded, chunks begin with a block of the wire format in every slice, so a value's
// block is the same in every message of every rank. Throws InvalidArgument if a round of messages of one
// block each takes more than half of `capacity`.
Geometry make_geometry(const Program& program, std::size_t element, std::size_t count, std::size_t target,
                       std::size_t capacity, Encoding wire = Encoding::none);

}  // namespace ringreduce
