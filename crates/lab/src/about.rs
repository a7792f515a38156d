//! Description of an experiment before it runs.

use std::collections::BTreeMap;

use pagewise_model::Bytes;
use pagewise_model::report::AxisUnit;

use crate::LabError;

/// Description of an experiment.
#[derive(Debug)]
pub struct ExperimentAbout {
    /// Its name on the command line.
    pub name: &'static str,
    /// Question in one sentence.
    pub question: &'static str,
    /// Expected result and the reason: the mechanism in some sentences.
    pub expectation: &'static str,
    /// Earlier measurements with their source.
    pub figures: &'static str,
    /// Its requirements: it is skipped if one of them is missing.
    pub needs: &'static [Need],
    /// The sizes that can be set.
    pub parameters: &'static [ParameterAbout],
    /// Measured quantities, most important first.
    pub quantities: &'static [QuantityAbout],
    /// Its conditions; the first is the baseline.
    pub arms: &'static [&'static str],
    /// Number of runs of each condition: quick, usual, full.
    pub runs: [u32; 3],
    /// True if it measures time, so that the noise of this machine matters.
    pub timed: bool,
    /// The most memory that a run uses, page cache included.
    pub memory: fn(&Parameters) -> Bytes,
}

/// Something that an experiment cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The user is root.
    Root,
    /// At least this number of CPUs.
    Cpus(u32),
    /// Transparent huge pages, at least by `madvise`.
    Thp,
    /// A memory cgroup of its own.
    Cgroup,
    /// Permission to change settings of the system and restore them: `--change-system`.
    ChangeSystem,
    /// A file of the kernel.
    File(&'static str),
    /// A program.
    Program(&'static str),
    /// A virtual machine for a program other than this one: QEMU, busybox and a kernel.
    Emulator,
    /// A C compiler and a C library to link with statically.
    StaticC,
    /// A virtual machine that runs this program: QEMU, busybox and a kernel.
    VirtualMachine,
    /// A kernel that was built as it is, and once more with a patch.
    BuiltKernels,
}

/// A size that can be set.
#[derive(Debug)]
pub struct ParameterAbout {
    /// Its name.
    pub name: &'static str,
    /// Meaning, with the unit.
    pub meaning: &'static str,
    /// Values for [`Size::Quick`], [`Size::Usual`] and [`Size::Full`].
    pub values: [u64; 3],
}

/// Extent of experiments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Size {
    /// Seconds each: directions show, details may not.
    Quick,
    /// For 2 CPUs and 2 GiB.
    #[default]
    Usual,
    /// As large as in the measurement that the experiment repeats.
    Full,
}

/// A number that an experiment measures.
#[derive(Debug)]
pub struct QuantityAbout {
    /// Its name. Those that a probe measures have the probe's: `wall`, `minflt`, `cycles`.
    pub name: &'static str,
    /// Its unit.
    pub unit: AxisUnit,
    /// Meaning of the quantity.
    pub meaning: &'static str,
}

/// The sizes of one run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters(BTreeMap<&'static str, u64>);

impl Parameters {
    /// The sizes of an experiment, with those that were set by hand.
    ///
    /// # Errors
    /// [`LabError::NoSuchParameter`]
    pub fn for_size(
        about: &ExperimentAbout,
        size: Size,
        set: &[(String, u64)],
    ) -> Result<Parameters, LabError> {
        let usual = about.parameters.iter().map(|row| (row.name, row.values[size as usize]));
        let mut all: BTreeMap<&'static str, u64> = usual.collect();
        for (name, value) in set {
            let Some(parameter) = about.parameters.iter().find(|row| row.name == name) else {
                let experiment = about.name;
                return Err(LabError::NoSuchParameter { experiment, name: name.clone() });
            };
            all.insert(parameter.name, *value);
        }
        Ok(Parameters(all))
    }

    /// The value of a parameter.
    ///
    /// # Panics
    /// Panics if the experiment did not declare it.
    pub fn get(&self, name: &str) -> u64 {
        *self.0.get(name).unwrap_or_else(|| panic!("{name} is not a parameter of this experiment"))
    }

    /// All parameters with their values, in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.0.iter().map(|(name, value)| (*name, *value))
    }
}

impl ExperimentAbout {
    /// True if it runs in a virtual machine of its own, by this program.
    pub fn is_virtual(&self) -> bool {
        self.needs.contains(&Need::VirtualMachine)
    }
}

impl QuantityAbout {
    /// True if it is a time.
    pub(crate) fn is_time(&self) -> bool {
        self.unit == AxisUnit::Nanos || self.meaning.contains("nanoseconds")
    }
}

impl Need {
    /// The requirement in words.
    pub fn describe(self) -> String {
        match self {
            Need::Root => "root".to_owned(),
            Need::Cpus(n) => format!("{n} CPUs"),
            Need::Thp => "transparent huge pages".to_owned(),
            Need::Cgroup => "a memory cgroup of its own".to_owned(),
            Need::ChangeSystem => {
                "leave to change settings and put them back: --change-system".to_owned()
            }
            Need::File(path) => path.to_owned(),
            Need::Program(name) => format!("the program {name}"),
            Need::StaticC => "cc and a static C library".to_owned(),
            Need::VirtualMachine | Need::Emulator => "a virtual machine".to_owned(),
            Need::BuiltKernels => {
                "a kernel with a patch and one without, which `pagewise lab vm compare` builds"
                    .to_owned()
            }
        }
    }
}
