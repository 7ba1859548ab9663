#include "llama-expert-reader.h"

llama_expert_reader::llama_expert_reader(int n_threads, done_fn done) : done(std::move(done)) {
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back([this]() { run(); });
    }
}

llama_expert_reader::~llama_expert_reader() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        waiting.clear();
        is_done = true;
    }
    changed.notify_all();
    for (auto & thread : threads) {
        thread.join();
    }
}

void llama_expert_reader::push(const llama_expert_read & read) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        waiting.push_back(read);
    }
    changed.notify_one();
}

std::vector<uint32_t> llama_expert_reader::drop_waiting() {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<uint32_t> tags;
    for (const auto & read : waiting) {
        tags.push_back(read.tag);
    }
    waiting.clear();
    return tags;
}

void llama_expert_reader::run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        changed.wait(lock, [this]() { return is_done || !waiting.empty(); });
        if (is_done) {
            return;
        }
        const auto next = waiting.front();
        waiting.pop_front();

        lock.unlock();
        done(next.tag, next.file->read(next.dst, next.size, next.n_needed, next.offs));
        lock.lock();
    }
}
