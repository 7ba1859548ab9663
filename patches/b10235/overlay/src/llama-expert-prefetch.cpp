#include "llama-expert-prefetch.h"

llama_expert_prefetch::llama_expert_prefetch(llama_expert_stream & stream, size_t max_waiting) :
    stream(stream), max_waiting(max_waiting), thread([this]() { run(); }) {
}

llama_expert_prefetch::~llama_expert_prefetch() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        waiting.clear();
        is_done = true;
    }
    changed.notify_all();
    thread.join();
}

bool llama_expert_prefetch::push(const llama_expert_layer & layer, llama_expert_set experts) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (waiting.size() >= max_waiting) {
            return false;
        }
        waiting.push_back({ &layer, std::move(experts) });
    }
    changed.notify_all();
    return true;
}

void llama_expert_prefetch::drain() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this]() { return waiting.empty() && !is_busy; });
}

void llama_expert_prefetch::run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
        changed.wait(lock, [this]() { return is_done || !waiting.empty(); });
        if (is_done) {
            return;
        }
        const request next = std::move(waiting.front());
        waiting.pop_front();
        is_busy = true;

        lock.unlock();
        stream.hint_predicted(*next.layer, next.experts);
        lock.lock();

        is_busy = false;
        changed.notify_all();
    }
}
