//! The options of `pagewise heap export`.

use std::path::PathBuf;

use clap::{Arg, ArgGroup, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser};

use pagewise_view::export::{CALL_STACKS, HEAP_FORMATS, HeapFormat, OVER_TIME};

use crate::args::percent;

#[derive(Debug, Args)]
pub(crate) struct HeapExport {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) formats: ChosenFormats,
    /// The quantity in --collapsed and --flamegraph
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OfArg::Peak, help_heading = CALL_STACKS)]
    pub(crate) of: OfArg,
    /// Leave out branches of massif's call trees below PERCENT of the total
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = OVER_TIME)]
    pub(crate) threshold: f64,
    /// The output file of the one format option whose OUT is missing; default:
    /// standard output
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: Option<PathBuf>,
}

/// The quantity of a call stack.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OfArg {
    /// Bytes that were live at the peak
    Peak,
    /// Bytes never freed
    Leaked,
    /// All bytes allocated
    Allocated,
    /// Number of allocations
    Allocations,
    /// Number of allocations that were freed before the same thread allocated again
    Temporary,
}

/// The chosen formats, each with the file that its option names.
#[derive(Clone)]
pub(crate) struct ChosenFormats(pub(crate) Vec<(&'static HeapFormat, Option<PathBuf>)>);

impl Args for ChosenFormats {
    fn augment_args(command: Command) -> Command {
        let command = HEAP_FORMATS.iter().fold(command, |command, format| {
            let option = Arg::new(format.name).long(format.name).value_name("OUT").num_args(0..=1);
            let option = option.value_parser(value_parser!(PathBuf));
            command.arg(option.help_heading(format.heading).help(format.help))
        });
        let names = HEAP_FORMATS.iter().map(|format| format.name);
        command.group(ArgGroup::new("formats").required(true).multiple(true).args(names))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ChosenFormats {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let chosen = HEAP_FORMATS.iter().filter(|format| matches.contains_id(format.name));
        let with_file = |format: &'static HeapFormat| {
            (format, matches.get_one::<PathBuf>(format.name).cloned())
        };
        Ok(ChosenFormats(chosen.map(with_file).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl std::fmt::Debug for ChosenFormats {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.0.iter().map(|(format, file)| (format.name, file))).finish()
    }
}
