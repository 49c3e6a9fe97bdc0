// Another program that makes the same calls: its functions lie elsewhere.
static const char before_them[100000] = {1};

const char* what_lies_before_them(void) {
  return before_them;
}

#include "operators.c"
