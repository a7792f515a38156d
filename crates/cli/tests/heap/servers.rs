//! `heap scan --leaks` of servers that have answered requests: nginx, redis and PostgreSQL.
//! memcheck must call each lost block lost, too.

use crate::fixture;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::leaks::LiveProgram;
use fixture::{json, number, tool};
use pagewise_skip::{Lack, skip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const NGINX_SETTINGS: &str = "
daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events { worker_connections 64; }
http {
    access_log off; gzip on; gzip_min_length 1; gzip_types *;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {
        listen unix:FOLDER/socket; root FOLDER; autoindex on;
        location /made { return 200 text; }
    }
}
";

/// A server, and requests that it answers on its socket.
struct ServerProgram {
    /// `FOLDER` stands for a folder of its own.
    words: &'static [&'static str],
    requests: fn() -> String,
}

const SERVERS: [ServerProgram; 2] = [
    ServerProgram {
        words: &["nginx", "-p", "FOLDER", "-c", "nginx.conf", "-e", "stderr"],
        requests: || {
            let get = |path: &&str| {
                format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
            };
            ["/", "/nginx.conf", "/made", "/nothing"].iter().map(get).collect::<String>().repeat(20)
        },
    },
    ServerProgram {
        words: &[
            "redis-server",
            "--port",
            "0",
            "--save",
            "",
            "--unixsocket",
            "FOLDER/socket",
            "--dir",
            "FOLDER",
        ],
        requests: || {
            let keys = (0..2000).map(|at| {
                let text = "x".repeat(at % 200);
                format!("SET key{at} a{text}\r\nLPUSH list {at}\r\nHSET hash f{at} {at}\r\n")
            });
            keys.collect()
        },
    },
];

/// A server that has answered. It is killed when this value is dropped.
struct RunningServer {
    process: Child,
    connection: UnixStream,
    /// Its files, which are removed when this value is dropped.
    _folder: TempDir,
}

impl RunningServer {
    /// Starts a server with some words before its own, and asks it. `None` if it is not installed.
    fn start(program: &ServerProgram, before: &[&str]) -> Option<RunningServer> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let placed = |word: &str| word.replace("FOLDER", path);
        fs::write(folder.path().join("nginx.conf"), placed(NGINX_SETTINGS)).unwrap();
        let words: Vec<String> =
            before.iter().chain(program.words).map(|word| placed(word)).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = command.spawn().ok()?;
        let connection = connected(&mut process, &folder.path().join("socket"));
        let mut server = RunningServer { process, connection, _folder: folder };
        server.ask(&(program.requests)());
        Some(server)
    }

    /// Sends requests, and reads answers until none comes any more.
    fn ask(&mut self, requests: &str) {
        let mut connection = self.connection.try_clone().unwrap();
        let mut answers = connection.try_clone().unwrap();
        let bytes = requests.as_bytes().to_vec();
        let sender = std::thread::spawn(move || connection.write_all(&bytes).unwrap());
        let mut bytes = [0; 1 << 16];
        assert!(answers.read(&mut bytes).unwrap() > 0, "no answer");
        answers.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        while answers.read(&mut bytes).is_ok_and(|read| read > 0) || !sender.is_finished() {}
        sender.join().unwrap();
    }

    fn scan(&self) -> Value {
        let pid = self.process.id().to_string();
        json(&["heap", "scan", &pid, "--leaks", "--json", "--top", "all", "--max-pause", "1min"])
    }

    fn terminate(&mut self) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connected(process: &mut Child, socket: &Path) -> UnixStream {
    loop {
        if let Ok(connection) = UnixStream::connect(socket) {
            return connection;
        }
        assert!(process.try_wait().unwrap().is_none(), "the server has ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Number of blocks that memcheck calls lost, `None` if it cannot run the server.
fn lost_by_memcheck(program: &ServerProgram) -> Option<u64> {
    tool("valgrind", &["--version"])?;
    let log = tempfile::NamedTempFile::new().unwrap();
    let file = format!("--log-file={}", log.path().display());
    let mut server =
        RunningServer::start(program, &["valgrind", "--leak-check=full", &file]).unwrap();
    server.terminate();
    Some(lost_blocks(&fs::read_to_string(log.path()).unwrap()))
}

/// Number of blocks that a report of memcheck calls lost.
fn lost_blocks(memcheck: &str) -> u64 {
    let sums = ["definitely lost:", "indirectly lost:", "possibly lost:"];
    sums.iter().map(|of| super::leaks::memcheck_sums(memcheck, of).0).sum()
}

/// A user and a group without rights.
const NOBODY: u32 = 65534;

/// The folder with the newest programs of PostgreSQL.
fn postgres_folder() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.map_while(Result::ok);
    let folders = versions.map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

/// A program of PostgreSQL, which refuses to run as root.
fn postgres_program(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

const QUERIES: &str = "create table a (b int, c text)
insert into a select i, 'text' || i from generate_series(1, 5000) i
create index d on a (c)
select count(*) from a where c like '%7%'
do $$ begin for i in 1..200 loop perform upper(c) from a where b = i; end loop; end $$
";

#[test]
fn a_database_that_has_answered_has_no_false_leaks() {
    let Some(programs) = postgres_folder() else { return skip(&Lack::Tool("postgres")) };
    // It is in the folder for temporary files, so that any user can enter it.
    let folder = tempfile::tempdir().unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let data = folder.path().join("data");
    let mut initdb = postgres_program(&programs.join("initdb"));
    let made = initdb.arg("-D").arg(&data).args(["-A", "trust", "-N"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let database = |mut command: Command| {
        command.arg("--single").arg("-D").arg(&data);
        command.args(["-c", "shared_buffers=1MB", "postgres"]);
        command
    };
    let postgres = programs.join("postgres");
    let target = LiveProgram::of_input(database(postgres_program(&postgres)), QUERIES);
    let report = target.expect("it waits for queries").scan(&["--leaks"]);
    let (found, live) = (number(&report, "leaked.blocks"), number(&report, "live.blocks"));
    eprintln!("postgres: {found} of {live} blocks are lost");
    assert!(live > 300, "{live} blocks");
    if found == 0 || tool("valgrind", &["--version"]).is_none() {
        return;
    }
    // PostgreSQL replaces its copy of the environment. An old pointer on the stack may still lead
    // to the first copy.
    let mut memcheck = postgres_program(Path::new("valgrind"));
    memcheck.arg("--leak-check=full").arg(postgres);
    let output = database(memcheck).stdin(Stdio::null()).output().unwrap();
    let lost = lost_blocks(&String::from_utf8_lossy(&output.stderr));
    assert!(found <= lost, "memcheck: {lost}; {}", report["leaks"]);
}

#[test]
fn servers_that_have_answered_have_no_false_leaks() {
    for program in &SERVERS {
        let Some(server) = RunningServer::start(program, &[]) else {
            skip(&Lack::Tool(program.words[0]));
            continue;
        };
        let report = server.scan();
        drop(server);
        let (found, live) = (number(&report, "leaked.blocks"), number(&report, "live.blocks"));
        eprintln!("{}: {found} of {live} blocks are lost", program.words[0]);
        assert!(live > 1000, "{}: {live} blocks", program.words[0]);
        if found > 0 {
            let Some(known) = lost_by_memcheck(program) else { return };
            assert!(found <= known, "memcheck finds {known}: {}", report["leaks"]);
        }
    }
}
