// Copies with the processor's own instruction for strings, `rep movsb`. Some cores then overwrite whole lines
// without fetching them first, which saves most of the time if another core has read them since.
#pragma once

#include <cstddef>

namespace ringreduce::string_copy {

// Whether this processor is known to save the fetches: AMD's since Zen 5. Others were slower with it, or were
// not measured.
bool pays();
// The least bytes of a copy that pays if the source is in this core's caches. On AMD's Zen 3 and 4, long ones
// are 5 to 20 per cent faster; what another core has written takes twice as long there.
std::size_t pays_for_own_from();
void copy(void* destination, const void* source, std::size_t bytes);

}  // namespace ringreduce::string_copy
