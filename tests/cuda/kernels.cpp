// SPDX-License-Identifier: Apache-2.0
// Every kernel of cuda/*.cu, run on the host through the shim, against float64.
#include "shim.h"

#include "load.cu"
#include "entropy.cu"
#include "read.cu"

#include "check.h"
#include "rows.h"

int main() {
  Check check;
  rows::all(check);
  rows::read(check);
  return check.end();
}
