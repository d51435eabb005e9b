//! What the runtime finds in a compiled library: a row for each kernel and each function constant.

use super::kernels::Kernel;
use super::rewrite::Translator;
use super::{Entry, Translation};

impl Translator<'_> {
    pub fn finish(self) -> Result<Translation, String> {
        let mut named = Vec::new();
        for kernel in self.kernels.iter().filter(|kernel| !kernel.template) {
            named.push((kernel.name.clone(), kernel, String::new()));
        }
        for instance in &self.instances {
            let kernel = self
                .kernels
                .iter()
                .find(|kernel| kernel.name == instance.function);
            let kernel = kernel.ok_or_else(|| {
                format!("no kernel {} for {}", instance.function, instance.host_name)
            })?;
            named.push((
                instance.host_name.clone(),
                kernel,
                format!("<{}>", instance.arguments),
            ));
        }
        let entries = named
            .into_iter()
            .enumerate()
            .map(|(i, (name, kernel, arguments))| entry(i, name, kernel, &arguments))
            .collect();
        let constants: String = self
            .constants
            .iter()
            .map(|constant| {
                let (name, index) = (&constant.name, &constant.index);
                format!("    {{\"{name}\", {index}, sizeof({name}), &{name}}},\n")
            })
            .collect();
        let derived: String = self
            .derived
            .iter()
            .map(|(name, expression)| format!("    {name} ={expression};\n"))
            .collect();
        let end = format!(
            "SOFTMETAL_EXPORT const host::Constant softmetal_constants[] = {{\n{constants}    \
             {{nullptr, 0, 0, nullptr}},\n}};\nSOFTMETAL_EXPORT void softmetal_derive() {{\n{derived}}}\n"
        );
        Ok(Translation {
            body: self.out,
            entries,
            end,
        })
    }
}

fn entry(i: usize, name: String, kernel: &Kernel, arguments: &str) -> Entry {
    let codes: Vec<String> = kernel
        .parameters
        .iter()
        .map(|p| p.code.to_string())
        .collect();
    let codes = codes.join(", ");
    let guard = |guard: &Option<String>| {
        guard
            .as_ref()
            .map_or("nullptr".into(), |name| format!("&{name}"))
    };
    let guards: Vec<String> = kernel.parameters.iter().map(|p| guard(&p.guard)).collect();
    let function = format!("{}{arguments}", kernel.name);
    let code = format!(
        "static void softmetal_entry_{i}(const host::Position &p) {{ host::Call<{codes}>::run(&{function}, p); }}\n\
         static const int softmetal_codes_{i}[] = {{{codes}{}-1}};\n\
         static const bool *const softmetal_guards_{i}[] = {{{}{}nullptr}};\n",
        if codes.is_empty() { "" } else { ", " },
        guards.join(", "),
        if guards.is_empty() { "" } else { ", " },
    );
    let maximum = match &kernel.maximum {
        Some(_) => format!("softmetal_maximum_{}{arguments}", kernel.name),
        None => "1024".to_string(),
    };
    let row = format!(
        "    {{\"{name}\", softmetal_entry_{i}, {maximum}, softmetal_codes_{i}, softmetal_guards_{i}}},\n"
    );
    Entry { name, code, row }
}
