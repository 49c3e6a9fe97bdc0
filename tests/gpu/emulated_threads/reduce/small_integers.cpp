#include "emulated.h"

template void ringreduce::device::emulate_in<ringreduce::device::Family::small_integer>(DType, Op, int, Spans,
                                                                                        Group);
