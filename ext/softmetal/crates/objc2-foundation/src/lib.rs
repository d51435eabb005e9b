//! Stands in for objc2-foundation: strings, errors, arrays and ranges, as far as candle uses them.
#![allow(non_snake_case)]
use objc2::{rc::Retained, runtime::AnyObject, Message};
use std::{ffi::CString, fmt, marker::PhantomData, os::raw::c_char, path::Path};

pub type NSUInteger = usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct NSRange {
    pub location: NSUInteger,
    pub length: NSUInteger,
}

impl NSRange {
    pub const fn new(location: usize, length: usize) -> Self {
        Self { location, length }
    }
}

macro_rules! class {
    ($name:ident) => {
        #[repr(transparent)]
        pub struct $name(AnyObject);
        // SAFETY: `repr(transparent)`.
        unsafe impl Message for $name {}
    };
}
class!(NSString);
class!(NSError);
class!(NSURL);

impl NSString {
    pub fn from_str(text: &str) -> Retained<Self> {
        Retained::soft_new(CString::new(text.replace('\0', "")).expect("no zero byte is left"))
    }

    pub fn UTF8String(&self) -> *const c_char {
        self.0.soft_body::<CString>().as_ptr()
    }
}

impl fmt::Display for NSString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.soft_body::<CString>().to_string_lossy())
    }
}

struct ErrorBody(Retained<NSString>);

impl NSError {
    pub fn soft_new(description: &str) -> Retained<Self> {
        Retained::soft_new(ErrorBody(NSString::from_str(description)))
    }

    pub fn localizedDescription(&self) -> Retained<NSString> {
        self.0
            .soft_body::<ErrorBody>()
            .0
            .clone()
            .soft_autoreleased()
    }
}

impl fmt::Display for NSError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.localizedDescription().fmt(f)
    }
}

impl fmt::Debug for NSError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NSError({self})")
    }
}

impl NSURL {
    pub fn from_file_path(path: impl AsRef<Path>) -> Option<Retained<Self>> {
        Some(Retained::soft_new(path.as_ref().to_path_buf()))
    }
}

#[repr(transparent)]
pub struct NSArray<T>(AnyObject, PhantomData<T>);
// SAFETY: `repr(transparent)` apart from what takes no room.
unsafe impl<T> Message for NSArray<T> {}

impl<T: Message + 'static> NSArray<T> {
    pub fn from_retained_slice(items: &[Retained<T>]) -> Retained<Self> {
        Retained::soft_new(items.to_vec())
    }

    pub fn to_vec(&self) -> Vec<Retained<T>> {
        self.0.soft_body::<Vec<Retained<T>>>().clone()
    }
}
