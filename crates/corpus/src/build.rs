//! Compiles the programs of the corpus into `target/corpus/build`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use crate::labels::{Label, SourceLanguage};

/// Number that makes the name of the next file to be built unique within this process.
static NEXT_PARTIAL: AtomicUsize = AtomicUsize::new(0);

/// The command line that starts a program: the program and its first arguments.
pub type CommandLine = Vec<String>;

/// Builds the program of `label`, unless the built file is newer than its sources, and returns its
/// command line. Returns `None` if its compiler or interpreter is missing.
///
/// # Errors
///
/// If the program does not compile, or compiles with warnings.
pub fn build(label: &Label, folder: &Path) -> Result<Option<CommandLine>> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let built = folder.join(&label.name);
    if let Some(tool) = missing_tool(label.language) {
        eprintln!("{}: {tool} is not installed", label.name);
        return Ok(None);
    }
    // Another thread or process may build or start the same program. So the compiler writes to
    // another path, and a rename replaces the built file only when the new file is complete.
    let number = NEXT_PARTIAL.fetch_add(1, Ordering::Relaxed);
    let partial = folder.join(format!("{}.{}-{number}", label.name, std::process::id()));
    let Some(mut compiler) = compiler(label, &partial) else {
        return Ok(Some(interpreted(label)));
    };
    if !is_current(label, &built)? {
        compile(&mut compiler, label)?;
        replace(&partial, &built)?;
    }
    Ok(Some(match label.language {
        SourceLanguage::Java => java(label, &built),
        _ => vec![built.display().to_string()],
    }))
}

/// Renames `partial` to `built`. For Java, both are folders of classes.
fn replace(partial: &Path, built: &Path) -> Result<()> {
    if built.is_dir() {
        fs::remove_dir_all(built).with_context(|| built.display().to_string())?;
    }
    fs::rename(partial, built).with_context(|| built.display().to_string())
}

fn missing_tool(language: SourceLanguage) -> Option<&'static str> {
    let tools: &[&str] = match language {
        SourceLanguage::C => &["cc"],
        SourceLanguage::Cpp => &["c++"],
        SourceLanguage::Rust => &["rustc"],
        SourceLanguage::Go => &["go"],
        SourceLanguage::Java => &["javac", "java"],
        SourceLanguage::Python => &["python3"],
        SourceLanguage::Node => &["node"],
        SourceLanguage::Shell => &["bash"],
    };
    tools.iter().copied().find(|tool| !is_installed(tool))
}

/// Returns true if a program of this name is on the search path.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the command that compiles `label` to `built`; `None` for an interpreted language.
fn compiler(label: &Label, built: &Path) -> Option<Command> {
    let (program, flags): (&str, &[&str]) = match label.language {
        SourceLanguage::C => {
            ("cc", &["-g", "-O1", "-pthread", "-Wall", "-Wextra", "-Wno-return-type"])
        }
        SourceLanguage::Cpp => (
            "c++",
            &["-g", "-O1", "-pthread", "-std=c++17", "-Wall", "-Wextra", "-Wno-return-type"],
        ),
        SourceLanguage::Rust => ("rustc", &["-g", "-Copt-level=1", "--edition=2021"]),
        SourceLanguage::Go => ("go", &["build"]),
        SourceLanguage::Java => ("javac", &["-g"]),
        SourceLanguage::Python | SourceLanguage::Node | SourceLanguage::Shell => return None,
    };
    let output = if label.language == SourceLanguage::Java { "-d" } else { "-o" };
    let mut command = Command::new(program);
    command.args(flags).arg(output).arg(built).arg(&label.source).args(&label.build);
    Some(command)
}

/// Returns true if `built` is newer than the source and the headers beside it.
fn is_current(label: &Label, built: &Path) -> Result<bool> {
    let Ok(time) = fs::metadata(built).and_then(|found| found.modified()) else {
        return Ok(false);
    };
    let folder = label.source.parent().context("the source is in no folder")?;
    let mut sources = vec![label.source.clone()];
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            sources.push(path);
        }
    }
    for source in sources {
        if fs::metadata(&source)?.modified()? > time {
            return Ok(false);
        }
    }
    Ok(true)
}

fn compile(compiler: &mut Command, label: &Label) -> Result<()> {
    let output = compiler
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("the compiler of {}", label.source.display()))?;
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} does not compile:\n{messages}", label.source.display());
    if !messages.is_empty() && matches!(label.language, SourceLanguage::C | SourceLanguage::Cpp) {
        bail!("{} compiles with warnings:\n{messages}", label.source.display());
    }
    Ok(())
}

fn interpreted(label: &Label) -> CommandLine {
    let interpreter = match label.language {
        SourceLanguage::Node => "node",
        SourceLanguage::Shell => "bash",
        _ => "python3",
    };
    let mut line = vec![interpreter.to_owned()];
    line.extend(label.build.iter().cloned());
    line.push(label.source.display().to_string());
    line
}

/// Returns the command line that starts the class with the name of the source file.
fn java(label: &Label, built: &Path) -> CommandLine {
    let mut line = vec!["java".to_owned(), "-cp".to_owned(), built.display().to_string()];
    line.push(label.name.clone());
    line
}

/// Returns the folder for built programs, and for the files that the programs write.
pub fn work_folder() -> PathBuf {
    crate::root().join("target/corpus")
}
