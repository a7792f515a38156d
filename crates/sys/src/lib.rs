//! The kernel edge: system calls, ioctls, ptrace, probes. Typed and thin; no policy.
