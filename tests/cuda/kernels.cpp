// Every kernel of cuda/*.cu, run on the host through the shim, against float64.
#include "shim.h"

#include "load.cu"
#include "entropy.cu"
#include "top_k.cu"
#include "read.cu"

#include "check.h"
#include "rows.h"
#include "top_k.h"

int main() {
  Check check;
  rows::all(check);
  rows::read(check);
  top_k::all(check);
  return check.end();
}
