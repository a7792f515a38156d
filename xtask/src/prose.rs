//! The language rules of STYLE.md that a program can check: comments, documents and names.

use crate::code::only_code;

/// Maximum length of a comment line, in columns.
const MAX_COLUMNS: usize = 100;

/// Words that start a headless sentence: it lacks the noun that the sentence is about.
const HEADLESS: &[&str] = &["what", "who", "whose", "whom", "where", "whether", "how", "of"];

/// Phrases that STYLE.md replaces, each with its replacement.
const PHRASES: &[(&str, &str)] = &[
    ("so many", "name the quantity: N, SIZE"),
    ("so much", "name the quantity: N, SIZE"),
    ("nobody", "name the process, thread or function"),
    ("somebody", "name the process, thread or function"),
    ("everybody", "name the processes, threads or functions"),
    ("anybody", "name the process, thread or function"),
    ("told", "reported, recorded, distinguished, passed"),
    ("tells", "reports, shows, has, distinguishes"),
    ("is no", "say what is the case"),
    ("are no", "say what is the case"),
    ("is none", "say what is the case"),
    ("are none", "say what is the case"),
    ("at hand", "thread cache, cached"),
    ("by turns", "interleaved"),
    ("in the mean", "on average"),
    ("give back", "release, unmap, trim"),
    ("gives back", "release, unmap, trim"),
    ("given back", "released, unmapped, trimmed"),
    ("gave back", "released, unmapped, trimmed"),
];

/// Names that many items would have.
const VAGUE_TYPES: &[&str] =
    &["Kind", "Row", "Found", "Told", "What", "Seen", "Known", "Held", "Options", "State", "Place"];
const VAGUE_CONSTANTS: &[&str] = &["MOST", "LEAST", "LONGEST", "SHORTEST", "LOOK"];

/// A line of text in comments and documents, with its line number (from 1).
struct Prose<'a> {
    line: usize,
    text: &'a str,
    /// True if the text begins a paragraph or a list item.
    begins: bool,
    /// Number of columns of the whole line.
    columns: usize,
    /// True for a row of a table, which cannot be wrapped.
    is_table: bool,
}

/// Returns the language problems of a file, as line and message.
pub(crate) fn check(path: &str, text: &str) -> Vec<(usize, String)> {
    let is_document = path.ends_with(".md");
    let mut problems = Vec::new();
    for prose in prose(path, text) {
        let mut report = |message: String| problems.push((prose.line, message));
        for sentence in sentences(&prose) {
            if let Some(word) = headless(sentence) {
                report(format!("a sentence opens with a headless `{word}`"));
            }
        }
        for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| contains(prose.text, phrase)) {
            report(format!("`{phrase}` ({instead})"));
        }
        if !is_document && !prose.is_table && prose.columns > MAX_COLUMNS {
            report(format!("a comment line of {} columns", prose.columns));
        }
    }
    problems
}

/// Returns the items of a Rust file whose names are too common to search for, as line and message.
/// `text` is the text of the file.
pub(crate) fn vague_names(text: &str) -> Vec<(usize, String)> {
    let code = only_code(text);
    let mut problems = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut words =
            line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty());
        let Some(keyword) =
            words.find(|word| !matches!(*word, "pub" | "crate" | "super" | "unsafe"))
        else {
            continue;
        };
        let vague = match keyword {
            "struct" | "enum" | "trait" | "type" | "union" => VAGUE_TYPES,
            "const" | "static" => VAGUE_CONSTANTS,
            _ => continue,
        };
        if let Some(name) = words.find(|word| *word != "mut").filter(|name| vague.contains(name)) {
            problems.push((number + 1, format!("`{name}` is not a name to search for")));
        }
    }
    problems
}

fn prose<'a>(path: &str, text: &'a str) -> Vec<Prose<'a>> {
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    match extension {
        "rs" | "c" | "h" | "cpp" => comments(text, extension == "rs"),
        "md" => paragraphs(text),
        _ => Vec::new(),
    }
}

fn comments(text: &str, is_rust: bool) -> Vec<Prose<'_>> {
    let mut found = Vec::new();
    let (mut in_example, mut in_paragraph) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = comment_of(line.trim(), is_rust) else {
            (in_example, in_paragraph) = (false, false);
            continue;
        };
        if comment.starts_with("```") {
            in_example = !in_example;
            in_paragraph = false;
        } else if !in_example {
            let begins = !in_paragraph || starts_item(comment);
            let columns = line.chars().count();
            let (text, is_table) = (without_marker(comment), comment.starts_with('|'));
            found.push(Prose { line: number + 1, text, begins, columns, is_table });
            in_paragraph = !comment.is_empty() && !comment.starts_with('#');
        }
    }
    found
}

