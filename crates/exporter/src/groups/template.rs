//! Templates for names of groups: the part of Go's template language that configuration files of
//! process-exporter use, which is fields and `index`.

use pagewise_model::civil::CivilTime;

use super::{ProcessFacts, base};

/// A template with fields: `{{.ExeBase}}:{{.Matches.Port}}`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NameTemplate(Vec<TemplatePart>);

#[derive(Clone, Debug, PartialEq)]
enum TemplatePart {
    Text(String),
    Field(TemplateField),
}

#[derive(Clone, Debug, PartialEq)]
enum TemplateField {
    Comm,
    ExeBase,
    ExeFull,
    Username,
    Pid,
    StartTime,
    Cwd,
    Cgroups,
    Cgroup(usize),
    Matches,
    /// `.Matches.NAME`: becomes `<no value>` if the regular expression has no group NAME.
    Match(String),
    /// `index .Matches "NAME"`: becomes empty if the regular expression has no group NAME.
    MatchOrEmpty(String),
}

/// Reason why a template was rejected.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The action is not in the supported part of the template language.
    #[error(
        "expected a field such as .Comm, .ExeBase, .ExeFull, .Username, .PID, .StartTime, .Cwd, \
         .Cgroups, .Matches or .Matches.NAME, found {{{{{0}}}}}"
    )]
    Action(String),
    /// A `{{` has no matching `}}`.
    #[error("expected }}}} after {{{{{0}")]
    Open(String),
}

impl NameTemplate {
    /// Parses a template.
    pub(super) fn parse(text: &str) -> Result<NameTemplate, TemplateError> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (action, next) =
                after.split_once("}}").ok_or_else(|| TemplateError::Open(after.into()))?;
            // `{{- x -}}` also removes the white space around the action.
            let (action, before) = match action.strip_prefix("- ") {
                Some(action) => (action, before.trim_end()),
                None => (action, before),
            };
            let (action, next) = match action.strip_suffix(" -") {
                Some(action) => (action, next.trim_start()),
                None => (action, next),
            };
            parts.push(TemplatePart::Text(before.into()));
            parts.push(TemplatePart::Field(read_field(action)?));
            rest = next;
        }
        parts.push(TemplatePart::Text(rest.into()));
        Ok(NameTemplate(parts))
    }

    /// Computes the name of a process's group.
    pub(super) fn render(&self, facts: &ProcessFacts<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Field(field) => field.render(facts, &mut out),
            }
        }
        out
    }
}

fn read_field(action: &str) -> Result<TemplateField, TemplateError> {
    let refuse = || TemplateError::Action(action.into());
    let words: Vec<&str> = action.split_whitespace().collect();
    match words[..] {
        [".Comm"] => Ok(TemplateField::Comm),
        [".ExeBase"] => Ok(TemplateField::ExeBase),
        [".ExeFull"] => Ok(TemplateField::ExeFull),
        [".Username"] => Ok(TemplateField::Username),
        [".PID"] => Ok(TemplateField::Pid),
        [".StartTime"] => Ok(TemplateField::StartTime),
        [".Cwd"] => Ok(TemplateField::Cwd),
        [".Cgroups"] => Ok(TemplateField::Cgroups),
        [".Matches"] => Ok(TemplateField::Matches),
        ["index", ".Cgroups", at] => at.parse().map(TemplateField::Cgroup).map_err(|_| refuse()),
        ["index", ".Matches", name] => {
            let name = name.strip_prefix(['"', '`']).and_then(|it| it.strip_suffix(['"', '`']));
            Ok(TemplateField::MatchOrEmpty(name.ok_or_else(refuse)?.into()))
        }
        [field] => match field.strip_prefix(".Matches.") {
            Some(name) if is_identifier(name) => Ok(TemplateField::Match(name.into())),
            _ => Err(refuse()),
        },
        _ => Err(refuse()),
    }
}

fn is_identifier(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

impl TemplateField {
    fn render(&self, facts: &ProcessFacts<'_>, out: &mut Vec<u8>) {
        let identity = &facts.process.identity;
        let cgroup = identity.cgroup.as_ref().ok();
        match self {
            TemplateField::Comm => out.extend_from_slice(facts.comm),
            TemplateField::ExeBase => out.extend_from_slice(base(facts.exe)),
            TemplateField::ExeFull => out.extend_from_slice(facts.exe),
            TemplateField::Username => match (&identity.user, &identity.uid) {
                (Some(user), _) => out.extend_from_slice(user.as_bytes()),
                (None, Ok(uid)) => out.extend_from_slice(uid.to_string().as_bytes()),
                (None, Err(_)) => {}
            },
            TemplateField::Pid => {
                out.extend_from_slice(facts.process.key.pid.0.to_string().as_bytes())
            }
            TemplateField::StartTime => {
                out.extend_from_slice(start_time(identity.started_unix_ns).as_bytes());
            }
            TemplateField::Cwd => {
                let folder = (facts.folder_of)(facts.process.key.pid);
                out.extend_from_slice(folder.as_ref().map_or(b"", |it| it.as_bytes()));
            }
            TemplateField::Cgroups => {
                out.push(b'[');
                out.extend_from_slice(cgroup.map_or(b"", |it| it.as_bytes()));
                out.push(b']');
            }
            TemplateField::Cgroup(0) => {
                out.extend_from_slice(cgroup.map_or(b"", |it| it.as_bytes()))
            }
            TemplateField::Cgroup(_) => {}
            TemplateField::Matches => {
                let pairs: Vec<String> =
                    facts.matches.iter().map(|(name, text)| format!("{name}:{text}")).collect();
                out.extend_from_slice(format!("map[{}]", pairs.join(" ")).as_bytes());
            }
            TemplateField::Match(name) => {
                let text = facts.matches.get(name).map_or("<no value>", String::as_str);
                out.extend_from_slice(text.as_bytes());
            }
            TemplateField::MatchOrEmpty(name) => {
                let text = facts.matches.get(name).map_or("", String::as_str);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}

/// A time in UTC in Go's format: `2024-02-29 12:00:00 +0000 UTC`.
fn start_time(unix_ns: u64) -> String {
    let seconds = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
    format!("{} +0000 UTC", CivilTime::new(seconds, 0))
}
