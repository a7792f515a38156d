//! Every console block of the README, and every transcript of this folder, shows the output of
//! pagewise.
//!
//! A line with `$ ` is a command. If the exit status is not 0, the next line is `? ` and the
//! status. The lines below are the output, in which `...` stands for any lines and `[..]` for any
//! part of a line. Blocks that start a program or read a live process differ from run to run: they
//! have no `$`, and are not checked.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// A command of a document, and its result in the document.
struct ShownCommand {
    words: Vec<String>,
    status: i32,
    output: Vec<String>,
}

impl ShownCommand {
    /// Returns all commands of a document, in code blocks whose language is `console` or missing.
    fn all(document: &str) -> Vec<ShownCommand> {
        let mut commands: Vec<ShownCommand> = Vec::new();
        // `Some(true)` inside a block of commands, `Some(false)` inside a block of another
        // language.
        let mut block = None;
        let mut has_command = false;
        for line in document.lines() {
            if let Some(language) = line.strip_prefix("```") {
                block = block.is_none().then_some(matches!(language, "" | "console"));
                has_command = false;
                continue;
            }
            if block != Some(true) {
                continue;
            }
            if let Some(command) = line.strip_prefix("$ ") {
                let words = shlex::split(command).unwrap();
                commands.push(ShownCommand { words, status: 0, output: Vec::new() });
                has_command = true;
            } else if let Some(last) = commands.last_mut().filter(|_| has_command) {
                match line.strip_prefix("? ").filter(|_| last.output.is_empty()) {
                    Some(status) => last.status = status.parse().unwrap(),
                    None => last.output.push(line.to_owned()),
                }
            }
        }
        commands
    }

    /// Runs the command, and compares its result with the document.
    fn check(&self, root: &Path) {
        let (program, arguments) = self.words.split_first().unwrap();
        assert_eq!(program, "pagewise");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pagewise"));
        command.args(arguments).env("NO_COLOR", "1").current_dir(root);
        let output = command.output().unwrap();
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let shown = self.output.join("\n");
        assert!(
            holds(&lines_of(&shown), &lines_of(&printed)),
            "{:?} prints:\n{printed}\nThe document shows:\n{shown}",
            self.words
        );
        assert_eq!(output.status.code(), Some(self.status), "{:?}", self.words);
    }
}

/// Returns the lines of a text, without empty lines at its end.
fn lines_of(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

/// Returns true if the printed lines are those that a document shows.
fn holds(shown: &[&str], printed: &[&str]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((&"...", shown)) => {
            (0..=printed.len()).any(|skipped| holds(shown, &printed[skipped..]))
        }
        Some((line, shown)) => printed
            .split_first()
            .is_some_and(|(first, printed)| line_holds(line, first) && holds(shown, printed)),
    }
}

/// Returns true if a printed line is the one that a document shows.
fn line_holds(shown: &str, printed: &str) -> bool {
    let Some((start, end)) = shown.split_once("[..]") else { return shown == printed };
    printed.strip_prefix(start).is_some_and(|rest| {
        let mut starts = (0..=rest.len()).filter(|at| rest.is_char_boundary(*at));
        starts.any(|at| line_holds(end, &rest[at..]))
    })
}

#[test]
fn documents_show_what_pagewise_prints() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_folder.join("../..");
    let transcripts = fs::read_dir(crate_folder.join("tests/transcripts")).unwrap();
    let transcripts = transcripts.map(|entry| entry.unwrap().path());
    let transcripts = transcripts.filter(|path| path.extension().is_some_and(|it| it == "md"));
    for document in transcripts.chain([root.join("README.md")]) {
        let commands = ShownCommand::all(&fs::read_to_string(&document).unwrap());
        assert!(!commands.is_empty(), "{} has no command", document.display());
        commands.iter().for_each(|command| command.check(&root));
    }
}

#[test]
fn another_output_than_the_shown_one_is_noticed() {
    assert!(holds(&["a [..]c", "...", "e"], &["a bc", "d", "d", "e"]));
    assert!(holds(&["..."], &[]));
    assert!(!holds(&["a [..]c", "...", "e"], &["a bc", "d", "d"]));
    assert!(!holds(&["a"], &["a", "b"]));
    assert!(!holds(&["a[..]"], &["b"]));
    let shown = ShownCommand::all("```console\n$ a 'b c'\n? 2\nd\n```\n```c\n$ e\n```\n");
    assert_eq!((shown.len(), shown[0].words.len(), shown[0].status), (1, 2, 2));
    assert_eq!(shown[0].output, ["d"]);
}
