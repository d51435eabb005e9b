#include "suite.hpp"

#include <cstdio>
#include <cstdlib>

extern char case_in_progress[256];

host::Entry Suite::find(const std::string &kernel) const {
    for (const host::Kernel *k = kernels_; k->name != nullptr; k++) {
        if (kernel == k->name) {
            used_[kernel]++;
            return k->entry;
        }
    }
    std::fprintf(stderr, "no kernel is named %s\n", kernel.c_str());
    std::exit(2);
}

void Suite::begin(const std::string &what) {
    std::snprintf(case_in_progress, sizeof case_in_progress, "%s", what.c_str());
    current_ = what;
    failed_ = false;
    cases_++;
}

void Suite::fail(const std::string &why) {
    if (failed_) {
        return;
    }
    failed_ = true;
    failures_++;
    std::printf("FAIL %s: %s\n", current_.c_str(), why.c_str());
    if (stop_at_first_) {
        std::fflush(stdout);
        std::_Exit(1);
    }
}

void Suite::measured(Format format, double ulps) { worst_[format] = std::max(worst_[format], ulps); }

int Suite::finish() const {
    int unused = 0;
    for (const host::Kernel *k = kernels_; k->name != nullptr; k++) {
        if (used_.count(k->name) == 0) {
            std::printf("FAIL no case runs %s\n", k->name);
            unused++;
        }
    }
    std::printf("kernels %zu cases %d failures %d", used_.size(), cases_, failures_ + unused);
    for (const auto &[format, ulps] : worst_) {
        std::printf(" %s %.3f", traits(format).suffix, ulps);
    }
    std::printf("\n");
    return failures_ + unused == 0 ? 0 : 1;
}

Case::Case(Suite &suite, const std::string &kernel, Format format, const std::string &description)
    : suite_(suite), format_(format), entry_(suite.find(kernel + "_" + traits(format).suffix)) {
    suite_.begin(kernel + "_" + traits(format).suffix + " " + description);
}

void Case::bind(int index, Buffer &buffer, size_t byte_offset, bool is_written) {
    inputs_.push_back({index, &buffer, byte_offset, is_written, buffer.bytes()});
}

Buffer &Case::output(int index, size_t count) {
    outputs_.emplace_back(index, std::make_unique<Buffer>(traits(format_).bytes, count));
    return *outputs_.back().second;
}

bool Case::run_once(host::Schedule schedule, Buffer::Against side, host::Launch &launch) {
    void *slots[16] = {};
    for (const Binding &binding : inputs_) {
        binding.buffer->move_against(side);
        binding.buffer->set_bytes(binding.before);
        slots[binding.index] = static_cast<char *>(binding.buffer->address()) + binding.byte_offset;
    }
    for (auto &[index, buffer] : outputs_) {
        buffer->move_against(side);
        buffer->poison();
        slots[index] = buffer->address();
    }
    slots[parameter_index_] = parameter_bytes_.data();
    launch.buffers = slots;
    launch.schedule = schedule;
    const std::string problem = host::run(launch);
    if (!problem.empty()) {
        suite_.fail(problem);
        return false;
    }
    for (const Binding &binding : inputs_) {
        if (!binding.is_written && binding.buffer->bytes() != binding.before) {
            suite_.fail("input " + std::to_string(binding.index) + " was written over");
            return false;
        }
        if (binding.buffer->strayed()) {
            suite_.fail("input " + std::to_string(binding.index) + " was written outside its elements");
            return false;
        }
    }
    for (auto &[index, buffer] : outputs_) {
        if (buffer->strayed()) {
            suite_.fail("output " + std::to_string(index) + " was written outside its elements");
            return false;
        }
    }
    return true;
}

