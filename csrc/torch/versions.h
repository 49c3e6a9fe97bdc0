// What differs between torch's versions: Versioned<Backend>, from the folder of versions/ that the build has
// chosen.
#pragma once

#include "extras.h"
