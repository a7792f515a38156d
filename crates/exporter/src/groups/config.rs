//! process-exporter's configuration file: YAML to rules.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::template::{NameTemplate, TemplateError};
use super::{ExeRule, GroupRule, GroupRules, base};

/// Bytes that a compiled regular expression may take.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Why a configuration file was refused.
#[derive(Debug, thiserror::Error)]
pub enum GroupConfigError {
    /// Not YAML, or not in the form of the file.
    #[error("not in the format of process-exporter: {0}")]
    Yaml(#[from] serde_norway::Error),
    /// A rule that would match every process by mistake.
    #[error("process_names[{0}]: expected comm, exe or cmdline, found none of them")]
    NoMatcher(usize),
    /// A regular expression.
    #[error("process_names[{index}]: cmdline: {error}")]
    Regex {
        /// Index of the rule.
        index: usize,
        /// The error.
        error: Box<regex::Error>,
    },
    /// A name.
    #[error("process_names[{index}]: name: {error}")]
    Template {
        /// Index of the rule.
        index: usize,
        /// The error.
        error: TemplateError,
    },
}

/// The file. process-exporter ignores other keys, so this reader does too.
#[derive(Debug, Deserialize)]
struct ConfigFile {
    #[serde(default)]
    process_names: Option<Vec<ConfigRule>>,
}

#[derive(Debug, Deserialize)]
struct ConfigRule {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    comm: Option<Vec<String>>,
    #[serde(default)]
    exe: Option<Vec<String>>,
    #[serde(default)]
    cmdline: Option<Vec<String>>,
}

impl GroupRules {
    /// Reads a configuration file of process-exporter.
    ///
    /// # Errors
    /// [`GroupConfigError`] names the rule.
    pub fn parse(text: &str) -> Result<GroupRules, GroupConfigError> {
        let file: ConfigFile = serde_norway::from_str(text)?;
        let rules = file.process_names.unwrap_or_default();
        let rules = rules.into_iter().enumerate().map(|(index, rule)| read_rule(index, rule));
        Ok(GroupRules {
            rules: rules.collect::<Result<_, _>>()?,
            with_children: true,
            folder_of: |_| None,
        })
    }
}

fn read_rule(index: usize, rule: ConfigRule) -> Result<GroupRule, GroupConfigError> {
    if rule.comm.is_none() && rule.exe.is_none() && rule.cmdline.is_none() {
        return Err(GroupConfigError::NoMatcher(index));
    }
    let name = rule.name.filter(|it| !it.is_empty()).unwrap_or_else(|| "{{.ExeBase}}".into());
    let name =
        NameTemplate::parse(&name).map_err(|error| GroupConfigError::Template { index, error })?;
    let compile = |text: String| {
        let compiled: Result<Regex, _> =
            RegexBuilder::new(&text).size_limit(MAX_REGEX_BYTES).build();
        compiled.map_err(|error| GroupConfigError::Regex { index, error: Box::new(error) })
    };
    let command = rule.cmdline.map(|list| list.into_iter().map(compile).collect());
    let command = command.transpose()?;
    let exe = rule.exe.map(read_programs);
    Ok(GroupRule { name, comm: rule.comm, exe, command })
}

/// The programs of a rule. process-exporter keeps the last one of several with the same last
/// component: `[sh, /bin/sh]` is `/bin/sh` alone.
fn read_programs(list: Vec<String>) -> Vec<ExeRule> {
    let mut programs: Vec<ExeRule> = Vec::new();
    for program in list.into_iter().map(read_exe) {
        programs.retain(|it| it.base != program.base);
        programs.push(program);
    }
    programs
}

fn read_exe(text: String) -> ExeRule {
    if !text.contains('/') {
        return ExeRule { base: text, path: None };
    }
    let base = String::from_utf8_lossy(base(text.as_bytes())).into_owned();
    ExeRule { base, path: Some(text) }
}
