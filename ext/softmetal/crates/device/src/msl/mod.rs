//! Turns preprocessed Metal source into C++ for `metal_stdlib.hpp`. Works on words, not on a grammar: attributes go,
//! explicit instantiations of kernels become entries, threadgroup variables come from the runtime, function constants
//! become variables, and vector constructors and casts become calls. What it does not know is an error.

mod entries;
mod kernels;
mod rewrite;
#[cfg(test)]
mod tests;
mod tokens;

use tokens::Tokens;

/// The files a translation depends on besides its source.
pub const VERSION: [&str; 5] = [
    include_str!("mod.rs"),
    include_str!("tokens.rs"),
    include_str!("rewrite.rs"),
    include_str!("kernels.rs"),
    include_str!("entries.rs"),
];

/// A kernel under the name by which the host asks for it.
struct Entry {
    name: String,
    code: String,
    /// Its row of the table that the runtime reads.
    row: String,
}

/// A translated library.
pub struct Translation {
    body: String,
    entries: Vec<Entry>,
    end: String,
}

impl Translation {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// The C++ of one kernel.
    pub fn assemble(&self, kernel: &str) -> String {
        let chosen = || self.entries.iter().filter(|entry| entry.name == kernel);
        let code: String = chosen().map(|entry| entry.code.as_str()).collect();
        let rows: String = chosen().map(|entry| entry.row.as_str()).collect();
        format!(
            "{}\n{code}\nSOFTMETAL_EXPORT const host::Kernel softmetal_kernels[] = {{\n{rows}    \
             {{nullptr, nullptr, 0, nullptr, nullptr}},\n}};\n{}",
            self.body, self.end
        )
    }
}

pub fn translate(preprocessed: &str) -> Result<Translation, String> {
    let mut translator = rewrite::Translator::new(Tokens::of(preprocessed)?);
    translator.run()?;
    translator.finish()
}
