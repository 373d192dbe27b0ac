#ifndef NEREUS_COMMON_BASE_DESCRIPTOR_LIMIT_H_
#define NEREUS_COMMON_BASE_DESCRIPTOR_LIMIT_H_

namespace nereus {

// How many files and sockets this process may have open.
int DescriptorLimit();

// Raises that to what the system lets this process have. For main files.
void RaiseDescriptorLimit();

}  // namespace nereus

#endif  // NEREUS_COMMON_BASE_DESCRIPTOR_LIMIT_H_
