// For tests/faults/test_port_holding.py: holds one rendezvous port as hfagent does, prints its
// number, and gives it back when standard input ends.
#include <stdio.h>
#include <unistd.h>

#include "agent/supervisor/port_holder.h"

int main() {
  hyperframes::PortHolder holder(hyperframes::MonotonicClock());
  const auto port = holder.Reserve("job");
  if (!port.ok()) return 1;
  printf("%d\n", *port);
  fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  return 0;
}
