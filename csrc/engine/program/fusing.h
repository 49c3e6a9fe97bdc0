// What a program's steps can do for each other: found in the finished program, known to no algorithm.
#pragma once

#include "engine/program/program.h"

namespace ringreduce {

// A combination (or arrival) whose result is the next round's message can write the message in the same pass.
void fuse(Program& program);

// If the next thing that happens to the chunks we send to one peer is that this peer's values replace them,
// then the peer may write them into our memory as soon as it has the message, if nobody else still reads
// there. (That the peer's answer is the one that we expect there, only a look at both ranks can tell: of the
// catalogue's algorithms it is known.)
void mark_grants(Program& program);

}  // namespace ringreduce
