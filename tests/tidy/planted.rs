//! A breach of each rule, planted, and what must not be taken for one.

use crate::arrows::{MAY_USE, NEVER, SERVING, may_use};
use crate::{Source, check};

/// The breaches in `text`, as `line: rule`.
fn breaches(path: &str, text: &str) -> Vec<String> {
    let strategies = ["redlock", "zookeeper"]
        .map(|s| Source::new(&format!("src/strategy/{s}.rs"), "//! One.\n"));
    let mut sources = strategies.to_vec();
    sources.retain(|s| s.path != path);
    sources.push(Source::new(path, text));
    let found = check(&sources).into_iter().filter(|b| b.path == path);
    found.map(|b| format!("{}: {}", b.line, b.rule)).collect()
}

/// The same for code below a proper first line.
fn in_file(path: &str, code: &str) -> Vec<String> {
    breaches(path, &format!("//! A file.\n{code}\n"))
}

const CLEAN: [String; 0] = [];

#[test]
fn an_arrow_that_points_up_is_seen_however_it_is_written() {
    let rule = ["2: `flow` may not use `http`".to_string()];
    for code in [
        "use crate::http::error::Problem;",
        "use crate::{http::error, sale};",
        "fn f() { crate::http::router() }",
        "use super::super::http;",
        "mod tests { use super::super::super::http; }",
    ] {
        assert_eq!(in_file("src/flow/dedupe.rs", code), rule, "{code}");
    }
    assert_eq!(in_file("src/flow.rs", "use super::http;"), rule);
}

#[test]
fn each_arrow_that_the_design_forbids_is_refused() {
    for (user, used, _) in NEVER {
        let found = in_file(&format!("src/{user}.rs"), &format!("use crate::{used}::X;"));
        assert_eq!(found, [format!("2: `{user}` may not use `{used}`")]);
    }
    for user in SERVING.split_whitespace() {
        let found = in_file(&format!("src/{user}.rs"), "use crate::lab::Lab;");
        assert_eq!(found, [format!("2: `{user}` may not use `lab`")]);
    }
}

#[test]
fn arrows_run_downward_and_never_in_a_circle() {
    let mut below = Vec::new();
    for (user, _) in MAY_USE {
        for used in may_use(user).expect("a row") {
            assert!(
                below.contains(&used),
                "`{user}` uses `{used}`, which does not stand above it"
            );
        }
        below.push(user);
    }
}

#[test]
fn main_may_not_reach_below_what_it_starts() {
    let found = in_file("src/main.rs", "use flashlock::script::gate;");
    assert_eq!(found, ["2: `main` may not use `script`"]);
}

#[test]
fn what_is_allowed_commented_or_a_string_is_no_breach() {
    let code = "// use crate::http;\nuse crate::{app::App, sale::{Line, Sku}};\nconst S: &str = \"crate::http::X todo!()\";";
    assert_eq!(in_file("src/flow/limit.rs", code), CLEAN);
    assert_eq!(
        in_file("src/flow/limit.rs", "mod tests { use super::http; }"),
        CLEAN
    );
    assert_eq!(
        in_file("src/strategy/redlock/nodes.rs", "use super::zookeeper;"),
        CLEAN
    );
}

#[test]
fn a_module_that_is_not_in_the_table_is_seen() {
    let found = in_file("src/util.rs", "");
    assert_eq!(
        found,
        ["1: the module `util` is not in the table of arrows"]
    );
}

#[test]
fn one_strategy_that_uses_another_is_seen() {
    let rule = ["2: the strategy `redlock` may not use the strategy `zookeeper`".to_string()];
    for code in [
        "use crate::strategy::zookeeper::X;",
        "use super::zookeeper;",
        "use super::{Servers, zookeeper::X};",
    ] {
        assert_eq!(in_file("src/strategy/redlock.rs", code), rule, "{code}");
    }
    assert_eq!(
        in_file(
            "src/strategy/redlock/nodes.rs",
            "use super::super::zookeeper;"
        ),
        rule
    );
    assert_eq!(
        in_file(
            "src/strategy/redlock.rs",
            "use crate::strategy::redlock::nodes;"
        ),
        CLEAN
    );
    assert_eq!(
        in_file(
            "src/strategy.rs",
            "use self::zookeeper::X; fn f() { crate::strategy::redlock::open() }"
        ),
        CLEAN
    );
}

