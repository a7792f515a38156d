//! Pages of a process, and the kernel's data about each page.

pub mod huge;
pub mod ksm;
pub mod numa;
pub(crate) mod page_charges;
pub mod page_map;
pub mod pages;
pub mod referenced;
pub mod zero_pages;
