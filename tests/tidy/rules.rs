//! What may stand in which file.

use crate::{Breach, Source};

/// Longest file, in lines; above this it answers more than one question.
pub(crate) const LINES_MAX: usize = 450;

/// Files that may contain what `finds` finds.
pub(crate) struct Home {
    pub(crate) rule: &'static str,
    /// Each is a file, or a beginning of paths.
    pub(crate) allowed: &'static [&'static str],
    pub(crate) to_do: &'static str,
    /// The lines on which it stands.
    pub(crate) finds: fn(&Source) -> Vec<usize>,
}

pub(crate) const HOMES: [Home; 7] = [
    Home {
        rule: "only dedupe makes a NewOrder",
        // order.rs defines it, and tests it.
        allowed: &["src/flow/dedupe.rs", "src/order.rs"],
        to_do: "let the purchase go through flow::dedupe",
        finds: |s| code(s, "NewOrder::deduped"),
    },
    Home {
        rule: "only the gate's record makes a NewOrder again",
        allowed: &["src/gate/accepted.rs", "src/order.rs"],
        to_do: "let the gate read its record: gate::accepted::orders",
        finds: |s| code(s, "NewOrder::held"),
    },
    Home {
        rule: "only the store knows SQL",
        // The lab asks a server whether a database is there, before there is a store.
        allowed: &[
            "src/store.rs",
            "src/store/",
            "src/lab/postgres.rs",
            "src/lab/mariadb.rs",
        ],
        to_do: "give src/store/ a method that says what is wanted, and call it",
        finds: |s| strings(s, is_sql),
    },
    Home {
        rule: "only http/error.rs and http.rs know status codes",
        // http.rs has 200, 201 and 202, which are no errors; the bench reads answers as a buyer does.
        allowed: &[
            "src/http/error.rs",
            "src/http.rs",
            "src/bench.rs",
            "src/bench/",
        ],
        to_do: "answer with a problem or a constructor of http/error.rs",
        finds: |s| code(s, "StatusCode"),
    },
    Home {
        rule: "only keys.rs builds Redis keys",
        allowed: &["src/keys.rs"],
        to_do: "add a method to LockKey or GateKeys",
        finds: |s| strings(s, |text| text.contains("{fs:")),
    },
    Home {
        rule: "Lua stands in lua/, one script per file",
        allowed: &[],
        to_do: "put the script into lua/ and a typed function into src/script/",
        finds: |s| {
            strings(s, |text| {
                text.contains("redis.call") || text.contains("redis.pcall")
            })
        },
    },
    Home {
        rule: "nothing is left to be written",
        allowed: &[],
        to_do: "write it, or take it out",
        finds: |s| [code(s, "todo!"), code(s, "unimplemented!")].concat(),
    },
];

impl Home {
    pub(crate) fn check(&self, source: &Source) -> Vec<Breach> {
        let at_home = self
            .allowed
            .iter()
            .any(|home| match home.strip_suffix('/') {
                Some(_) => source.path.starts_with(home),
                None => source.path == *home,
            });
        if at_home {
            return Vec::new();
        }
        let lines = (self.finds)(source).into_iter();
        lines
            .map(|line| Breach::new(source, line, self.rule.to_string(), self.to_do))
            .collect()
    }
}

pub(crate) fn shape(source: &Source) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let mut add = |line: usize, rule: String, to_do: &str| {
        breaches.push(Breach::new(source, line, rule, to_do))
    };
    let lines = source.text.lines().count();
    if lines > LINES_MAX {
        let rule = format!("{lines} lines, and a file has at most {LINES_MAX}");
        add(
            LINES_MAX + 1,
            rule,
            "give its second question a file of its own",
        );
    }
    if source.path.ends_with("/mod.rs") {
        add(
            1,
            "a module is foo.rs beside foo/".to_string(),
            "move it up and name it after its folder",
        );
    }
    let says = source
        .text
        .lines()
        .next()
        .and_then(|l| l.strip_prefix("//! "));
    if says.is_none_or(|s| s.trim().is_empty()) {
        add(
            1,
            "a file's first line says which question it answers".to_string(),
            "begin it with `//! ` and a sentence",
        );
    }
    breaches
}

