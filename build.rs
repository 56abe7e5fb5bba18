//! Tells the program which commit it was built from, for its reports.

use std::path::Path;
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
