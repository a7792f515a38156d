//! Reports about recordings of a process or of the machine over time.

pub mod calls;
pub mod faults;
pub mod guard;
pub mod heap;
pub mod shootdowns;
pub mod sweeps;
pub mod watch;
