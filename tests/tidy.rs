//! Holds the arrows between modules and the homes of things: what the compiler does not check.
//!
//! A breach is shown as `file:line: rule: what to do`. The table of arrows is in `tidy/arrows.rs`,
//! what may stand where in `tidy/rules.rs`. Each rule is shown a planted breach below, since a check
//! that cannot fail is worth nothing.

use std::path::Path;

#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/planted.rs"]
mod planted;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use source::Source;

/// A rule that a file does not keep.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Breach {
    path: String,
    line: usize,
    rule: String,
    to_do: String,
}

impl Breach {
    fn new(source: &Source, line: usize, rule: String, to_do: &str) -> Self {
        Self {
            path: source.path.clone(),
            line,
            rule,
            to_do: to_do.to_string(),
        }
    }
}

impl std::fmt::Display for Breach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}:{}: {}: {}",
            self.path, self.line, self.rule, self.to_do
        )
    }
}

/// Every breach in these files.
fn check(sources: &[Source]) -> Vec<Breach> {
    let strategies: Vec<String> = sources
        .iter()
        .filter_map(|s| match s.module().as_slice() {
            ["strategy", name] => Some(name.to_string()),
            _ => None,
        })
        .collect();
    let mut breaches = Vec::new();
    for source in sources {
        if source.path.ends_with(".lua") {
            breaches.extend(rules::script(source));
            continue;
        }
        breaches.extend(rules::shape(source));
        breaches.extend(rules::HOMES.iter().flat_map(|home| home.check(source)));
        breaches.extend(arrows::arrows(source));
        breaches.extend(arrows::strategies_apart(source, &strategies));
    }
    breaches.sort();
    breaches.dedup();
    breaches
}

/// The files of `dir` and below that end with `.extension`, by path.
fn read(root: &Path, dir: &str, extension: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(dir)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                let text = std::fs::read_to_string(&path).expect("a readable file");
                let below = path.strip_prefix(root).expect("below the root");
                found.push(Source::new(&below.to_string_lossy(), &text));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = read(root, "src", "rs");
    assert!(sources.len() > 15, "the sources were not found");
    sources.extend(read(root, "lua", "lua"));
    let breaches: Vec<String> = check(&sources).iter().map(Breach::to_string).collect();
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}
