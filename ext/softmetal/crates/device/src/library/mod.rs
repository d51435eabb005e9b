//! Libraries: Metal source, each of whose kernels is compiled to a shared object when it is asked for.

mod compiler;
mod object;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::lock;
use crate::machine::Entry;
use crate::msl::{self, Translation};
use crate::settings::settings;
pub use object::Place;
use object::{Binding, Object};

/// Values of function constants: index and bytes.
pub type Constants = Vec<(usize, Vec<u8>)>;

pub struct Library {
    source: String,
    digest: String,
    translation: OnceLock<Result<Translation, String>>,
    objects: Mutex<HashMap<String, Arc<Object>>>,
}

impl Library {
    pub fn new(source: &str) -> Self {
        let source = match &settings().plants.mutation {
            Some(mutation) => mutation.apply(source),
            None => source.to_string(),
        };
        Self {
            digest: compiler::digest(&source),
            source,
            translation: OnceLock::new(),
            objects: Mutex::default(),
        }
    }

    fn translation(&self) -> Result<&Translation, String> {
        let translate = || msl::translate(&compiler::preprocess(&self.source)?);
        let translation = self.translation.get_or_init(translate);
        translation.as_ref().map_err(Clone::clone)
    }

    fn object(&self, kernel: &str) -> Result<Arc<Object>, String> {
        let mut objects = lock(&self.objects);
        if let Some(object) = objects.get(kernel) {
            return Ok(object.clone());
        }
        let file = compiler::object_file(&self.digest, kernel);
        if !file.exists() {
            let translation = self.translation()?;
            if !translation.names().any(|name| name == kernel) {
                return Err(format!("no function {kernel} in the library"));
            }
            compiler::build(&translation.assemble(kernel), &file)?;
        }
        let object = Arc::new(Object::load(&file)?);
        objects.insert(kernel.to_string(), object.clone());
        Ok(object)
    }

    pub fn function(&self, name: &str, constants: Constants) -> Result<Function, String> {
        Ok(Function {
            object: self.object(name)?,
            name: name.to_string(),
            constants,
        })
    }
}

pub struct Function {
    object: Arc<Object>,
    name: String,
    constants: Constants,
}

pub struct Pipeline {
    object: Arc<Object>,
    pub name: String,
    constants: Constants,
    pub entry: Entry,
    pub maximum_threads: usize,
    pub bindings: Vec<Binding>,
}

impl Pipeline {
    pub fn new(function: &Function) -> Result<Self, String> {
        let (object, name) = (&function.object, &function.name);
        let kernel = object
            .kernel(name)
            .ok_or_else(|| format!("no kernel {name}"))?;
        for (index, value) in &function.constants {
            object
                .check_constant(*index, value)
                .map_err(|problem| format!("{name}: {problem}"))?;
        }
        Ok(Self {
            object: object.clone(),
            name: name.clone(),
            constants: function.constants.clone(),
            entry: kernel.entry,
            maximum_threads: kernel.maximum,
            bindings: kernel.bindings.clone(),
        })
    }

    /// Sets the object's function constants to this pipeline's. Nothing of the object may run meanwhile.
    pub fn activate(&self) {
        self.object.set_constants(&self.constants);
    }
}
