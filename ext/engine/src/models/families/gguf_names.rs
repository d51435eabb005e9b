//! What the tensors of a checkpoint are called in GGUF files: both tables of names of its family, side by side.

use super::*;
use crate::models::parts::Part;

pub struct GgufNames {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Linear weights are stored `[in, out]`.
    pub transposed: bool,
    /// What modules are called in a checkpoint and in a file: `{}` stands for the layer, `*` for the expert.
    pub modules: Vec<(String, String)>,
}

/// `None` where models of this type have no GGUF files.
pub fn gguf_names(raw: &RawConfig) -> Result<Option<GgufNames>> {
    match names_of::<DecoderConfig>(raw)? {
        None => names_of::<EncoderConfig>(raw),
        found => Ok(found),
    }
}

fn names_of<C: Shape>(raw: &RawConfig) -> Result<Option<GgufNames>> {
    let family = C::FAMILIES.iter().find(|family| family.matches.holds(raw));
    let both = family.and_then(|family| Some((family, family.gguf.as_ref()?)));
    let Some((family, gguf)) = both else {
        return Ok(None);
    };
    let config = (family.config)(raw)?;
    let (from, to) = ((family.names)(Some(&config)), (gguf.names)(&config));
    let pairs = Part::ALL.iter().filter_map(|&part| {
        let name = to.templates(part).into_iter().next()?;
        Some((from.templates(part), name))
    });
    let modules = pairs.flat_map(|(modules, name)| {
        let bodies = [from.body, ""].into_iter();
        bodies.flat_map(move |body| {
            let called = |module: &String| (format!("{body}{module}"), name.clone());
            modules.iter().map(called).collect::<Vec<_>>()
        })
    });
    let mut architectures = gguf.architecture.split('|');
    Ok(Some(GgufNames {
        architecture: architectures.next().unwrap_or(gguf.architecture),
        transposed: from.transposed,
        modules: modules.collect(),
    }))
}
