#include "llama-expert-file.h"

#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#ifdef _WIN32
    #define WIN32_LEAN_AND_MEAN
    #ifndef NOMINMAX
        #define NOMINMAX
    #endif
    #include <windows.h>
    #include <io.h>
#else
    #include <fcntl.h>
    #include <sys/stat.h>
    #include <unistd.h>
#endif

static std::string read_error(const std::string & name, uint64_t offs, const std::string & reason) {
    return format("cannot read %s at %" PRIu64 ": %s", name.c_str(), offs, reason.c_str());
}

// what tells one state of a file from another
struct file_state {
    uint64_t size;
    uint64_t time; // of the last change of its content

    bool operator!=(const file_state & other) const { return size != other.size || time != other.time; }
};

static std::string state_changes(const std::string & name, const file_state & before, const file_state & now) {
    if (now.size != before.size) {
        return format("%s changed while in use: it has %" PRIu64 " bytes, had %" PRIu64, name.c_str(), now.size, before.size);
    }
    return now != before ? format("%s changed while in use: it was written to", name.c_str()) : "";
}

#ifdef _WIN32

static std::string system_error(DWORD code) {
    return format("error %lu", (unsigned long) code);
}

struct llama_expert_file::impl {
    HANDLE      handle = INVALID_HANDLE_VALUE;
    bool        direct = true;
    std::string name;
    file_state  state;

    static file_state get_state(HANDLE handle) {
        BY_HANDLE_FILE_INFORMATION info = {};
        GetFileInformationByHandle(handle, &info);
        return { (uint64_t) info.nFileSizeHigh << 32 | info.nFileSizeLow,
                 (uint64_t) info.ftLastWriteTime.dwHighDateTime << 32 | info.ftLastWriteTime.dwLowDateTime };
    }

    explicit impl(int fd) {
        const HANDLE original = (HANDLE) _get_osfhandle(fd);
        const DWORD  share    = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;

        char path[MAX_PATH + 1] = "";
        const DWORD length = GetFinalPathNameByHandleA(original, path, MAX_PATH, FILE_NAME_NORMALIZED);
        name = length > 0 && length <= MAX_PATH ? path : "the model file";

        // a handle of its own: the loader's has a file position and is not for overlapped reads
        handle = ReOpenFile(original, GENERIC_READ, share, FILE_FLAG_NO_BUFFERING | FILE_FLAG_OVERLAPPED);
        if (handle == INVALID_HANDLE_VALUE) {
            direct = false;
            handle = ReOpenFile(original, GENERIC_READ, share, FILE_FLAG_OVERLAPPED | FILE_FLAG_RANDOM_ACCESS);
        }
        if (handle == INVALID_HANDLE_VALUE) {
            throw std::runtime_error(format("expert_stream: cannot open %s once more: %s", name.c_str(), system_error(GetLastError()).c_str()));
        }
        state = get_state(handle);
    }

    ~impl() {
        CloseHandle(handle);
    }

    std::string read(uint8_t * dst, size_t size, size_t n_needed, uint64_t offs) const {
        OVERLAPPED overlapped = {};
        overlapped.hEvent = CreateEventW(nullptr, TRUE, FALSE, nullptr);
        if (overlapped.hEvent == nullptr) {
            return read_error(name, offs, system_error(GetLastError()));
        }
        std::string error;
        size_t n_read = 0;
        while (n_read < n_needed) {
            overlapped.Offset     = (DWORD) (offs + n_read);
            overlapped.OffsetHigh = (DWORD) ((offs + n_read) >> 32);
            DWORD n = 0;
            if ((!ReadFile(handle, dst + n_read, (DWORD) (size - n_read), nullptr, &overlapped) && GetLastError() != ERROR_IO_PENDING) ||
                    !GetOverlappedResult(handle, &overlapped, &n, TRUE)) {
                const DWORD code = GetLastError();
                error = read_error(name, offs + n_read, code == ERROR_HANDLE_EOF ? "the file ends before" : system_error(code));
                break;
            }
            const size_t n_whole = n_read + n >= n_needed ? n : n & ~(LLAMA_EXPERT_DIRECT_ALIGN - 1);
            if (n_whole == 0) {
                error = read_error(name, offs + n_read, "the file ends before");
                break;
            }
            n_read += n_whole;
        }
        CloseHandle(overlapped.hEvent);
        return error;
    }

    std::string changes() const {
        return state_changes(name, state, get_state(handle));
    }
};

#else

struct llama_expert_file::impl {
    int               fd     = -1;
    std::atomic<bool> direct { true };
    std::string       name = "the model file";
    file_state        state = {};

