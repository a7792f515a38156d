//! Faults by location in the program: functions, lines, call stacks.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use pagewise_model::Name;
use pagewise_model::faults::{FaultKind, FaultRecording};
use pagewise_model::report::{Audience, CellValue, ColumnCells, Label, ReportTable, TableColumn};
use pagewise_model::traced::{Frame, SourcePosition};

use super::FaultOptions;
use crate::blocks::{first, for_people, for_programs, table};
use crate::cells::share;

/// A function: its name, where it has one, and its file.
pub(crate) type FunctionKey<'a> = (Option<&'a str>, Option<&'a Name>);

/// Faults at a call stack, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StackFaults {
    pub(crate) count: u64,
    pub(crate) kinds: [u64; FaultKind::ALL.len()],
    pub(crate) took: Option<u64>,
}

impl StackFaults {
    fn add(&mut self, other: &StackFaults) {
        self.count += other.count;
        self.kinds.iter_mut().zip(other.kinds).for_each(|(sum, more)| *sum += more);
        if let Some(took) = other.took {
            self.took = Some(self.took.unwrap_or(0).saturating_add(took));
        }
    }

    fn most(&self) -> Label {
        let most = FaultKind::ALL.into_iter().max_by_key(|kind| self.kinds[kind.index()]);
        most.map_or("", FaultKind::label).into()
    }
}

/// The call stacks, and the faults of each.
pub(crate) struct FaultFrames<'a> {
    recording: &'a FaultRecording,
    pub(crate) stacks: Vec<(Vec<&'a Frame>, StackFaults)>,
    pub(crate) all: u64,
}

pub(crate) fn function(frame: &Frame) -> FunctionKey<'_> {
    (frame.function.as_deref(), frame.module.as_ref())
}

/// Name of a function for people. A [`Name`], because the traced program determines the text.
pub(crate) fn called((name, module): FunctionKey<'_>) -> Name {
    match (name, module) {
        (Some(name), _) => Name::new(name.as_bytes()),
        (None, Some(module)) => Name::new(&[b"?? in ", module.base()].concat()),
        (None, None) => Name::new(b"?? in memory of no file"),
    }
}

/// Stands for the function of an empty call stack: the kernel replaced the program.
const EXECVE: FunctionKey<'static> = (Some("[execve]"), None);

/// The function that faulted.
pub(crate) fn innermost<'a>(stack: &[&'a Frame]) -> FunctionKey<'a> {
    stack.first().map_or(EXECVE, |frame| function(frame))
}

/// `file.c:12`, without the folders.
fn brief(line: &SourcePosition) -> Name {
    let base = line.file.rsplit('/').next().unwrap_or_default();
    Name::new(format!("{base}:{}", line.number).as_bytes())
}

impl<'a> FaultFrames<'a> {
    pub(crate) fn from_recording(recording: &'a FaultRecording) -> FaultFrames<'a> {
        let frames = |stack: &'a Vec<u32>| {
            stack.iter().filter_map(|frame| recording.frames.get(*frame as usize)).collect()
        };
        let mut stacks: Vec<(Vec<&Frame>, StackFaults)> =
            recording.stacks.iter().map(|stack| (frames(stack), StackFaults::default())).collect();
        for row in &recording.rows {
            if let Some((_, sum)) = stacks.get_mut(row.stack as usize) {
                let mut kinds = [0; FaultKind::ALL.len()];
                kinds[row.kind.index()] = row.count;
                sum.add(&StackFaults { count: row.count, kinds, took: row.took_ns });
            }
        }
        stacks.sort_by_key(|(_, sum)| Reverse(sum.count));
        FaultFrames { recording, stacks, all: recording.count() }
    }

    fn is_timed(&self) -> bool {
        !self.recording.latencies.is_empty()
    }

