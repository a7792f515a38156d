//! Views: a report as text, JSON or HTML. They draw and never compute.
#![forbid(unsafe_code)]
