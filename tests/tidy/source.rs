//! One Rust file, taken apart into what is code and what is a string, line by line.

/// A file as the rules look at it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source {
    /// Below the root, with `/`: `src/flow/dedupe.rs`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments and the insides of strings blanked out; lines stay where they are.
    pub(crate) code: String,
    pub(crate) strings: Vec<Literal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Literal {
    /// Where it begins, from 1.
    pub(crate) line: usize,
    /// As written, escapes included.
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut source = Self {
            path: path.to_string(),
            text: text.to_string(),
            ..Self::default()
        };
        source.take_apart();
        source
    }

    /// Lines of code with their numbers, from 1.
    pub(crate) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(i, l)| (i + 1, l))
    }

    /// The line, from 1, of a byte of `code`.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        1 + self.code[..at].matches('\n').count()
    }

    /// The module below the crate: `["flow", "dedupe"]`; empty for the crate's roots.
    pub(crate) fn module(&self) -> Vec<&str> {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path);
        match path.strip_suffix(".rs").unwrap_or(path) {
            "lib" | "main" => Vec::new(),
            inner => inner.split('/').collect(),
        }
    }

    fn take_apart(&mut self) {
        let text = self.text.clone();
        let mut rest = text.as_str();
        let mut line = 1;
        let mut previous = ' ';
        while let Some(c) = rest.chars().next() {
            let after_word = previous.is_alphanumeric() || previous == '_';
            let (length, literal) = if rest.starts_with("//") {
                (rest.find('\n').unwrap_or(rest.len()), None)
            } else if rest.starts_with("/*") {
                (block_comment(rest), None)
            } else if let Some(hashes) = raw_string(rest).filter(|_| !after_word) {
                let open = rest.find('"').map_or(0, |i| i + 1);
                let close = format!("\"{}", "#".repeat(hashes));
                let inside = rest[open..].find(&close).unwrap_or(rest.len() - open);
                let end = (open + inside + close.len()).min(rest.len());
                (end, Some(&rest[open..open + inside]))
            } else if c == '"' {
                let inside = quoted(&rest[1..], '"');
                ((inside + 2).min(rest.len()), Some(&rest[1..1 + inside]))
            } else if let Some(length) = character(rest) {
                (length, None)
            } else {
                self.code.push(c);
                line += usize::from(c == '\n');
                previous = c;
                rest = &rest[c.len_utf8()..];
                continue;
            };
            if let Some(inside) = literal {
                let text = inside.to_string();
                self.strings.push(Literal { line, text });
            }
            let lines = rest[..length].matches('\n').count();
            self.code.push(' ');
            self.code.push_str(&"\n".repeat(lines));
            line += lines;
            previous = ' ';
            rest = &rest[length..];
        }
    }
}

/// Block comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// How many `#` the raw string has that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let inner = rest.trim_start_matches('#');
    inner.starts_with('"').then(|| rest.len() - inner.len())
}

/// Where the quoted text ends that `text` begins with.
fn quoted(text: &str, end: char) -> usize {
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == end {
            return i;
        }
    }
    text.len()
}

/// The length of the character literal that begins here; a lifetime is none.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        return Some(quoted(inside, '\'') + 2);
    }
    inside[first.len_utf8()..]
        .starts_with('\'')
        .then(|| first.len_utf8() + 2)
}

#[test]
fn comments_and_strings_are_told_from_code() {
    let text = r##"//! doc "not a string"
fn f<'a>(x: &'a str) -> char { // todo!()
    let s = "a \" // b";
    let r = r#"SELECT "x"
        FROM t"#; /* "c" /* nested */ todo!() */ let q = '"';
    let bar = 'x'; g(b"bytes", '\'', "é");
}
"##;
    let source = Source::new("src/x.rs", text);
    let strings: Vec<(usize, &str)> = source
        .strings
        .iter()
        .map(|l| (l.line, l.text.as_str()))
        .collect();
    let expected = [
        (3, "a \\\" // b"),
        (4, "SELECT \"x\"\n        FROM t"),
        (6, "bytes"),
        (6, "é"),
    ];
    assert_eq!(strings, expected);
    assert_eq!(source.code.lines().count(), text.lines().count());
    assert!(!source.code.contains("todo!"), "{}", source.code);
    assert!(
        source.code.contains("fn f<'a>(x: &'a str) -> char {"),
        "{}",
        source.code
    );
}
