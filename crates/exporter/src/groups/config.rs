//! Parses process-exporter's configuration file (YAML) to rules.

use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::template::{NameTemplate, TemplateError};
use super::{ExeRule, GroupRule, GroupRules, base};

/// Maximum size of a compiled regular expression in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Reason why a configuration file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum GroupConfigError {
    /// The file is not YAML, or does not have the expected structure.
    #[error("not in the format of process-exporter: {0}")]
    Yaml(#[from] serde_norway::Error),
    /// The rule with this index has no matcher, so it would match every process.
    #[error("process_names[{0}]: expected comm, exe or cmdline, found none of them")]
    NoMatcher(usize),
    /// A regular expression is invalid.
    #[error("process_names[{index}]: cmdline: {error}")]
    Regex {
        /// Index of the rule.
        index: usize,
        /// Error of the regular expression.
        error: Box<regex::Error>,
    },
    /// The name of a group is invalid.
    #[error("process_names[{index}]: name: {error}")]
    Template {
        /// Index of the rule.
        index: usize,
        /// Error of the name.
        error: TemplateError,
    },
}

/// Structure of the file. Other keys are ignored, as in process-exporter.
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
    /// Parses a configuration file of process-exporter.
    ///
    /// # Errors
    /// [`GroupConfigError`] contains the index of the rule.
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

/// Parses the programs of a rule. If several have the same last component, only the last one
/// counts, as in process-exporter: `[sh, /bin/sh]` is equal to `[/bin/sh]`.
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
