//! clang++, and the folder of what it made.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::msl;
use crate::settings::settings;

/// `<metal_stdlib>` for clang++; the first is the one that is included.
const HEADERS: [(&str, &str); 6] = [
    (
        "metal_stdlib.hpp",
        include_str!("../../include/metal_stdlib.hpp"),
    ),
    ("types.hpp", include_str!("../../include/types.hpp")),
    ("runtime.hpp", include_str!("../../include/runtime.hpp")),
    ("math.hpp", include_str!("../../include/math.hpp")),
    ("simdgroup.hpp", include_str!("../../include/simdgroup.hpp")),
    ("arguments.hpp", include_str!("../../include/arguments.hpp")),
];

/// Every operation rounds by itself, and a local variable nobody set is a NaN.
const FLAGS: [&str; 17] = [
    "-std=c++17",
    "-w",
    "-march=x86-64-v3",
    "-ferror-limit=40",
    "-O1",
    "-fPIC",
    "-shared",
    "-nostdinc",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-ftrivial-auto-var-init=pattern",
    "-fno-exceptions",
];
/// Loads and stores call functions of ours, and misaligned ones trap.
const CHECKED: [&str; 8] = [
    "-fsanitize=thread,alignment",
    "-fsanitize-trap=alignment",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-atomics=0",
    "-DSOFTMETAL_CHECKED=1",
    "-c",
];
const DEFINITIONS: [&str; 4] = [
    "-D__METAL__=1",
    "-D__METAL_VERSION__=320",
    "-D__HAVE_BFLOAT__=1",
    "-D__METAL_MACOS__=1",
];

fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Names what a source becomes here.
pub fn digest(source: &str) -> String {
    let check = if settings().check { "checked" } else { "" };
    let (flags, checked) = (FLAGS.join(" "), CHECKED.join(" "));
    let mut parts = vec![source, check, &settings().compiler, &flags, &checked];
    parts.extend(msl::VERSION);
    parts.extend(HEADERS.iter().map(|(_, text)| *text));
    hash(&parts)
}

pub fn object_file(digest: &str, kernel: &str) -> PathBuf {
    settings().cache.join(format!("{digest}-{kernel}.so"))
}

fn run(command: &mut Command, input: &str) -> Result<String, String> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{}: {error}", settings().compiler))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    });
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// The source with its macros expanded, without the standard library.
pub fn preprocess(source: &str) -> Result<String, String> {
    let includes = |line: &&str| !line.trim_start().starts_with("#include <metal_");
    let text: Vec<&str> = source
        .lines()
        .map(|line| if includes(&line) { line } else { "" })
        .collect();
    let mut command = Command::new(&settings().compiler);
    command
        .args(["-E", "-P", "-nostdinc", "-x", "c++"])
        .args(DEFINITIONS)
        .arg("-");
    run(&mut command, &(text.join("\n") + "\n"))
}

/// Where the headers lie: a folder named by their contents, since other versions may share the cache.
fn headers() -> Result<&'static Path, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let texts: Vec<&str> = HEADERS.iter().map(|(_, text)| *text).collect();
        let folder = settings().cache.join(format!("include-{}", hash(&texts)));
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        // One that is there stays: clang takes a file for another that had its number, and would include only one.
        let missing = HEADERS
            .iter()
            .filter(|(name, _)| !folder.join(name).exists());
        for (name, text) in missing {
            replace(&folder.join(name), |unfinished| {
                std::fs::write(unfinished, text).map_err(|e| e.to_string())
            })?;
        }
        Ok(folder)
    });
    folder.as_deref().map_err(Clone::clone)
}

/// Makes a file under another name first: other processes see all of it or nothing.
fn replace(file: &Path, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let unfinished = PathBuf::from(name);
    make(&unfinished)?;
    std::fs::rename(&unfinished, file).map_err(|error| format!("{}: {error}", file.display()))
}

pub fn build(text: &str, object: &Path) -> Result<(), String> {
    let headers = headers()?;
    replace(object, |unfinished| {
        let mut command = Command::new(&settings().compiler);
        command.args(FLAGS).arg("-I").arg(headers);
        if !settings().check {
            command
                .args(["-x", "c++", "-", "-o"])
                .arg(unfinished)
                .arg("-lm");
            return run(&mut command, text).map(drop);
        }
        // Instrumented as for the sanitizer, but not linked with it.
        let mut intermediate = unfinished.as_os_str().to_owned();
        intermediate.push(".o");
        command
            .args(CHECKED)
            .args(["-x", "c++", "-", "-o"])
            .arg(&intermediate);
        run(&mut command, text)?;
        let mut link = Command::new(&settings().compiler);
        let linked = run(
            link.arg("-shared")
                .arg(&intermediate)
                .arg("-o")
                .arg(unfinished)
                .arg("-lm"),
            "",
        );
        let _ = std::fs::remove_file(&intermediate);
        linked.map(drop)
    })
}
