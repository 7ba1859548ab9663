#pragma once

// A pool of threads that read from model files, in the order asked for.

#include "llama-expert-file.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

struct llama_expert_read {
    const llama_expert_file * file;

    uint64_t  offs; // as the file's read() has it
    uint8_t * dst;
    size_t    size;
    size_t    n_needed;

    uint32_t tag; // for the one who asked
};

struct llama_expert_reader {
    // done is called from the pool's threads, with an empty string or with what went wrong
    using done_fn = std::function<void(uint32_t tag, const std::string & error)>;

    llama_expert_reader(int n_threads, done_fn done);
    ~llama_expert_reader(); // what waits is not read any more

    void push(const llama_expert_read & read);

    // forgets what waits, returns the tags; done is not called for them
    std::vector<uint32_t> drop_waiting();

    int n_threads() const { return threads.size(); }

private:
    void run();

    const done_fn done;

    std::mutex                    mutex;
    std::condition_variable       changed;
    std::deque<llama_expert_read> waiting;
    bool                          is_done = false;

    std::vector<std::thread> threads; // last: they use the rest
};
