//! Lets the CUDA build find the toolkit's libraries where they were when it was built.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if !linux || std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let mut homes = vec![PathBuf::from("/usr/local/cuda")];
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"] {
        println!("cargo:rerun-if-env-changed={name}");
        homes.extend(std::env::var_os(name).map(PathBuf::from));
    }
    for folder in homes.iter().map(|home| home.join("lib64")) {
        if folder.join("libcudart.so").exists() {
            println!(
                "cargo:rustc-cdylib-link-arg=-Wl,-rpath,{}",
                folder.display()
            );
        }
    }
}
