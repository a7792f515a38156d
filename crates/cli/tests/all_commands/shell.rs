//! `completions` and `man` against the help of every command, as shells and `man` read them.

use crate::fixture;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use fixture::{pagewise, tool};

/// A command, as the words behind `pagewise`, and the long options of its help.
struct HelpPage {
    command: Vec<String>,
    options: BTreeSet<String>,
}

/// Help of all commands, also of those inside others.
static HELP_PAGES: LazyLock<Vec<HelpPage>> = LazyLock::new(help_pages);

fn help_pages() -> Vec<HelpPage> {
    let mut pages = Vec::new();
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let help = pagewise(&[&command[..], &["--help".to_owned()]].concat());
        assert!(help.status.success(), "{command:?}");
        let help = String::from_utf8(help.stdout).unwrap();
        for inner in subcommands(&help) {
            commands.push([&command[..], &[inner]].concat());
        }
        pages.push(HelpPage { command, options: options(&help) });
    }
    // A parser that misses the lists of commands finds one page, and no option.
    assert!(pages.len() > 30, "{} commands", pages.len());
    assert!(pages.iter().map(|page| page.options.len()).sum::<usize>() > 200);
    pages
}

/// Names in the lists of commands: below headings, before the options, indented by two spaces.
fn subcommands(help: &str) -> Vec<String> {
    if !help.contains("<COMMAND>\n") {
        return Vec::new();
    }
    let lists = help.split("<COMMAND>\n").nth(1).unwrap().split("\nOptions:").next().unwrap();
    let names = lists.lines().filter_map(|line| line.strip_prefix("  "));
    let names = names.filter(|line| line.starts_with(|first: char| first.is_ascii_lowercase()));
    let names = names.map(|line| line.split(' ').next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

/// The long options that a help explains: `  -o, --output <FILE>`.
fn options(help: &str) -> BTreeSet<String> {
    // Descriptions have a deeper indent, and may begin with the name of another option.
    const DESCRIPTION: &str = "          ";
    let lines = help.lines().filter(|line| !line.starts_with(DESCRIPTION));
    let words = lines.filter_map(|line| {
        let line = line.trim_start();
        let line =
            line.split_once(", ").filter(|(short, _)| short.len() == 2).map_or(line, |l| l.1);
        line.strip_prefix("--")?.split([' ', '=', '[']).next()
    });
    words.filter(|name| !name.is_empty()).map(|name| format!("--{name}")).collect()
}

#[test]
fn every_command_has_a_manual_page_with_its_options_that_man_renders_without_warnings() {
    if tool("man", &["--version"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(pagewise(&["man", "--dir", folder.path().to_str().unwrap()]).status.success());
    for HelpPage { command, options } in HELP_PAGES.iter() {
        let name = [&["pagewise".to_owned()], &command[..]].concat().join("-");
        let text = rendered(&folder.path().join(format!("{name}.1")));
        assert!(text.contains("NAME\n") && text.contains("SYNOPSIS\n"), "{name}: {text}");
        let words: BTreeSet<&str> =
            text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
        for option in options {
            assert!(words.contains(option.as_str()), "{name} lacks {option}: {text}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), HELP_PAGES.len());

    let one = folder.path().join("printed");
    fs::write(&one, pagewise(&["man"]).stdout).unwrap();
    assert!(rendered(&one).contains("pagewise"));
}

/// A page as plain text, without hyphens at line ends. Any warning of groff fails the test.
fn rendered(page: &Path) -> String {
    let mut man = Command::new("man");
    man.args(["--local-file", "--warnings=w", "--no-hyphenation", "--no-justification"]);
    let output = man.arg(page).env("LC_ALL", "C").env("MANWIDTH", "100").output().unwrap();
    let warnings = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bash_completes_every_command_and_option_of_the_help() {
    let mut script = completions("bash");
    let pages = &*HELP_PAGES;
    for HelpPage { command, .. } in pages {
        let words = command.join(" ");
        let last = command.len() + 1;
        // First the completions of a hyphen, then those of an empty word.
        for start in ["-", ""] {
            writeln!(script, "COMP_WORDS=(pagewise {words} '{start}') COMP_CWORD={last}").unwrap();
            writeln!(script, "COMPREPLY=(); _pagewise pagewise '{start}' ''").unwrap();
            writeln!(script, "echo \"${{COMPREPLY[*]}}\"").unwrap();
        }
    }
    // An argument may not be as long as the script.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &script).unwrap();
    let Some(replies) = tool("bash", &[file.path().to_str().unwrap()]) else { return };
    let replies: Vec<BTreeSet<&str>> =
        replies.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(replies.len(), 2 * pages.len());
    for (page, reply) in pages.iter().zip(replies.chunks(2)) {
        for option in &page.options {
            assert!(reply[0].contains(option.as_str()), "{:?} lacks {option}", page.command);
        }
        if let Some((name, outer)) = page.command.split_last() {
            let outer = pages.iter().position(|page| page.command == outer).unwrap();
            assert!(replies[2 * outer + 1].contains(name.as_str()), "{:?}", page.command);
        }
    }
}

#[test]
fn zsh_reads_the_completions_which_name_every_option() {
    let script = completions("zsh");
    for HelpPage { command, options } in HELP_PAGES.iter() {
        for option in options {
            let spelled = ["=[", "[", "=-[", "=:"].map(|end| format!("{option}{end}"));
            assert!(spelled.iter().any(|it| script.contains(it)), "{command:?} lacks {option}");
        }
    }
    if tool("zsh", &["--version"]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("_pagewise");
    fs::write(&path, script).unwrap();
    let read = Command::new("zsh").arg("-n").arg(&path).output().unwrap();
    assert!(read.status.success() && read.stderr.is_empty(), "{read:?}");
}

fn completions(shell: &str) -> String {
    let output = pagewise(&["completions", shell]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
