//! Which module may use which.

use crate::{Breach, Source};

/// A module, and what it may use; it stands below everything it uses, so the arrows cannot run in a
/// circle. `lib` only lists modules.
pub(crate) const MAY_USE: [(&str, &str); 26] = [
    ("sale", ""),
    ("clock", ""),
    ("run", ""),
    ("order", "sale"),
    ("ledger", "sale"),
    ("metrics", "sale clock"),
    ("keys", "order ledger sale"),
    ("journal", "keys order sale clock"),
    ("script", "keys order ledger sale journal clock"),
    ("store", "keys order ledger sale journal clock"),
    ("broker", "store keys sale clock"),
    ("limit", "script keys sale clock metrics"),
    ("lock", "store script keys sale journal clock"),
    ("gate", "store script keys order ledger sale journal clock"),
    (
        "deduct",
        "lock store script keys order ledger sale journal clock",
    ),
    (
        "strategy",
        "deduct lock gate store script keys order ledger sale journal clock metrics",
    ),
    ("config", "strategy store sale clock"),
    ("setup", "config strategy script clock"),
    (
        "app",
        "setup config strategy limit deduct lock gate store script keys order ledger sale journal clock metrics",
    ),
    (
        "flow",
        "app setup limit broker strategy deduct lock gate store keys order ledger sale journal clock metrics",
    ),
    (
        "http",
        "flow app setup config strategy limit deduct lock store order ledger sale journal clock metrics",
    ),
    ("lab", "clock"),
    ("report", "run"),
    (
        "bench",
        "report run lab flow app config strategy deduct lock gate store script keys order ledger sale journal clock metrics",
    ),
    (
        "main",
        "bench report run lab http flow app config strategy store order ledger sale journal clock metrics",
    ),
    ("lib", ""),
];

/// What the table above must never be loosened to, each with its reason.
pub(crate) const NEVER: [(&str, &str, &str); 6] = [
    (
        "flow",
        "http",
        "a purchase knows nothing of the wire: answer with an `Ending`",
    ),
    (
        "app",
        "flow",
        "what is opened knows nothing of what is done with it",
    ),
    (
        "strategy",
        "flow",
        "a strategy gets a `NewOrder` and answers an `Ending`",
    ),
    (
        "store",
        "lock",
        "the store checks a token, whoever issued it: pass it as data",
    ),
    (
        "http",
        "bench",
        "the service does not know that it is measured",
    ),
    (
        "bench",
        "http",
        "the bench talks over the wire, as a buyer does",
    ),
];

/// What serves buyers; none of it may start servers.
pub(crate) const SERVING: &str = "sale clock order ledger metrics keys journal script store broker limit lock gate deduct strategy config setup app flow http";

/// What `user` may use, or `None` when the table does not know it.
pub(crate) fn may_use(user: &str) -> Option<Vec<&'static str>> {
    let row = MAY_USE.iter().find(|(module, _)| *module == user);
    row.map(|(_, used)| used.split_whitespace().collect())
}

pub(crate) fn arrows(source: &Source) -> Vec<Breach> {
    let user = match source.module().first() {
        Some(first) => first.to_string(),
        None => source
            .path
            .trim_start_matches("src/")
            .trim_end_matches(".rs")
            .to_string(),
    };
    let breach = |line: usize, rule: String, to_do: &str| Breach::new(source, line, rule, to_do);
    let Some(allowed) = may_use(&user) else {
        let rule = format!("the module `{user}` is not in the table of arrows");
        return vec![breach(
            1,
            rule,
            "add it to MAY_USE in tests/tidy/arrows.rs, where the design has it",
        )];
    };
    let mut breaches = Vec::new();
    for (line, path) in uses(source) {
        let used = path[0].as_str();
        let known = MAY_USE.iter().any(|(module, _)| *module == used);
        if !known || used == user || allowed.contains(&used) {
            continue;
        }
        let never = NEVER.iter().find(|(a, b, _)| *a == user && *b == used);
        let rule = format!("`{user}` may not use `{used}`");
        breaches.push(breach(
            line,
            rule,
            never.map_or(
                "move what is needed to a module that both may use, or pass it in (the table is MAY_USE in tests/tidy/arrows.rs)",
                |(_, _, why)| why,
            ),
        ));
    }
    breaches
}

