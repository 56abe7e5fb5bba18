//! Tells the program which commit it was built from, for its reports, and the conformance suite which
//! strategies there are, for a test of each.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for path in [
        "build.rs",
        "Cargo.toml",
        "src",
        "lua",
        "migrations",
        ".git/HEAD",
        ".git/index",
    ] {
        // A path that is not there would build everything again each time.
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    strategies();
    let described = Command::new("git")
        .args([
            "describe",
            "--always",
            "--dirty",
            "--abbrev=12",
            "--exclude=*",
        ])
        .output();
    if let Ok(described) = described
        && described.status.success()
    {
        let commit = String::from_utf8_lossy(&described.stdout);
        println!("cargo::rustc-env=BUILD_COMMIT={}", commit.trim());
    }
}

/// Writes `cells! { … }` with the name of every file in src/strategy: `tests/it/conformance.rs` says
/// what a cell is. A new strategy is tested without being listed anywhere.
fn strategies() {
    let mut names: Vec<String> = std::fs::read_dir("src/strategy")
        .expect("the strategies are there")
        .map(|entry| entry.expect("a directory that can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_string()))
        .collect();
    names.sort();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let text = format!("cells! {{ {} }}\n", names.join(" "));
    std::fs::write(out.join("strategies.rs"), text).expect("the directory is ours");
}
