//! Integration tests of the engine in one binary, since linking is the slow part.
mod attention;
mod kernels;
