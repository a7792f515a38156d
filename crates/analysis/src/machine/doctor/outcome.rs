//! Outcomes of the checks: from the value of a setting to its verdict and commands.

use pagewise_model::report::{CellValue, Label};
use pagewise_model::settings::{ProcessSettings, SystemSettings};
use pagewise_model::{Name, Reading, Snapshot};

use super::checks::{CHECKS, Check, SIZE, SettingSource, WhyNot};
use super::{DoctorOptions, SettingVerdict, WorkloadProfile};

/// Settings and profile to judge.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoctorSubject<'a> {
    pub(super) settings: &'a SystemSettings,
    pub(super) options: &'a DoctorOptions<'a>,
}

impl<'a> DoctorSubject<'a> {
    pub(super) fn is_for(&self, profile: WorkloadProfile) -> bool {
        self.options.profile == Some(profile)
    }

    pub(super) fn process(&self) -> Reading<&'a ProcessSettings> {
        self.settings.process.as_ref().map_err(Clone::clone)
    }

    /// The process that the user named as target.
    pub(super) fn target(&self) -> Reading<&'a Snapshot> {
        self.options.target.ok_or_else(WhyNot::no_target)
    }

    /// The number in a file; `None` if the file does not contain a number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        let value = self.settings.file(path)?.as_ref().ok()?;
        std::str::from_utf8(value.as_bytes()).ok()?.parse().ok()
    }

    pub(super) fn has_swap(&self) -> Reading<bool> {
        let swaps = self.settings.swaps.as_ref().map_err(Clone::clone)?;
        Ok(!swaps.is_empty())
    }
}

/// A setting's value, and the subject that has the setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct SettingCase<'a> {
    pub(super) subject: &'a DoctorSubject<'a>,
    pub(super) value: &'a CellValue,
}

impl SettingCase<'_> {
    /// The value as its file contains it; empty if the value is not from a file.
    pub(super) fn text(&self) -> &str {
        match self.value {
            CellValue::Name(name) => std::str::from_utf8(name.as_bytes()).unwrap_or_default(),
            _ => "",
        }
    }

    /// The value as a number; `None` if the value is not a number.
    pub(super) fn number(&self) -> Option<u64> {
        self.text().parse().ok()
    }

    pub(super) fn is_for(&self, profile: WorkloadProfile) -> bool {
        self.subject.is_for(profile)
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    verdict: SettingVerdict,
    /// Problem with the value; empty if the value fits.
    because: Label,
    way: SettingChange,
}

/// Change that gives the setting a fitting value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SettingChange {
    /// No command changes the setting.
    None,
    /// Write this text into the file of the setting.
    Write(Label),
    /// Run these commands.
    Run { change: Option<String>, undo: Option<String> },
}

impl Judged {
    pub(super) fn ok() -> Judged {
        Judged { verdict: SettingVerdict::Ok, because: "".into(), way: SettingChange::None }
    }

    pub(super) fn note(because: impl Into<Label>) -> Judged {
        Judged { verdict: SettingVerdict::Note, because: because.into(), way: SettingChange::None }
    }

    pub(super) fn warn(because: impl Into<Label>) -> Judged {
        Judged { verdict: SettingVerdict::Warn, because: because.into(), way: SettingChange::None }
    }

    /// Recommends to write a value into the file of the setting.
    pub(super) fn write(self, value: impl Into<Label>) -> Judged {
        Judged { way: SettingChange::Write(value.into()), ..self }
    }

    /// Recommends commands if the setting does not have its own file. A command is `None` if a
    /// shell would misread a name in the command.
    pub(super) fn run(self, change: Option<String>, undo: Option<String>) -> Judged {
        Judged { way: SettingChange::Run { change, undo }, ..self }
    }
}

/// Outcome of the check of a setting.
#[derive(Clone, Debug)]
pub(super) struct SettingOutcome {
    pub(super) id: Label,
    pub(super) label: Label,
    pub(super) value: CellValue,
    pub(super) verdict: SettingVerdict,
    because: Label,
    pub(super) why: &'static str,
    /// Command that sets the recommended value; if the verdict is ok, the command that sets the
    /// present value.
    pub(super) change: Option<String>,
    /// Command that restores the present value.
    pub(super) undo: Option<String>,
}

impl SettingOutcome {
    /// Problem with the value, and the reason why the setting matters.
    pub(super) fn why(&self) -> String {
        match self.because.as_ref() {
            "" => self.why.to_owned(),
            because => format!("{because} {}", self.why),
        }
    }
}

