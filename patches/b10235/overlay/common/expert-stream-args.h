#pragma once

#include "arg.h"

#include <functional>

// the expert streaming options of every tool that uses the common parameters
void common_expert_stream_add_args(const std::function<void(common_arg)> & add_opt);
