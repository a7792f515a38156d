//! Rust source as tidy sees it: the text with comments, strings and test modules blanked, so
//! that a rule can search for a word and find code only. Lines and columns stay where they were.

/// Returns `text` with every comment, string and character literal replaced by spaces.
pub(crate) fn only_code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_len(bytes, at);
        if end == at {
            at += identifier_len(&bytes[at..]).max(1);
        } else {
            blank(&mut out[at..end]);
            at = end;
        }
    }
    String::from_utf8(out).expect("whole literals were replaced by ASCII spaces")
}

/// Returns `code` (of [`only_code`]) with every item under `#[cfg(test)]` blanked.
pub(crate) fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(test)]") {
        let start = from + found;
        let end = item_end(code, start);
        blank(&mut out[start..end]);
        from = end;
    }
    String::from_utf8(out).expect("the item was replaced by ASCII spaces")
}

/// Returns the names of the modules in separate files that `code` (of [`only_code`]) declares for
/// tests only.
pub(crate) fn test_modules(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("#[cfg(test)]").filter_map(|(at, attribute)| {
        let item = code[at + attribute.len()..item_end(code, at)].trim();
        let item = item.strip_prefix("pub(crate)").unwrap_or(item).trim_start();
        item.strip_prefix("mod ")?.strip_suffix(';')
    })
}

/// Returns the line, counted from 1, that contains byte `at` of `text`.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1
}

/// Returns every path in `code` that starts with `krate`, with `{a, b::c}` expanded, and the byte
/// offset of the path.
pub(crate) fn paths_of(krate: &str, code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices(krate) {
        let before = code[..at].chars().next_back();
        let rest = code[at + krate.len()..].trim_start();
        let after = code[at + krate.len()..].chars().next();
        if before.is_some_and(is_word) || after.is_some_and(is_word) || !rest.starts_with("::") {
            continue;
        }
        expand(krate.to_owned(), rest, &mut |path| paths.push((at, path)));
    }
    paths
}

/// Follows `::a::{b, c}` in `rest`, reports each full path, and returns the text after it.
fn expand<'a>(prefix: String, rest: &'a str, report: &mut dyn FnMut(String)) -> &'a str {
    let Some(rest) = rest.trim_start().strip_prefix("::") else {
        report(prefix);
        return rest;
    };
    let rest = rest.trim_start();
    let Some(mut rest) = rest.strip_prefix('{') else {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        return expand(format!("{prefix}::{}", &rest[..word]), &rest[word..], report);
    };
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if word == 0 {
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        rest = expand(format!("{prefix}::{}", &rest[..word]), &rest[word..], report).trim_start();
        if let Some(renamed) = rest.strip_prefix("as ") {
            rest = renamed.trim_start().trim_start_matches(is_word);
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '*'
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// Returns the end of the item that begins at `start`: its `;`, or the brace that closes its body.
fn item_end(code: &str, start: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Returns the length of the comment, string or character literal that begins at `at`; 0 if none
/// does.
fn literal_len(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_len(rest),
        [b'"', ..] => quoted_len(rest, b'"'),
        [b'b' | b'c', b'"', ..] => 1 + quoted_len(&rest[1..], b'"'),
        [b'b', b'\'', ..] => 1 + quoted_len(&rest[1..], b'\''),
        [b'r', b'"' | b'#', ..] => raw_len(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] => raw_len(rest, 2),
        [b'\'', ..] => char_len(rest),
        _ => 0,
    }
}

fn identifier_len(rest: &[u8]) -> usize {
    rest.iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).unwrap_or(rest.len())
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of a raw string such as `r#"..."#`, with any number of hashes; 0 for a raw
/// identifier such as `r#type`.
fn raw_len(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&b| b == b'#').count();
    if rest.get(prefix + hashes) != Some(&b'"') {
        return 0;
    }
    let close: Vec<u8> = [b'"'].into_iter().chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = prefix + hashes + 1;
    let end = rest[body..].windows(close.len()).position(|window| window == close);
    end.map_or(rest.len(), |end| body + end + close.len())
}

/// Returns the length of a character literal such as `'x'` or `'\n'`; 0 for a lifetime.
fn char_len(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return quoted_len(rest, b'\'');
    }
    let text = String::from_utf8_lossy(&rest[1..rest.len().min(6)]);
    let width = text.chars().next().map_or(0, char::len_utf8);
    if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text = "let a = \"x // y\"; // z\nlet b = 'q'; /* 1 /* 2 */\n3 */ let c = r#\"w\"w\"#;";
        let code = only_code(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.split_whitespace().collect::<String>(), "leta=;letb=;letc=;");
        assert_eq!(line_of(&code, code.find("let c").unwrap()), 3);
    }

    #[test]
    fn a_lifetime_and_a_raw_identifier_are_code() {
        let text = "fn f<'a>(r#type: &'a str) {}";
        assert_eq!(only_code(text), text);
    }

    #[test]
    fn an_identifier_that_ends_in_b_does_not_open_a_byte_string() {
        assert_eq!(only_code("grab\"x\" + 1").trim_end(), "grab    + 1");
    }

    #[test]
    fn escapes_do_not_end_a_literal() {
        assert_eq!(only_code(r#"("\"", '\'', b'\\', "é", 'é')"#).replace(' ', ""), "(,,,,)");
    }

    #[test]
    fn test_modules_are_blanked_and_what_follows_is_not() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { c } }\nfn d() {}";
        let kept = without_tests(code);
        assert!(kept.contains("fn a") && kept.contains("fn d") && !kept.contains("fn b"), "{kept}");
        let kept = without_tests("#[cfg(test)]\nuse x::y;\nuse z;");
        assert_eq!(kept.trim(), "use z;");
    }

    #[test]
    fn a_test_module_in_a_file_of_its_own_is_named() {
        let code = "#[cfg(test)]\nmod sample;\nmod real;\n#[cfg(test)]\nmod tests { mod inner; }";
        assert_eq!(test_modules(code).collect::<Vec<_>>(), ["sample"]);
    }

    #[test]
    fn grouped_imports_are_spelled_out() {
        let code = "use std::{fs::{self, File as F}, io};\nlet x = std::time::Instant::now();";
        let paths: Vec<String> = paths_of("std", code).into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, ["std::fs::self", "std::fs::File", "std::io", "std::time::Instant::now"]);
    }
}
