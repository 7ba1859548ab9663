#pragma once

// One thread that asks for experts in the background. Requests are served in order; when more wait than the model
// has layers, further ones are dropped: they are guesses, and compute never waits for them.

#include "llama-expert-stream.h"

#include <condition_variable>
#include <deque>
#include <thread>

struct llama_expert_prefetch {
    llama_expert_prefetch(llama_expert_stream & stream, size_t max_waiting);
    ~llama_expert_prefetch(); // drops what waits, ends the thread

    // returns false when the request was dropped
    bool push(const llama_expert_layer & layer, llama_expert_set experts);

    // until nothing waits and nothing is under way
    void drain();

private:
    struct request {
        const llama_expert_layer * layer;
        llama_expert_set           experts;
    };

    void run();

    llama_expert_stream & stream;
    const size_t          max_waiting;

    std::mutex              mutex;
    std::condition_variable changed;
    std::deque<request>     waiting;
    bool                    is_busy = false;
    bool                    is_done = false;

    std::thread thread; // last: starts when the rest is there
};
