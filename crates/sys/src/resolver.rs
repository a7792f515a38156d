//! Lookups of host names in a program that is linked with a static glibc.

use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

/// Restricts lookups of host names to `/etc/hosts` and DNS, whose code is in the C library. Other
/// services of `/etc/nsswitch.conf` are libraries, which need the machine's own C library; loading
/// them beside another one crashes or fails. Has to come before the first lookup.
pub fn without_libraries() {
    let (hosts, services): (&CStr, &CStr) = (c"hosts", c"files dns");
    // SAFETY: both names end with a zero and are never freed. An error leaves the file's services.
    let _ = unsafe { __nss_configure_lookup(hosts.as_ptr(), services.as_ptr()) };
}
