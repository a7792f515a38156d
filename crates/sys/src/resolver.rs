//! Lookups of host names in a program that is linked with a static glibc.

use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

/// Restricts lookups of host names to `/etc/hosts` and DNS, whose code is in the C library. Other
/// services of `/etc/nsswitch.conf` are libraries that need the C library of the machine. Loading
/// this second C library crashes or fails. Call this function before the first lookup.
pub fn without_libraries() {
    let (hosts, services): (&CStr, &CStr) = (c"hosts", c"files dns");
    // SAFETY: both names end with NUL and are never freed. If the call fails, the services of the
    // file stay configured.
    let _ = unsafe { __nss_configure_lookup(hosts.as_ptr(), services.as_ptr()) };
}