/// Judges every setting, in the order of the table of checks; the huge page sizes are last.
pub(super) fn outcomes(subject: &DoctorSubject<'_>) -> Vec<SettingOutcome> {
    let mut outcomes: Vec<SettingOutcome> =
        CHECKS.iter().map(|check| one(check, subject)).collect();
    outcomes.extend(sizes(subject));
    outcomes
}

fn one(check: &Check, subject: &DoctorSubject<'_>) -> SettingOutcome {
    let (value, file) = match check.source {
        SettingSource::File(path) => (file_value(path, subject), Some(path)),
        SettingSource::Of(read) => (read(subject), None),
    };
    outcome(check, check.id.into(), check.label.into(), value, file, subject)
}

fn file_value(path: &str, subject: &DoctorSubject<'_>) -> Reading<CellValue> {
    match subject.settings.file(path) {
        Some(value) => value.clone().map(CellValue::Name),
        None => Err(WhyNot::not_asked()),
    }
}

fn outcome(
    check: &Check,
    id: Label,
    label: Label,
    value: Reading<CellValue>,
    file: Option<&str>,
    subject: &DoctorSubject<'_>,
) -> SettingOutcome {
    let (value, judged) = match value {
        Ok(value) => {
            let judged = (check.judge)(&SettingCase { subject, value: &value });
            (value, judged)
        }
        Err(absent) => {
            let unknown = Judged { verdict: SettingVerdict::Unknown, ..Judged::ok() };
            (CellValue::Absent(absent), unknown)
        }
    };
    let (change, undo) = commands(&judged.way, &value, file);
    let (verdict, because) = (judged.verdict, judged.because);
    SettingOutcome { id, label, value, verdict, because, why: check.why, change, undo }
}

fn commands(
    way: &SettingChange,
    value: &CellValue,
    file: Option<&str>,
) -> (Option<String>, Option<String>) {
    let undo = match (file, value) {
        (Some(path), CellValue::Name(now)) => writes(path, now.as_bytes()),
        _ => None,
    };
    match way {
        SettingChange::Run { change, undo } => (change.clone(), undo.clone()),
        SettingChange::Write(wanted) => {
            let change = file.and_then(|path| writes(path, wanted.as_bytes()));
            // A change that cannot be undone is not recommended.
            (change.filter(|_| undo.is_some()), undo)
        }
        SettingChange::None => (undo.clone(), undo),
    }
}

/// Returns the command that writes a value into a file of `/proc/sys` or `/sys`.
///
/// Returns `None` for a value or a path that a shell would not read literally: the settings may be
/// read from a copy of these files with arbitrary contents.
pub(super) fn writes(path: &str, value: &[u8]) -> Option<String> {
    let value = word(value)?;
    match path.strip_prefix("/proc/sys/") {
        Some(name) => {
            Some(format!("sysctl -w {}={value}", word(name.as_bytes())?.replace('/', ".")))
        }
        None => Some(format!("echo {value} > {}", word(path.as_bytes())?)),
    }
}

/// Returns the text if every shell reads it as one word, and no command reads it as an option.
pub(super) fn word(text: &[u8]) -> Option<&str> {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"_.,:+-/@%".contains(b);
    let text = std::str::from_utf8(text).ok()?;
    let negative = text.strip_prefix('-').is_none_or(|digits| digits.parse::<u64>().is_ok());
    (!text.is_empty() && negative && text.as_bytes().iter().all(is_plain)).then_some(text)
}

/// Judges each huge page size: one outcome per size.
fn sizes(subject: &DoctorSubject<'_>) -> Vec<SettingOutcome> {
    let label = |kib: u64| format!("huge pages of {kib} KiB").into();
    match &subject.settings.sizes {
        Err(absent) => {
            let (id, label) = ("thp_enabled_sizes".into(), "huge pages by size".into());
            vec![outcome(&SIZE, id, label, Err(absent.clone()), None, subject)]
        }
        Ok(sizes) => sizes
            .iter()
            .map(|size| {
                let kib = size.size.0 >> 10;
                let file = format!("/sys/kernel/mm/transparent_hugepage/hugepages-{kib}kB/enabled");
                let value = Ok(CellValue::Name(Name::new(size.enabled.as_bytes())));
                let id = format!("thp_enabled_{kib}kB").into();
                outcome(&SIZE, id, label(kib), value, Some(&file), subject)
            })
            .collect(),
    }
}