/// A strategy's file knows no other strategy: what two of them share belongs below both.
pub(crate) fn strategies_apart(source: &Source, strategies: &[String]) -> Vec<Breach> {
    let module = source.module();
    let ["strategy", own, ..] = module.as_slice() else {
        return Vec::new();
    };
    let others = uses(source).into_iter().filter(|(_, path)| {
        path[0] == "strategy"
            && path
                .get(1)
                .is_some_and(|s| s != own && strategies.contains(s))
    });
    others
        .map(|(line, path)| {
            let rule = format!(
                "the strategy `{own}` may not use the strategy `{}`",
                path[1]
            );
            Breach::new(
                source,
                line,
                rule,
                "move what both need to src/lock/, src/deduct/ or src/script/",
            )
        })
        .collect()
}

/// Every path from the crate's root that the code names, and where. `crate::`, `flashlock::` and
/// `super::` are followed, and so are the braces behind them.
pub(crate) fn uses(source: &Source) -> Vec<(usize, Vec<String>)> {
    let module = source.module();
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices("::") {
        let before = source.code[..at].trim_end();
        let head = before
            .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
            .next()
            .unwrap_or("");
        let start = before.len() - head.len();
        if source.code[..start].trim_end().ends_with("::") {
            continue;
        }
        let mut rest = source.code[at + 2..].trim_start();
        let base: Vec<String> = match head {
            "crate" | "flashlock" => Vec::new(),
            "super" => {
                let mut ups = 1;
                while let Some(further) = rest
                    .strip_prefix("super")
                    .and_then(|r| r.trim_start().strip_prefix("::"))
                {
                    ups += 1;
                    rest = further.trim_start();
                }
                // In a module written inside the file, `super` is the file itself: one less.
                ups -= usize::from(inside_inner_module(&source.code[..start]));
                let kept = module.len().saturating_sub(ups);
                module[..kept].iter().map(|m| m.to_string()).collect()
            }
            _ => continue,
        };
        for tail in tails(rest) {
            let path: Vec<String> = base.iter().cloned().chain(tail).collect();
            if !path.is_empty() {
                found.push((source.line_of(at), path));
            }
        }
    }
    found
}

/// Whether `before` ends within the braces of a `mod name {`.
fn inside_inner_module(before: &str) -> bool {
    before.match_indices("mod ").any(|(at, _)| {
        let starts_word = !before[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let after = before[at + 4..].trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
        let Some(body) = after.trim_start().strip_prefix('{') else {
            return false;
        };
        let (mut depth, mut closed) = (1_i64, false);
        for c in body.chars() {
            depth += i64::from(c == '{') - i64::from(c == '}');
            closed |= depth == 0;
        }
        starts_word && !closed
    })
}

/// The first two names of each path that `rest` begins with: `a::b`, or `{a::b, c::{d, e}}`.
fn tails(rest: &str) -> Vec<Vec<String>> {
    let name = |text: &str| -> String {
        text.chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let Some(group) = rest.strip_prefix('{') else {
        let first = name(rest);
        if first.is_empty() {
            return Vec::new();
        }
        let after = rest[first.len()..].trim_start();
        let seconds = match after.strip_prefix("::") {
            Some(after) => tails(after.trim_start()),
            None => Vec::new(),
        };
        if seconds.is_empty() {
            return vec![vec![first]];
        }
        return seconds
            .into_iter()
            .map(|s| vec![first.clone(), s[0].clone()])
            .collect();
    };
    let mut depth = 0_i32;
    let mut parts = vec![String::new()];
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                parts.last_mut().expect("never empty").push(c);
            }
        }
    }
    parts.iter().flat_map(|p| tails(p.trim())).collect()
}
