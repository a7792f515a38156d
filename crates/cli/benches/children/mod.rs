//! Processes that a benchmark starts, and their figures from the kernel.

#![allow(dead_code, reason = "no benchmark uses all of it")]

use std::fs;
use std::process::{Child, Command, Stdio};

/// Processes that are killed when this value is dropped.
pub(crate) struct Children(pub(crate) Vec<Child>);

impl Children {
    /// Processes that sleep.
    pub(crate) fn sleeping(count: usize) -> Children {
        let start = |_| {
            let mut command = Command::new("sleep");
            command.arg("100000").stdin(Stdio::null()).spawn().expect("sleep is on every machine")
        };
        Children((0..count).map(start).collect())
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// CPU time of all threads of a process, in milliseconds.
pub(crate) fn cpu_ms(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.flatten().filter_map(of).sum::<f64>() / 1e6
}

/// A line of `status` in MiB.
pub(crate) fn memory_mib(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0");
    line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<f64>().unwrap_or(0.0) / 1024.0
}
