//! CPU time and memory of `pagewise export` with 300 processes, compared with Debian's
//! process-exporter, which reads `smaps` of each process in each scrape.
//!
//! `cargo bench -p pagewise --bench exporting`

#![expect(clippy::print_stdout, reason = "a benchmark reports on standard output")]

mod children;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use children::{Children, cpu_ms, memory_mib};

const PAGEWISE: &str = env!("CARGO_BIN_EXE_pagewise");
const PROCESSES: usize = 300;
/// Private memory of each process, in MiB.
const MIB: usize = 2;
const SCRAPES: u32 = 30;
const SWEEPS: u32 = 10;

fn page(address: SocketAddr, accept: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|it| it.parse().ok()).unwrap_or(f64::NAN)
}

/// CPU time of a scrape in milliseconds, on average.
fn scrape_ms(pid: u32, address: SocketAddr, scrapes: u32) -> f64 {
    let before = cpu_ms(pid);
    for _ in 0..scrapes {
        page(address, "text/plain").expect("a scrape");
    }
    (cpu_ms(pid) - before) / f64::from(scrapes)
}

fn export(args: &[&str]) -> (Children, u32, SocketAddr) {
    let mut child = Command::new(PAGEWISE)
        .args(["export", "--listen", "127.0.0.1:0"])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("pagewise was built");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let line = lines.next().expect("a line").expect("text");
    let address: SocketAddr =
        line.rsplit(' ').next().and_then(|it| it.parse().ok()).expect("the address");
    let pid = child.id();
    while page(address, "text/plain").is_none_or(|it| !it.starts_with("HTTP/1.1 200")) {
        sleep(Duration::from_millis(50));
    }
    (Children(vec![child]), pid, address)
}

fn main() {
    let script = format!("import time; x = bytearray({MIB} << 20); time.sleep(1000)");
    let start = |_| {
        let child = Command::new("python3").args(["-c", &script]).spawn();
        child.expect("python3 is installed")
    };
    let _targets = Children((0..PROCESSES).map(start).collect());
    sleep(Duration::from_secs(15));

    let (exporter, pid, address) = export(&["--every", "1s"]);
    let text = page(address, "text/plain").expect("a scrape");
    let first = value(&text, "pagewise_sweep_cpu_seconds_total") * 1e3;
    let first_sweeps = value(&text, "pagewise_sweeps_total");
    let before = cpu_ms(pid);
    sleep(Duration::from_secs(u64::from(SWEEPS)));
    let all_ms = cpu_ms(pid) - before;
    let text = page(address, "text/plain").expect("a scrape");
    let sweeps = value(&text, "pagewise_sweeps_total") - first_sweeps;
    let later = (value(&text, "pagewise_sweep_cpu_seconds_total") * 1e3 - first) / sweeps;
    let scrape = scrape_ms(pid, address, SCRAPES);
    println!("pagewise export, {PROCESSES} processes of {MIB} MiB and those of the machine:");
    println!("  first sweep{first:>12.1} ms CPU");
    println!("  later sweep{later:>12.1} ms CPU; with its text {:.1} ms", all_ms / sweeps);
    println!("  scrape{scrape:>17.2} ms CPU, {} bytes", text.len());
    println!(
        "  resident memory{:>8.1} MiB, peak {:.1} MiB, anonymous {:.1} MiB",
        memory_mib(pid, "VmRSS"),
        memory_mib(pid, "VmHWM"),
        memory_mib(pid, "RssAnon")
    );
    drop(exporter);
    share();
    other();
}

/// Measures a minute with a sweep every 15 s and, unlike the default, a diagnosis every minute.
fn share() {
    let (_exporter, pid, address) = export(&["--diagnose-every", "60s"]);
    sleep(Duration::from_secs(20));
    let counted = || {
        let text = page(address, "text/plain").expect("a scrape");
        (value(&text, "pagewise_sweep_cpu_seconds_total"), value(&text, "pagewise_sweeps_total"))
    };
    let (first, (began, before)) = (counted(), (Instant::now(), cpu_ms(pid)));
    sleep(Duration::from_secs(60));
    let used = (cpu_ms(pid) - before) / 1e3 / began.elapsed().as_secs_f64();
    let last = counted();
    println!(
        "  sweeps every 15 s: {:.1} ms CPU each",
        (last.0 - first.0) * 1e3 / (last.1 - first.1)
    );
    println!("  with a diagnosis each minute: {:.2} % of a core", used * 100.0);
}

/// process-exporter, if it is installed.
fn other() {
    let folder = std::env::temp_dir().join(format!("pagewise-bench-export.{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let config = folder.join("all.yml");
    fs::write(&config, "process_names:\n  - name: '{{.Comm}}'\n    cmdline: ['.+']\n")
        .expect("a file");
    let address = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let child = Command::new("prometheus-process-exporter")
        .args(["-config.path", &config.display().to_string()])
        .args(["-web.listen-address", &address.to_string()])
        .stderr(Stdio::null())
        .spawn();
    let Ok(child) = child else {
        println!("prometheus-process-exporter is not installed");
        return;
    };
    let pid = child.id();
    let _exporter = Children(vec![child]);
    while page(address, "text/plain").is_none() {
        sleep(Duration::from_millis(100));
    }
    let scrape = scrape_ms(pid, address, SCRAPES);
    println!("process-exporter:");
    println!("  scrape{scrape:>17.2} ms CPU");
    println!(
        "  resident memory{:>8.1} MiB, peak {:.1} MiB",
        memory_mib(pid, "VmRSS"),
        memory_mib(pid, "VmHWM")
    );
    let _ = fs::remove_dir_all(&folder);
}
