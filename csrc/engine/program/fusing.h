// Finds steps of a finished program that can share work. Algorithms know nothing of it.
#pragma once

#include "engine/program/program.h"

namespace ringreduce {

// Lets a combination (or an arrival) whose result is the next round's message write that message in the same
// pass.
void fuse(Program& program);

// Marks sends whose peer may write its answer into our memory as soon as it has the message: the peer's
// values replace the sent chunks before anything else happens to them, and no other rank still reads them.
// (Whether the peer's answer is the expected one only shows on both ranks together; it is known for the
// catalogue's algorithms.)
void mark_grants(Program& program);
void mark_shared(Program& program);

}  // namespace ringreduce
