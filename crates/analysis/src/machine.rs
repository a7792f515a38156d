//! Reports about the machine and its settings.

pub mod doctor;
pub mod events;
pub mod fragmentation;