    bool get_state(file_state & result) const {
        struct stat st;
        if (fstat(fd, &st) != 0) {
            return false;
        }
#if defined(__APPLE__)
        const auto & time = st.st_mtimespec;
#else
        const auto & time = st.st_mtim;
#endif
        result = { (uint64_t) st.st_size, (uint64_t) time.tv_sec*1000000000 + time.tv_nsec };
        return true;
    }

    // a file description of its own: direct I/O is a property of it, and the loader's is shared with the mapping
    explicit impl(int original) {
#if defined(__APPLE__)
        char path[MAXPATHLEN] = "";
        if (fcntl(original, F_GETPATH, path) != -1) {
            name = path;
        }
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            direct = fcntl(fd, F_NOCACHE, 1) != -1;
        }
#elif defined(__linux__)
        const std::string link = format("/proc/self/fd/%d", original);
        std::vector<char> path(4096);
        const ssize_t n = readlink(link.c_str(), path.data(), path.size());
        if (n > 0) {
            name.assign(path.data(), n);
        }
        fd = open(link.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (fd < 0 && errno == EINVAL) {
            direct = false;
            fd = open(link.c_str(), O_RDONLY | O_CLOEXEC);
        }
#endif
        if (fd < 0) {
            const int code = errno;
            throw std::runtime_error(format("expert_stream: cannot open %s once more: %s", name.c_str(), strerror(code)));
        }
        if (!get_state(state)) {
            const int code = errno;
            close(fd);
            throw std::runtime_error(format("expert_stream: cannot look at %s: %s", name.c_str(), strerror(code)));
        }
#if defined(__linux__)
        probe();
#endif
    }

    ~impl() {
        close(fd);
    }

#if defined(__linux__)
    // some file systems take the flag and refuse the reads
    void probe() {
        if (!direct) {
            return;
        }
        void * page = nullptr;
        if (posix_memalign(&page, LLAMA_EXPERT_DIRECT_ALIGN, LLAMA_EXPERT_DIRECT_ALIGN) != 0) {
            throw std::bad_alloc();
        }
        ssize_t n;
        do {
            n = pread(fd, page, LLAMA_EXPERT_DIRECT_ALIGN, 0);
        } while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EINVAL) {
            make_buffered();
        }
        free(page);
    }

    void make_buffered() {
        direct = false;
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    }
#endif

    std::string read(uint8_t * dst, size_t size, size_t n_needed, uint64_t offs) const {
        size_t n_read = 0;
        while (n_read < n_needed) {
            const ssize_t n = pread(fd, dst + n_read, size - n_read, (off_t) (offs + n_read));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n < 0) {
                return read_error(name, offs + n_read, strerror(errno));
            }
            // what a short read leaves has to start on a block again
            const size_t n_whole = n_read + n >= n_needed || !direct ? n : n & ~(LLAMA_EXPERT_DIRECT_ALIGN - 1);
            if (n_whole == 0) {
                const auto error = read_block(dst + n_read, n_needed - n_read, offs + n_read);
                if (!error.empty()) {
                    return error;
                }
            }
            n_read += n_whole ? n_whole : std::min(n_needed - n_read, LLAMA_EXPERT_DIRECT_ALIGN);
        }
        return "";
    }

    // one block, piece by piece: direct reads can return less than a block, but then start at it again
    std::string read_block(uint8_t * dst, size_t n_needed, uint64_t offs) const {
        n_needed = std::min(n_needed, LLAMA_EXPERT_DIRECT_ALIGN);
        for (int i_try = 0; i_try < 16; i_try++) {
            const ssize_t n = pread(fd, dst, LLAMA_EXPERT_DIRECT_ALIGN, (off_t) offs);
            if (n >= (ssize_t) n_needed) {
                return "";
            }
            if (n < 0 && errno != EINTR) {
                return read_error(name, offs, strerror(errno));
            }
            if (n == 0) {
                break;
            }
        }
        file_state now;
        const bool is_there = get_state(now) && now.size >= offs + n_needed;
        return read_error(name, offs, is_there ? "reads return less than a block" : "the file ends before");
    }

    std::string changes() const {
        file_state now;
        return get_state(now) ? state_changes(name, state, now) : format("cannot look at %s: %s", name.c_str(), strerror(errno));
    }
};

#endif

llama_expert_file::llama_expert_file(int fd) : pimpl(std::make_unique<impl>(fd)) {
}

llama_expert_file::~llama_expert_file() = default;

std::string llama_expert_file::read(void * dst, size_t size, size_t n_needed, uint64_t offs) const {
    return pimpl->read((uint8_t *) dst, size, n_needed, offs);
}

bool llama_expert_file::is_direct() const {
    return pimpl->direct;
}

std::string llama_expert_file::changes() const {
    return pimpl->changes();
}

const std::string & llama_expert_file::name() const {
    return pimpl->name;
}
