//! Failures of calls: a number of `errno.h`, and a message that is kept for the thread. No panic
//! unwinds into C.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reason why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    number: c_int,
    message: String,
}

impl Failure {
    pub(crate) fn new(number: c_int, message: impl Into<String>) -> Failure {
        Failure { number, message: message.into() }
    }

    /// Failure of an argument.
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, message)
    }
}

impl From<pagewise_measure::MeasureError> for Failure {
    fn from(error: pagewise_measure::MeasureError) -> Failure {
        use pagewise_measure::MeasureError;
        let number = match &error {
            MeasureError::Counter(error) => error.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        };
        let hint = error.hint().map_or(String::new(), |hint| format!(": {hint}"));
        Failure::new(number, format!("{error}{hint}"))
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a call. Returns 0, or the error number of its failure, whose message is kept for the
/// thread.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // State that a panic leaves half done is not used again: a region that was not ended is
    // discarded.
    let done = catch_unwind(AssertUnwindSafe(body));
    match done.unwrap_or_else(|_| Err(Failure::new(libc::ENOTRECOVERABLE, "a bug in pagewise"))) {
        Ok(()) => 0,
        Err(failure) => {
            MESSAGE.set(c_string(&failure.message));
            failure.number
        }
    }
}

/// Runs code that panics on misused memory; for C the panic becomes an abort of the process.
pub(crate) fn or_abort<T>(body: impl FnOnce() -> T) -> T {
    // The panic has printed the reason.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| std::process::abort())
}

/// Converts a text up to the first NUL.
pub(crate) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// See `pagewise/base.h`.
#[unsafe(no_mangle)]
pub extern "C" fn pw_error_message() -> *const c_char {
    // A thread that is ending may have no message any more.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_goes_no_further() {
        assert_eq!(call(|| panic!("on purpose, in a test")), libc::ENOTRECOVERABLE);
        MESSAGE.with_borrow(|message| assert_eq!(message.as_c_str(), c"a bug in pagewise"));
    }

    #[test]
    fn a_call_that_succeeds_keeps_the_message_of_the_last_failure() {
        assert_eq!(call(|| Err(Failure::invalid("one\0two"))), libc::EINVAL);
        assert_eq!(call(|| Ok(())), 0);
        MESSAGE.with_borrow(|message| assert_eq!(message.as_c_str(), c"one"));
    }
}