#[test]
fn what_stands_outside_its_home_is_seen() {
    let planted = [
        (
            "only dedupe makes a NewOrder",
            "src/flow/dedupe.rs",
            "fn f() { NewOrder::deduped(p) }",
        ),
        (
            "only the gate's record makes a NewOrder again",
            "src/gate/accepted.rs",
            "fn f() { NewOrder::held(r) }",
        ),
        (
            "only the store knows SQL",
            "src/store/order.rs",
            "const S: &str = \"SELECT a\n FROM b\";",
        ),
        (
            "only the store knows SQL",
            "src/store.rs",
            "const S: &str = \"INSERT IGNORE INTO a\";",
        ),
        (
            "only the store knows SQL",
            "src/store.rs",
            "const S: &str = r#\"UPDATE \"a\" SET b\"#;",
        ),
        (
            "only the store knows SQL",
            "src/store.rs",
            "const S: &str = \"DELETE FROM a\";",
        ),
        (
            "only http/error.rs and http.rs know status codes",
            "src/http/error.rs",
            "use axum::http::StatusCode;",
        ),
        (
            "only keys.rs builds Redis keys",
            "src/keys.rs",
            "fn f() { format!(\"{{fs:{a}}}:x\") }",
        ),
    ];
    for (rule, home, code) in planted {
        let lines: Vec<String> = in_file("src/gate/truth.rs", code);
        assert_eq!(lines, [format!("2: {rule}")], "{code:?}");
        assert_eq!(in_file(home, code), CLEAN, "{home} is its home");
    }
    let homeless = [
        (
            "Lua stands in lua/, one script per file",
            "const S: &str = \"return redis.call('GET', 1)\";",
        ),
        ("nothing is left to be written", "fn f() { todo!() }"),
        (
            "nothing is left to be written",
            "fn f() { unimplemented!(\"later\") }",
        ),
    ];
    for (rule, code) in homeless {
        for path in ["src/script.rs", "src/gate.rs"] {
            assert_eq!(in_file(path, code), [format!("2: {rule}")]);
        }
    }
}

#[test]
fn prose_is_not_taken_for_sql() {
    let code = "const S: &str = \"select one from the list, and set it; UPDATE it FROM there\";";
    assert_eq!(in_file("src/gate.rs", code), CLEAN);
}

#[test]
fn a_file_without_its_question_too_long_or_named_mod_is_seen() {
    let silent = breaches("src/sale.rs", "use std::fmt;\n");
    assert_eq!(
        silent,
        ["1: a file's first line says which question it answers"]
    );
    assert_eq!(breaches("src/sale.rs", "//! \n").len(), 1);
    assert_eq!(breaches("src/sale.rs", "").len(), 1);
    let long = in_file("src/sale.rs", &"\n".repeat(449));
    assert_eq!(long, ["451: 451 lines, and a file has at most 450"]);
    assert_eq!(in_file("src/sale.rs", &"\n".repeat(448)), CLEAN);
    assert_eq!(
        in_file("src/flow/mod.rs", ""),
        ["1: a module is foo.rs beside foo/"]
    );
}

#[test]
fn a_script_without_its_header_is_seen() {
    let good = "#!lua\n-- Does a thing.\n--\n-- KEYS 1 meta  2 stock\n-- ARGV none\n--\n-- Returns 1.\nlocal a, b = KEYS[1], KEYS[2]\n";
    let other = "-- Purpose: Does a thing.\n-- KEYS[1]  lock: held 3 times\n-- ARGV[1]  owner\n-- Returns: 1\nreturn KEYS[1] -- KEYS[9]\n";
    let none = "-- Does a thing.\n-- KEYS none\n-- ARGV none\n-- Returns 1\nreturn 1\n";
    for script in [good, other, none] {
        assert_eq!(breaches("lua/x.lua", script), CLEAN, "{script}");
    }
    let more = good.replace("KEYS[2]\n", "KEYS[3]\n");
    assert_eq!(
        breaches("lua/x.lua", &more),
        ["4: the header names 2 KEYS and the script uses 3"]
    );
    let fewer = other.replace("return KEYS[1]", "return 1");
    assert_eq!(
        breaches("lua/x.lua", &fewer),
        ["2: the header names 1 KEYS and the script uses 0"]
    );
    for word in ["KEYS", "ARGV", "Returns"] {
        let silent = none.replace(word, "It");
        assert_eq!(
            breaches("lua/x.lua", &silent),
            [format!("1: a script's header names {word}")]
        );
    }
    let aimless = none.replace("-- Does a thing.\n", "");
    assert_eq!(
        breaches("lua/x.lua", &aimless),
        ["1: a script begins with its purpose"]
    );
    assert_eq!(breaches("lua/x.lua", "return KEYS[1]\n").len(), 5);
}
