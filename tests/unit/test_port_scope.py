"""Which function encloses a line: C++, CMake, and text that no grammar reads."""

from swapmoe.port_scope import FILE_SCOPE, scopes

CPP = """#include "x.h"

struct forward;

namespace outer {
class thing : public base {
    int member = 0;
    void method() {
        call([&](int x) {
            return x;
        });
    }
    ~thing() { free(); }
};
}

extern "C" struct params {
    int n;
};

static const std::vector<int> table = {
    1,
};

template <typename T>
T * outer::thing::get(const std::map<int, std::vector<T>> & a, int b) {
#ifdef X
    if (a) {
        return nullptr;
    }
#endif
}

bool operator==(const thing & a, const thing & b) {
    return true;
}
"""


def scope_of(path: str, text: str, line: str) -> str:
    lines = text.split("\n")
    assert lines.count(line) == 1
    found = scopes(path, text.encode())
    assert len(found) == len(lines)
    return found[lines.index(line)]


def test_cpp() -> None:
    expected = {
        '#include "x.h"': FILE_SCOPE,
        "struct forward;": FILE_SCOPE,
        "    int member = 0;": "outer::thing",
        "            return x;": "outer::thing::method",
        "    ~thing() { free(); }": "outer::thing::~thing",
        "    int n;": "params",
        "    1,": "table",
        "        return nullptr;": "outer::thing::get",
        "    return true;": "operator==",
    }
    for line, scope in expected.items():
        assert scope_of("a/b.cpp", CPP, line) == scope, line


def test_broken_cpp_falls_back_to_the_line_in_the_first_column() -> None:
    text = "void good() {\n    one();\n}\n\nMACRO(void bad, {{{ \n    two();\n"
    assert scope_of("x.cpp", text, "    one();") == "good"
    assert scope_of("x.cpp", text, "    two();") == "MACRO(void bad, {{{"
    text = (
        "int f(int a) {\n#ifdef X\n    if (a) {\n#else\n    if (!a) {\n#endif\n    b();\n    }\n}\n"
    )
    assert scope_of("x.cpp", text, "    b();") in ("f", "int f(int a) {")


def test_cmake() -> None:
    text = (
        'project(x)\n\nadd_library(llama # (\n    a.cpp\n    ")"\n    b.cpp)\nset(Y\n    z)\n'
        "if (A AND (B))\n    target(llama\n        PRIVATE c)\nendif()\n"
    )
    assert scope_of("src/CMakeLists.txt", text, "    a.cpp") == "add_library(llama"
    assert scope_of("src/CMakeLists.txt", text, "    b.cpp)") == "add_library(llama"
    assert scope_of("x.cmake", text, "    z)") == "set(Y"
    assert scope_of("x.cmake", text, "        PRIVATE c)") == "target(llama"
    assert scope_of("x.cmake", text, "project(x)") == "project(x"
    assert scopes("x.cmake", text.encode())[1] == FILE_SCOPE


def test_other_files_and_bytes_that_are_no_text() -> None:
    text = "import x\n\ndef one():\n    pass\n"
    assert scope_of("a.py", text, "    pass") == "def one():"
    assert len(scopes("a.cpp", b"\xff\xfe\n\n")) == 3
    assert scopes("a.cpp", b"") == (FILE_SCOPE,)