    /// Faults by function: the functions that faulted, and their callers.
    pub(crate) fn functions(&self, options: &FaultOptions) -> ReportTable {
        let rows = self.by_function();
        let (shown, note) = first(&rows, options.limit, "--rows");
        let own = || shown.iter().map(|(_, (own, _))| own);
        let functions = || shown.iter().map(|(function, _)| *function);
        let module = |function: FunctionKey<'_>| {
            function.1.map_or(CellValue::None, |module| CellValue::Name(Name::new(module.base())))
        };
        let path = |function: FunctionKey<'_>| {
            function.1.map_or(CellValue::None, |it| CellValue::Name(it.clone()))
        };
        let name = |function: FunctionKey<'_>| {
            function.0.map_or(CellValue::None, |it| CellValue::Name(Name::new(it.as_bytes())))
        };
        let people = |key, label, cells| for_people(TableColumn::new(key, label, cells));
        let mut columns = self.sums(own());
        columns.push(TableColumn::new(
            "faults_below",
            "WITH CALLEES",
            ColumnCells::Counts(shown.iter().map(|(_, (_, below))| *below).collect()),
        ));
        columns.push(TableColumn::new(
            "most_kind",
            "MOST ARE",
            ColumnCells::Labels(own().map(StackFaults::most).collect()),
        ));
        columns.push(for_programs(TableColumn::new(
            "module",
            "FILE",
            ColumnCells::Values(functions().map(path).collect()),
        )));
        let files = ColumnCells::Values(functions().map(module).collect());
        columns.push(people("file", "FILE", files));
        columns.push(for_programs(TableColumn::new(
            "function",
            "FUNCTION",
            ColumnCells::Values(functions().map(name).collect()),
        )));
        let names = ColumnCells::Names(functions().map(called).collect());
        columns.push(people("called", "FUNCTION", names));
        ReportTable { note, ..table("functions", "By function", Audience::Everyone, columns) }
    }

    /// Own faults of each function that has some, and its faults with those of its callees; the
    /// most own faults first.
    fn by_function(&self) -> Vec<(FunctionKey<'a>, (StackFaults, u64))> {
        let mut sums: HashMap<FunctionKey<'a>, (StackFaults, u64)> = HashMap::new();
        for (stack, sum) in &self.stacks {
            // A function that calls itself counts once.
            let mut seen = HashSet::new();
            for (depth, frame) in stack.iter().enumerate() {
                let function = function(frame);
                let known = sums.entry(function).or_default();
                if depth == 0 {
                    known.0.add(sum);
                }
                if seen.insert(function) {
                    known.1 += sum.count;
                }
            }
            if stack.is_empty() {
                let known = sums.entry(EXECVE).or_default();
                known.0.add(sum);
                known.1 += sum.count;
            }
        }
        let mut rows: Vec<(FunctionKey<'a>, (StackFaults, u64))> = sums.into_iter().collect();
        rows.retain(|(_, (own, _))| own.count > 0);
        rows.sort_by_key(|(function, (own, _))| (Reverse(own.count), *function));
        rows
    }

    fn sums<'s>(&self, sums: impl Iterator<Item = &'s StackFaults> + Clone) -> Vec<TableColumn> {
        let took = |sum: &StackFaults| sum.took.map_or(CellValue::None, CellValue::Seconds);
        let times = TableColumn::new(
            "fault_time",
            "TIME",
            ColumnCells::Values(sums.clone().map(took).collect()),
        );
        vec![
            TableColumn::new(
                "faults",
                "FAULTS",
                ColumnCells::Counts(sums.clone().map(|sum| sum.count).collect()),
            ),
            TableColumn::new(
                "share",
                "SHARE",
                ColumnCells::Values(sums.map(|sum| share(sum.count, self.all)).collect()),
            ),
            if self.is_timed() { times } else { for_programs(times) },
        ]
    }

    /// Faults by source line of the functions that faulted.
    pub(crate) fn lines(&self, options: &FaultOptions) -> ReportTable {
        let mut sums: HashMap<(&SourcePosition, FunctionKey<'_>), StackFaults> = HashMap::new();
        for (stack, sum) in &self.stacks {
            if let Some(frame) = stack.first()
                && let Some(line) = &frame.line
            {
                sums.entry((line, function(frame))).or_default().add(sum);
            }
        }
        let mut rows: Vec<((&SourcePosition, FunctionKey<'_>), StackFaults)> =
            sums.into_iter().collect();
        rows.sort_by_key(|(place, sum)| (Reverse(sum.count), *place));
        let (shown, note) = first(&rows, options.limit, "--rows");
        let names = |name: &dyn Fn(&SourcePosition, FunctionKey<'_>) -> Name| {
            ColumnCells::Names(
                shown.iter().map(|((line, function), _)| name(line, *function)).collect(),
            )
        };
        let numbers = shown.iter().map(|((line, _), _)| line.number.into()).collect();
        let mut columns = self.sums(shown.iter().map(|(_, sum)| sum));
        columns.extend([
            for_programs(TableColumn::new(
                "file",
                "FILE",
                names(&|line, _| Name::new(line.file.as_bytes())),
            )),
            for_programs(TableColumn::new("line", "LINE", ColumnCells::Counts(numbers))),
            for_people(TableColumn::new("place", "LINE", names(&|line, _| brief(line)))),
            TableColumn::new("function", "FUNCTION", names(&|_, function| called(function))),
        ]);
        ReportTable { note, ..table("lines", "By line", Audience::Everyone, columns) }
    }

    /// Each call stack with its lines, for programs.
    pub(crate) fn stacks(&self) -> ReportTable {
        let found: Vec<&(Vec<&Frame>, StackFaults)> =
            self.stacks.iter().filter(|(_, sum)| sum.count > 0).collect();
        let words = |frame: &&Frame| {
            let mut words = called(function(frame)).as_bytes().to_vec();
            if let Some(line) = &frame.line {
                words.extend_from_slice(format!(" ({}:{})", line.file, line.number).as_bytes());
            }
            CellValue::Name(Name::new(&words))
        };
        let stack = |stack: &[&Frame]| CellValue::List(stack.iter().map(words).collect());
        let mut columns = self.sums(found.iter().map(|(_, sum)| sum));
        columns.push(TableColumn::new(
            "most_kind",
            "MOST ARE",
            ColumnCells::Labels(found.iter().map(|(_, sum)| sum.most()).collect()),
        ));
        columns.push(TableColumn::new(
            "frames",
            "CALLS",
            ColumnCells::Values(found.iter().map(|(frames, _)| stack(frames)).collect()),
        ));
        table("stacks", "By call stack", Audience::Programs, columns)
    }

    /// The function with the largest sum of `counts`, and that sum.
    pub(crate) fn most(&self, counts: impl Fn(&StackFaults) -> u64) -> Option<(Name, u64)> {
        let mut sums: HashMap<FunctionKey<'_>, u64> = HashMap::new();
        for (stack, sum) in &self.stacks {
            let place = innermost(stack);
            *sums.entry(place).or_default() += counts(sum);
        }
        let most = sums.into_iter().max_by_key(|(function, count)| (*count, Reverse(*function)))?;
        (most.1 > 0).then(|| (called(most.0), most.1))
    }
}
