// Reads environment variables; ringreduce/environment.py lists all of them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace ringreduce {

// Empty if it is not set.
std::string environment(const char* name);
// One of these values, or empty. Throws InvalidArgument for any other.
std::string environment(const char* name, std::initializer_list<std::string_view> values);

}  // namespace ringreduce
