#pragma once

// Positional reads from a model file, past the page cache where the system and the file system allow it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// what a direct read needs: of the position, the size and the address
constexpr size_t LLAMA_EXPERT_DIRECT_ALIGN = 4096;

struct llama_expert_file {
    // opens the file behind fd (of the loader's) once more; throws when it cannot be read at all
    explicit llama_expert_file(int fd);
    ~llama_expert_file();

    llama_expert_file(const llama_expert_file &) = delete;
    llama_expert_file & operator=(const llama_expert_file &) = delete;

    // Reads at least n_needed bytes at offs into dst; all three of offs, size and dst are aligned, size >= n_needed,
    // and dst + n_needed up to dst + size may or may not be written. From any thread.
    // Returns an empty string, or what went wrong.
    std::string read(void * dst, size_t size, size_t n_needed, uint64_t offs) const;

    // false when the system reads through the page cache
    bool is_direct() const;

    // empty, or what has changed since the file was opened: its bytes may be others by now
    std::string changes() const;

    const std::string & name() const;

private:
    struct impl;
    std::unique_ptr<impl> pimpl;
};
