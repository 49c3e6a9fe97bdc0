#include "emulated.h"

template void ringreduce::device::emulate_in<ringreduce::device::Family::wide_float>(DType, Op, int, Spans,
                                                                                     Group);
