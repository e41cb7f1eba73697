#include "common/malloc_arenas.h"

#include <malloc.h>

namespace hyperframes {

void UseOneMallocArena() { mallopt(M_ARENA_MAX, 1); }

}  // namespace hyperframes
