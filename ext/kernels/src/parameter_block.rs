//! What a launch on a GPU tells its kernel.

/// Declares a parameter block and remembers its fields, which a test compares with the Metal source.
macro_rules! parameter_block {
    ($(#[$attribute:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            #[cfg(test)]
            pub(crate) const FIELDS: &'static [(&'static str, &'static str)] = &[$((stringify!($field), stringify!($type)),)*];
        }
    };
}

pub(crate) use parameter_block;
