//! `pagewise heap attach` to a server that is busy: redis, whose `malloc` is jemalloc in Debian. It
//! answers all the time, and counts for itself.

use crate::fixture;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fixture::number;
use fixture::recorder::{attach_shortly, attached, begins_with_a_jump, report};
use pagewise_skip::{Lack, skip};
use tempfile::TempDir;

/// Its allocator.
const LIBRARY: &str = "libjemalloc.so.2";

/// A server on a socket in a folder, with no data and no file. It is killed when this value is
/// dropped.
struct Server {
    process: Child,
    folder: TempDir,
}

impl Server {
    /// Starts it; `None`, after recording a skip, if it is not installed or has another allocator.
    fn start() -> Option<Server> {
        fixture::tool("redis-server", &["--version"])?;
        fixture::tool("redis-cli", &["--version"])?;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(folder.path().join("socket")).arg("--dir").arg(folder.path());
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let server = Server { process, folder };
        let answers = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let ping = server.client("redis-cli").arg("ping").output().unwrap();
            ping.stdout == b"PONG\n"
        });
        assert!(answers, "the server does not answer");
        let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap();
        if !maps.contains(LIBRARY) {
            let what = "its allocator is not the library of jemalloc";
            skip(&Lack::Ability { of: "redis-server", what });
            return None;
        }
        Some(server)
    }

    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-s").arg(self.folder.path().join("socket")).stdin(Stdio::null());
        command
    }

    fn ask(&self, words: &[&str]) -> String {
        let output = self.client("redis-cli").args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A number of `INFO memory`.
    fn memory(&self, key: &str) -> u64 {
        let text = self.ask(&["info", "memory"]);
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().parse().unwrap()
    }

    fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Clients that send requests until this value is dropped.
struct RedisLoad(Child);

impl RedisLoad {
    fn on(server: &Server) -> RedisLoad {
        let mut command = server.client("redis-benchmark");
        command.args(["-n", "1000000000", "-r", "20000", "-d", "200", "-c", "8", "-q"]);
        command.args(["-t", "set,lpush,hset,zadd"]).stdout(Stdio::null()).stderr(Stdio::null());
        RedisLoad(command.spawn().unwrap())
    }
}

impl Drop for RedisLoad {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_busy_server_is_attached_to_again_and_again() {
    let Some(mut server) = Server::start() else { return };
    let load = RedisLoad::on(&server);
    let file = server.folder.path().join("heap.pwh");
    for round in 0..20 {
        let output = attach_shortly(server.pid(), &file);
        assert!(output.status.success(), "round {round}: {output:?}");
        assert_eq!(server.ask(&["ping"]), "PONG\n", "round {round}");
        let report = report(&file);
        let allocator = report["recording"]["allocator"].as_str().unwrap();
        assert!(allocator.contains("jemalloc"), "{allocator}");
    }
    drop(load);
    assert!(!server.has_ended());
    assert_eq!(server.ask(&["ping"]), "PONG\n");
}

#[test]
fn live_bytes_of_a_server_equal_its_allocators_count() {
    let Some(server) = Server::start() else { return };
    let file = server.folder.path().join("heap.pwh");
    let is_hooked = || begins_with_a_jump(server.pid(), LIBRARY, "malloc");
    let write = |count: u32, prefix: &str| {
        let commands: String =
            (0..count).map(|key| format!("SET {prefix}{key} {}\r\n", "x".repeat(500))).collect();
        let path = server.folder.path().join("commands");
        fs::write(&path, commands).unwrap();
        let mut client = server.client("redis-cli");
        let input = fs::File::open(&path).unwrap();
        let output = client.arg("--pipe").stdin(input).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    // The server allocates some tables once, for its first keys and clients.
    write(100, "first");
    let mut grew = 0;
    attached(server.pid(), &file, is_hooked, || {
        let before = server.memory("used_memory");
        write(20_000, "key");
        grew = server.memory("used_memory") - before;
    });
    assert!(!is_hooked(), "functions are as they were");
    let live = number(&report(&file), "totals.leaked_bytes");
    // redis counts what jemalloc has for each block: up to a quarter more than was asked for; and
    // clients' buffers come and go.
    assert!(grew > 10_000_000, "{grew}");
    assert!(live > grew * 3 / 4 && live < grew + grew / 20, "{live} live of {grew}");
}
