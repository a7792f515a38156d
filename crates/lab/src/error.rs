//! Why an experiment cannot go on.

use std::io;

/// Error of the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No experiment has this name.
    #[error("unknown experiment {0}; `pagewise lab list` shows all")]
    NoSuchExperiment(String),
    /// No experiment has this parameter.
    #[error(
        "{experiment} has no parameter {name}; `pagewise lab describe {experiment}` names them"
    )]
    NoSuchParameter {
        /// The experiment.
        experiment: &'static str,
        /// Requested name.
        name: String,
    },
    /// A system call failed.
    #[error("{what}")]
    System {
        /// Attempted operation.
        what: String,
        /// Error of the system.
        #[source]
        error: io::Error,
    },
    /// The measurement failed.
    #[error(transparent)]
    Measure(#[from] pagewise_measure::MeasureError),
    /// An assumption of the experiment does not hold.
    #[error("{0}")]
    Failed(String),
}

/// Adds the attempted operation to an error of the system.
pub(crate) trait While<T> {
    fn while_(self, what: impl Into<String>) -> Result<T, LabError>;
}

impl<T, E: Into<io::Error>> While<T> for Result<T, E> {
    fn while_(self, what: impl Into<String>) -> Result<T, LabError> {
        self.map_err(|error| LabError::System { what: what.into(), error: error.into() })
    }
}
