// What the sources of the stand-in share. See device.cpp.

#pragma once

#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>

#include <string>

#pragma GCC visibility push(hidden)

enum class Memory { unknown, device, host };

// A number in the environment.
int number(const char* name, int otherwise);
// A line in the log.
void note(const std::string& what, const std::string& detail);
// Advances the simulated clock over one launch; the events' times, where given, get its start and end.
void launch(const std::string& kernel, double work, double* start = nullptr, double* stop = nullptr);
// Whose memory an address lies in.
Memory memory_at(const void* pointer);

#pragma GCC visibility pop
