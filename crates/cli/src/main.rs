//! The program `pagewise`. Its code is in the library of this package.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    pagewise_sys::resolver::without_libraries();
    pagewise_cli::main()
}
