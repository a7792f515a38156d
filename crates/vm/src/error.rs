//! Errors of virtual machines.

use std::io;

use crate::VmRequirement;

/// Error of a virtual machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// A program or a kernel is not installed.
    #[error("{0}")]
    Missing(VmRequirement),
    /// An operation of the host failed.
    #[error("{what}")]
    System {
        /// Attempted operation.
        what: String,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// QEMU rejected the configuration of the machine.
    #[error("QEMU ended with {status}: {message}")]
    Qemu {
        /// Exit status of QEMU.
        status: String,
        /// Standard error of QEMU.
        message: String,
    },
    /// Tools for building a kernel are not installed.
    #[error("the build of a kernel needs {names}; run `apt-get install --yes {packages}`")]
    MissingTools {
        /// Names of the missing programs and headers.
        names: String,
        /// Debian packages that contain the missing tools.
        packages: String,
    },
    /// A kernel could not be built.
    #[error("{0}")]
    Build(String),
    /// A file does not have the required format.
    #[error("{0}")]
    Format(String),
}

/// Adds the attempted operation to an error of the system.
pub(crate) trait WhileDoing<T> {
    fn while_doing(self, what: impl Into<String>) -> Result<T, VmError>;
}

impl<T, E: Into<io::Error>> WhileDoing<T> for Result<T, E> {
    fn while_doing(self, what: impl Into<String>) -> Result<T, VmError> {
        self.map_err(|error| VmError::System { what: what.into(), error: error.into() })
    }
}
