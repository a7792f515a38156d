//! Spelling and grammar: `typos` on every file, `harper` on the documents and the help.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tidy;

/// Rules of harper that are right nearly always. Most reports of the other rules are about units,
/// names, abbreviations and lists, and are wrong.
const RULES: &[&str] = &[
    "AllowTo",
    "AnA",
    "AnAnother",
    "ComprisesOf",
    "DespiteOf",
    "DidPast",
    "Didnt",
    "DoubleModal",
    "HavePronoun",
    "IsBeenAuxSequence",
    "ItsPossessive",
    "ModalBeAdjective",
    "ModalOf",
    "MoreBetter",
    "NotBeAfterNot",
    "PronounAre",
    "PronounInflectionBe",
    "PronounVerbAgreement",
    "QuantifierNeedsOf",
    "SimplePastToPastParticiple",
    "TheAnother",
    "TheTheToThatThe",
    "TheirToThere",
    "ThereIsAgreement",
    "ThereOwn",
    "ThereToTheir",
    "ThesesThese",
    "TooTo",
    "WereWhere",
    "WillNonLemma",
    "WithoutOut",
    "WrongApostrophe",
];

/// Rule for repeated words, for documents only. In help, an example may repeat the last word of the
/// sentence before it.
const REPEATED: &str = "RepeatedWords";

/// Runs both programs. One that is not installed is skipped, unless `required`.
pub(crate) fn run(required: bool) -> Result<()> {
    let root = crate::root()?;
    let paths: Vec<String> = tidy::files(&root)?.into_iter().map(|file| file.path).collect();
    let select = |wanted: fn(&str) -> bool| {
        paths.iter().map(String::as_str).filter(|path| wanted(path)).collect::<Vec<_>>()
    };
    let help = select(|path| path.starts_with("crates/cli/src/") && path.ends_with(".rs"));
    let documents = select(|path| path.ends_with(".md"));

    check(&root, "typos", &["--format", "brief"], required)?;
    check(&root, "harper", &grammar(&RULES.join(","), &help), required)?;
    let rules = format!("{},{REPEATED}", RULES.join(","));
    check(&root, "harper", &grammar(&rules, &documents), required)
}

/// The arguments with which harper checks `files`.
fn grammar<'a>(rules: &'a str, files: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["--no-color", "lint", "--quiet", "--format", "compact"];
    arguments.extend(["--only", rules]);
    arguments.extend(files);
    arguments
}

fn check(root: &Path, program: &str, arguments: &[&str], required: bool) -> Result<()> {
    if Command::new(program).arg("--version").output().is_err() {
        ensure!(!required, "`{program}` is not installed");
        println!("skipped: `{program}` is not installed");
        return Ok(());
    }
    let status = Command::new(program).current_dir(root).args(arguments).status();
    let status = status.with_context(|| program.to_owned())?;
    ensure!(status.success(), "{program}: words to mend");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_an_error_only_where_it_is_required() {
        let root = Path::new("/");
        assert!(check(root, "pagewise-has-no-such-program", &[], false).is_ok());
        let error = check(root, "pagewise-has-no-such-program", &[], true).unwrap_err();
        assert_eq!(error.to_string(), "`pagewise-has-no-such-program` is not installed");
    }

    #[test]
    fn a_program_that_finds_something_fails_the_check() {
        assert!(check(Path::new("/"), "true", &[], true).is_ok());
        assert!(check(Path::new("/"), "false", &[], true).is_err());
    }
}