/// The header of a script: what it is for, its KEYS and ARGV, and what it returns.
pub(crate) fn script(source: &Source) -> Vec<Breach> {
    let header: Vec<(usize, &str)> = source
        .text
        .lines()
        .enumerate()
        .skip_while(|(_, l)| l.starts_with("#!"))
        .take_while(|(_, l)| l.starts_with("--"))
        .map(|(i, l)| (i + 1, l.trim_start_matches('-').trim()))
        .collect();
    let mut breaches = Vec::new();
    let mut add = |line: usize, rule: String, to_do: &str| {
        breaches.push(Breach::new(source, line, rule, to_do))
    };
    let purpose = header.first().map_or("", |(_, says)| *says);
    if purpose.is_empty()
        || ["KEYS", "ARGV", "Returns"]
            .iter()
            .any(|w| purpose.starts_with(w))
    {
        add(
            1,
            "a script begins with its purpose".to_string(),
            "say in the first comment what it does",
        );
    }
    for word in ["KEYS", "ARGV", "Returns"] {
        if !header.iter().any(|(_, l)| l.starts_with(word)) {
            let rule = format!("a script's header names {word}");
            add(
                1,
                rule,
                "add a line `-- KEYS …`, `-- ARGV …` or `-- Returns …`; `none` where there are none",
            );
        }
    }
    let (line, named) = keys_named(&header);
    let (used_at, used) = keys_used(source);
    if named != used {
        let rule = format!("the header names {named} KEYS and the script uses {used}");
        add(
            line.max(1),
            rule,
            &format!("name each key once, in order (the highest is used on line {used_at})"),
        );
    }
    breaches
}

/// How many keys a header names: `KEYS 1 meta  2 stock`, or a line `KEYS[n] name` for each.
fn keys_named(header: &[(usize, &str)]) -> (usize, usize) {
    let mut named = 0;
    let mut first_line = 0;
    let lines = header.iter().skip_while(|(_, l)| !l.starts_with("KEYS"));
    for (line, text) in
        lines.take_while(|(_, l)| !l.starts_with("ARGV") && !l.starts_with("Returns"))
    {
        first_line = if first_line == 0 { *line } else { first_line };
        for token in text.split_whitespace() {
            let digits = token
                .trim_start_matches("KEYS[")
                .trim_end_matches(':')
                .trim_end_matches(']');
            if digits.parse() == Ok(named + 1) {
                named += 1;
            }
        }
    }
    (first_line, named)
}

/// The highest KEYS[n] outside comments, and its line.
fn keys_used(source: &Source) -> (usize, usize) {
    let mut highest = (0, 0);
    for (i, line) in source.text.lines().enumerate() {
        let code = line.split("--").next().unwrap_or("");
        for (at, open) in code.match_indices("KEYS[") {
            let digits: String = code[at + open.len()..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            let n = digits.parse().unwrap_or(0);
            if n > highest.1 {
                highest = (i + 1, n);
            }
        }
    }
    highest
}

fn code(source: &Source, word: &str) -> Vec<usize> {
    source
        .code_lines()
        .filter(|(_, l)| l.contains(word))
        .map(|(line, _)| line)
        .collect()
}

fn strings(source: &Source, is_it: impl Fn(&str) -> bool) -> Vec<usize> {
    source
        .strings
        .iter()
        .filter(|l| is_it(&l.text))
        .map(|l| l.line)
        .collect()
}

/// Whether the words of a string are those of a statement. Only capitals count: this code writes
/// keywords so, and prose does not.
fn is_sql(text: &str) -> bool {
    let words: Vec<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .collect();
    let then = |first: &str, second: &str| {
        let after = words
            .iter()
            .position(|w| *w == first)
            .map(|i| &words[i + 1..]);
        after.is_some_and(|rest| rest.contains(&second))
    };
    then("SELECT", "FROM")
        || then("INSERT", "INTO")
        || then("UPDATE", "SET")
        || then("DELETE", "FROM")
}