/// Returns the words of a comment line; `None` if the line is code.
fn comment_of(line: &str, is_rust: bool) -> Option<&str> {
    let markers: &[&str] =
        if is_rust { &["///", "//!", "//"] } else { &["/**", "/*", "*/", "//", "*"] };
    let rest = markers.iter().find_map(|marker| line.strip_prefix(marker))?;
    // `*name = value;` is an assignment.
    let is_code =
        !is_rust && line.starts_with('*') && rest.starts_with(|c: char| !" /".contains(c));
    (!is_code).then(|| rest.trim().trim_end_matches("*/").trim_end())
}

fn paragraphs(text: &str) -> Vec<Prose<'_>> {
    let mut found = Vec::new();
    let (mut in_example, mut in_paragraph) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let words = line.trim();
        if words.starts_with("```") {
            in_example = !in_example;
            in_paragraph = false;
        } else if in_example || line.starts_with("    ") {
            in_paragraph = false;
        } else {
            let begins = !in_paragraph || starts_item(words);
            let columns = line.chars().count();
            let (text, is_table) = (without_marker(words), words.starts_with('|'));
            found.push(Prose { line: number + 1, text, begins, columns, is_table });
            in_paragraph = !words.is_empty() && !words.starts_with('#');
        }
    }
    found
}

fn starts_item(text: &str) -> bool {
    ["- ", "* ", "# ", "## ", "### ", "| "].iter().any(|marker| text.starts_with(marker))
}

fn without_marker(text: &str) -> &str {
    text.trim_start_matches(['#', '-', '|', ' '])
}

/// Returns the sentences that begin in a line.
fn sentences<'a>(prose: &Prose<'a>) -> impl Iterator<Item = &'a str> {
    let text = prose.text;
    let first = prose.begins.then_some(text);
    let others = text.match_indices(". ").map(move |(at, dot)| &text[at + dot.len()..]);
    first.into_iter().chain(others)
}

/// Returns the word that opens `sentence`, if the sentence is headless. Questions are not headless.
fn headless(sentence: &str) -> Option<&'static str> {
    let word = sentence.split(|c: char| !c.is_alphabetic()).next()?.to_lowercase();
    let word = HEADLESS.iter().find(|headless| **headless == word)?;
    (!sentence.contains('?')).then_some(*word)
}

/// Returns true if `text` contains `phrase` as whole words, outside of backticks.
fn contains(text: &str, phrase: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.match_indices(phrase).any(|(at, _)| {
        let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '-');
        let is_code = lower[..at].matches('`').count() % 2 == 1;
        !is_code
            && is_edge(lower[..at].chars().next_back())
            && is_edge(lower[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the messages for a Rust file with this comment.
    fn messages(comment: &str) -> Vec<String> {
        check("a.rs", comment).into_iter().map(|(_, message)| message).collect()
    }

    #[test]
    fn headless_openings_are_reported() {
        for comment in
            ["/// Whether it is mapped.", "// Right. How many pages.", "//! - what is free"]
        {
            assert_eq!(messages(comment).len(), 1, "{comment}");
        }
        for comment in
            ["/// True if the page\n/// of a file is mapped.", "// Why? Where to?", "fn of() {}"]
        {
            assert_eq!(messages(comment), Vec::<String>::new(), "{comment}");
        }
    }

    #[test]
    fn a_line_that_goes_on_does_not_open_a_sentence() {
        assert!(messages("/// The number\n/// of pages.").is_empty());
        assert_eq!(messages("/// The number.\n///\n/// Of pages.").len(), 1);
    }

    #[test]
    fn examples_are_code() {
        assert!(messages("/// ```\n/// how(so_many);\n/// ```").is_empty());
        assert!(check("a.md", "```\nhow many\n```\n    whether\n").is_empty());
        assert_eq!(check("a.md", "# How it works\n")[0].0, 1);
    }

    #[test]
    fn phrases_of_the_table_are_reported_as_whole_words() {
        assert_eq!(messages("/// Every so many bytes; nobody reads.").len(), 2);
        assert!(messages("/// The sum is not `is no`, there is nothing.").is_empty());
    }

    #[test]
    fn long_comment_lines_are_reported_but_long_lines_of_documents_are_not() {
        let long = format!("// {}", "word ".repeat(30));
        assert_eq!(messages(&long), ["a comment line of 153 columns"]);
        assert!(check("a.md", &long).is_empty());
    }

    #[test]
    fn vague_names_are_reported_where_they_are_defined() {
        let code = "pub(crate) enum Kind {}\nstatic mut MOST: u8 = 0;\nstruct PoolKind(Kind);\n// enum Row\n";
        let lines: Vec<usize> = vague_names(code).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 2]);
    }
}
