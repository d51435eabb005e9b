//! What the environment asks for, read once.
//!
//! - `SOFTMETAL_CLANG`: the compiler, `clang++` unless set; 17 is the first with arithmetic on bfloat
//! - `SOFTMETAL_CACHE`: where compiled kernels are kept
//! - `SOFTMETAL_CHECK=1`: instrumented kernels, see `shadow`
//! - `SOFTMETAL_STRICT=1`: a simdgroup function that not all lanes of the simdgroup reach is reported
//! - `SOFTMETAL_SCHEDULE`: `forwards`, `backwards` or `shuffled`: in which order threadgroups, simdgroups and lanes run
//! - `SOFTMETAL_EAGER=1`: a command buffer runs when it is committed, not when somebody waits for it
//! - `SOFTMETAL_MEMORY`: how many bytes of buffers there may be
//! - `SOFTMETAL_REPORT`: a file to which everything that was found is appended, a line each
//! - `SOFTMETAL_FATAL=1`: the process ends at the first thing found
//! - `SOFTMETAL_COUNTS`: a file that gets the counts of commands, bytes and waits when the process ends
//! - `SOFTMETAL_PLANT`: bugs on purpose, by which the checks are checked: `no-barriers`, `no-fences`, `twice` (every
//!   dispatch), `no-pools` (objc2's pools drain nothing), or a file whose first line names a kernel source by a text that it has, and whose other lines, in two
//!   halves divided by a line of `=====`, are a text of it and what replaces that

use std::path::PathBuf;
use std::sync::OnceLock;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Schedule {
    Forwards,
    Backwards,
    Shuffled,
}

/// A text of a source that is replaced.
pub struct Mutation {
    pub within: String,
    pub from: String,
    pub to: String,
}

#[derive(Default)]
pub struct Plants {
    pub no_barriers: bool,
    pub no_fences: bool,
    pub twice: bool,
    pub mutation: Option<Mutation>,
}

pub struct Settings {
    pub compiler: String,
    pub cache: PathBuf,
    pub check: bool,
    pub strict: bool,
    pub schedule: Schedule,
    pub eager: bool,
    pub memory: usize,
    pub report: Option<PathBuf>,
    pub fatal: bool,
    pub counts: Option<PathBuf>,
    pub plants: Plants,
}

const MEMORY: usize = 16 << 30;

pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(Settings::read)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn flag(name: &str) -> bool {
    match variable(name).as_deref() {
        None | Some("0") => false,
        Some("1") => true,
        Some(other) => panic!("{name} is 0 or 1, not {other:?}"),
    }
}

impl Settings {
    fn read() -> Self {
        let cache = variable("SOFTMETAL_CACHE").map(PathBuf::from);
        Self {
            compiler: variable("SOFTMETAL_CLANG").unwrap_or_else(|| "clang++".to_string()),
            cache: cache.unwrap_or_else(|| std::env::temp_dir().join("softmetal")),
            check: flag("SOFTMETAL_CHECK"),
            strict: flag("SOFTMETAL_STRICT"),
            schedule: match variable("SOFTMETAL_SCHEDULE").as_deref() {
                None | Some("forwards") => Schedule::Forwards,
                Some("backwards") => Schedule::Backwards,
                Some("shuffled") => Schedule::Shuffled,
                Some(other) => {
                    panic!("SOFTMETAL_SCHEDULE is forwards, backwards or shuffled, not {other:?}")
                }
            },
            eager: flag("SOFTMETAL_EAGER"),
            memory: variable("SOFTMETAL_MEMORY").map_or(MEMORY, |bytes| {
                bytes
                    .parse()
                    .expect("SOFTMETAL_MEMORY is a number of bytes")
            }),
            report: variable("SOFTMETAL_REPORT").map(PathBuf::from),
            fatal: flag("SOFTMETAL_FATAL"),
            counts: variable("SOFTMETAL_COUNTS").map(PathBuf::from),
            plants: plants(variable("SOFTMETAL_PLANT").as_deref()),
        }
    }
}

fn plants(word: Option<&str>) -> Plants {
    match word {
        None => Plants::default(),
        Some("no-barriers") => Plants {
            no_barriers: true,
            ..Plants::default()
        },
        Some("no-fences") => Plants {
            no_fences: true,
            ..Plants::default()
        },
        Some("twice") => Plants {
            twice: true,
            ..Plants::default()
        },
        // Its half is in the crate that stands in for objc2.
        Some("no-pools") => Plants::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .unwrap_or_else(|error| panic!("SOFTMETAL_PLANT={path}: {error}"));
            let mutation = Mutation::parse(&text)
                .unwrap_or_else(|| panic!("SOFTMETAL_PLANT={path} has no two halves"));
            Plants {
                mutation: Some(mutation),
                ..Plants::default()
            }
        }
    }
}

impl Mutation {
    fn parse(text: &str) -> Option<Self> {
        let (within, rest) = text.split_once('\n')?;
        let (from, to) = rest.split_once("\n=====\n")?;
        Some(Self {
            within: within.to_string(),
            from: from.to_string(),
            to: to.strip_suffix('\n').unwrap_or(to).to_string(),
        })
    }

    pub fn apply(&self, source: &str) -> String {
        if source.contains(&self.within) {
            source.replace(&self.from, &self.to)
        } else {
            source.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Mutation;

    #[test]
    fn a_mutation_changes_the_source_that_it_names() {
        let mutation = Mutation::parse("norms\n  a\n\n=====\n  b;\n").expect("two halves");
        assert_eq!(
            mutation.apply("norms {\n  a\n}\n  a\n"),
            "norms {\n  b;}\n  b;"
        );
        assert_eq!(mutation.apply("  a\n"), "  a\n");
        assert!(Mutation::parse("norms\na\n").is_none());
    }
}