bool Case::run(uint32_t groups_x, uint32_t groups_y, uint32_t lanes) {
    using host::Schedule;
    const std::pair<Schedule, Buffer::Against> runs[] = {
        {Schedule::Together, Buffer::Against::PageAfter},
        {Schedule::Ascending, Buffer::Against::PageBefore},
        {Schedule::Descending, Buffer::Against::PageAfter},
        {Schedule::Shuffled, Buffer::Against::PageBefore},
    };
    host::Launch launch{entry_, nullptr, {groups_x, groups_y}, lanes, Schedule::Together};
    std::vector<std::vector<char>> first;
    for (const auto &[schedule, side] : runs) {
        if (!run_once(schedule, side, launch)) {
            return false;
        }
        std::vector<std::vector<char>> results;
        for (auto &[index, buffer] : outputs_) {
            results.push_back(buffer->bytes());
        }
        for (const Binding &binding : inputs_) {
            if (binding.is_written) {
                results.push_back(binding.buffer->bytes());
            }
        }
        if (first.empty()) {
            first = results;
        } else if (first != results) {
            suite_.fail("the result depends on the order in which lanes run");
            return false;
        }
    }
    return true;
}

namespace {

// Numbers below this are close enough to f32's underflow for an exponential to have reached it.
const double NEAR_UNDERFLOW = std::ldexp(1.0, -100);

// Arithmetic is f32 whatever the storage: the last place of a 16-bit result, widened by what f32 may
// be off by.
double unit(Format format, const Expected &expected) {
    const double arithmetic = ulp(Format::F32, std::max({std::fabs(expected.value), expected.magnitude, NEAR_UNDERFLOW}));
    return format == Format::F32 ? arithmetic : ulp(format, std::fabs(expected.value)) + 12.0 * arithmetic;
}

}  // namespace

void Case::compare(const Buffer &output, const std::vector<Expected> &expected) {
    if (output.count() != expected.size()) {
        suite_.fail("the case expects " + std::to_string(expected.size()) + " elements");
        return;
    }
    for (size_t i = 0; i < expected.size(); i++) {
        if (output.untouched(i)) {
            suite_.fail("element " + std::to_string(i) + " was not written");
            return;
        }
        if (!compare_element(i, output.bits(i), expected[i])) {
            return;
        }
    }
}

void Case::compare(const View &view, const std::vector<Expected> &expected) {
    const std::vector<char> *before = nullptr;
    for (const Binding &binding : inputs_) {
        if (binding.buffer == &view.buffer && binding.is_written) {
            before = &binding.before;
        }
    }
    if (before == nullptr || view.row_count * view.columns != expected.size()) {
        suite_.fail("the case expects other rows than those it lets be written over");
        return;
    }
    const size_t bytes = traits(format_).bytes;
    std::vector<char> between = view.buffer.bytes();
    for (size_t i = 0; i < expected.size(); i++) {
        const size_t at = view.place(i / view.columns, i % view.columns);
        if (!compare_element(i, view.buffer.bits(at), expected[i])) {
            return;
        }
        std::copy_n(before->begin() + at * bytes, bytes, between.begin() + at * bytes);
    }
    if (between != *before) {
        suite_.fail("an input was written between its rows");
    }
}

bool Case::compare_element(size_t i, uint32_t bits, const Expected &expected) {
    const double got = decode(format_, bits);
    const double want = expected.value;
    const double stored = rounded(format_, want);
    char message[160];
    if (!std::isfinite(stored) || !std::isfinite(got)) {
        if (std::isnan(stored) ? !std::isnan(got) : got != stored) {
            std::snprintf(message, sizeof message, "element %zu is %.9g, not %.9g", i, got, want);
            suite_.fail(message);
            return false;
        }
        return true;
    }
    const double ulps = std::fabs(got - want) / unit(format_, expected);
    suite_.measured(format_, ulps);
    if (ulps > suite_.limit(format_)) {
        std::snprintf(message, sizeof message, "element %zu is %.9g, not %.9g (%.2f ulp)", i, got, want, ulps);
        suite_.fail(message);
        return false;
    }
    return true;
}
