// host_kernels LIBRARY SUBJECT [--stop-at-first]: runs the cases of one subject against a translated,
// compiled .metal file.
#include "suite.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

char case_in_progress[256] = "before the first case";

namespace {

// Runs on its own stack; the lane that failed may be on any.
void on_fault(int signal) {
    const char *what = signal == SIGILL ? "misaligned vector access" : "access outside every buffer";
    const char *parts[] = {"FAIL ", case_in_progress, ": ", what, "\n"};
    for (const char *part : parts) {
        if (write(1, part, std::strlen(part)) < 0) {
            _exit(1);
        }
    }
    _exit(1);
}

void catch_faults() {
    static char stack[64 * 1024];
    stack_t alternate{};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action{};
    action.sa_handler = on_fault;
    action.sa_flags = SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP}) {
        sigaction(signal, &action, nullptr);
    }
}

struct Subject {
    const char *name;
    void (*cases)(Suite &);
};

const Subject SUBJECTS[] = {
    {"norm", norm_cases}, {"softmax", softmax_cases}, {"activation", activation_cases},
    {"rope", rope_cases}, {"pooling", pooling_cases},
};

}  // namespace

int main(int argc, char **argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s LIBRARY SUBJECT [--stop-at-first]\n", argv[0]);
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW);
    const auto *kernels = library ? static_cast<const host::Kernel *>(dlsym(library, "host_kernels")) : nullptr;
    if (kernels == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    catch_faults();
    Suite suite(kernels, argc > 3 && std::strcmp(argv[3], "--stop-at-first") == 0);
    for (const Subject &subject : SUBJECTS) {
        if (std::strcmp(subject.name, argv[2]) == 0) {
            subject.cases(suite);
            return suite.finish();
        }
    }
    std::fprintf(stderr, "no subject is named %s\n", argv[2]);
    return 2;
}
