//! Healthy real programs under load: a tool must report no cause for them.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagewise_corpus::build::{is_installed, work_folder};
use pagewise_corpus::{Running, environment};

use super::judge::{JudgedRun, ToolAnswer, Verdict, judge_healthy};
use super::tool::DiagnosingTool;

/// A program without a memory problem. The scripts run in a folder of their own; `$PORT` is a free
/// port.
struct HealthyProgram {
    name: &'static str,
    /// Programs that must be installed.
    programs: &'static [&'static str],
    /// Commands that prepare the folder; the last one is started by `exec` and examined.
    start: &'static str,
    /// Command that succeeds as soon as load can be put on the program.
    probe: &'static str,
    /// Commands of one step of load; empty for a program that computes by itself.
    load: &'static str,
}

/// Precedes the start script of each program: chooses the port, and reports that the script runs.
const PRELUDE: &str = "set -e\nexport PORT=$((20000 + $$ % 20000))\necho $PORT >port\necho ready\n";

/// Sets `$PORT` in the scripts of the probe and of the load.
const WITH_PORT: &str = "PORT=$(cat port 2>/dev/null)\n";

const HTTP_PROBE: &str = "curl -sf -o page http://127.0.0.1:$PORT/";
const HTTP_LOAD: &str =
    "for i in 1 2 3 4 5 6 7 8; do curl -s -o page http://127.0.0.1:$PORT/; done";

const PROGRAMS: &[HealthyProgram] = &[
    HealthyProgram {
        name: "redis",
        programs: &["redis-server", "redis-benchmark"],
        start: "exec redis-server --port $PORT --save '' --appendonly no --maxmemory 64mb \
                --maxmemory-policy allkeys-lru",
        probe: "redis-cli -p $PORT ping",
        load: "redis-benchmark -p $PORT -q -n 2000 -c 8 -r 100000 -d 200 -t set,get,lpush,lrange_100",
    },
    HealthyProgram {
        name: "memcached",
        programs: &["memcached", "python3", "bash"],
        start: "exec memcached -u nobody -p $PORT -m 32 -l 127.0.0.1",
        probe: "bash -c ': </dev/tcp/127.0.0.1/'$PORT",
        load: "python3 -c \"
import socket, random
s = socket.create_connection(('127.0.0.1', $PORT))
for i in range(2000):
    s.sendall(b'set k%d 0 0 500\\r\\n%s\\r\\n' % (random.randrange(9000), b'x' * 500)); s.recv(99)\"",
    },
    HealthyProgram {
        name: "postgres",
        programs: &["postgres", "initdb", "psql"],
        start: "chmod 777 . && su nobody -s /bin/sh -c 'initdb -D data -U corpus -A trust' >log 2>&1\n\
                exec setpriv --reuid nobody --clear-groups postgres -D data -p $PORT -k $PWD",
        probe: "psql -h 127.0.0.1 -p $PORT -U corpus -d postgres -c 'create table if not exists t (a int, b text)'",
        load: "psql -q -h 127.0.0.1 -p $PORT -U corpus -d postgres -c \
               \"insert into t select i, md5(i::text) from generate_series(1, 5000) i; \
               select count(*) from t where b like 'a%'; delete from t\"",
    },
    HealthyProgram {
        name: "mariadb",
        programs: &["mysqld", "mysql_install_db", "mysql"],
        start: "chmod 777 . && mkdir data && chown nobody data && mysql_install_db --user=nobody \
                --auth-root-authentication-method=normal --datadir=$PWD/data >log 2>&1\n\
                exec mysqld --no-defaults --user=nobody --datadir=$PWD/data --port=$PORT --socket=$PWD/socket",
        probe: "mysql -u root -S socket -e 'create table if not exists test.t (a int, b text)'",
        load: "mysql -u root -S socket -e \"insert into test.t select seq, md5(seq) from \
               test.seq_1_to_2000; select count(*) from test.t; truncate test.t\" || \
               mysql -u root -S socket -e 'select benchmark(200000, md5(1))'",
    },
    HealthyProgram {
        name: "nginx",
        programs: &["nginx", "curl"],
        start: "seq 20000 >index.html\ncat >conf <<END\ndaemon off; pid $PWD/pid; error_log $PWD/errors; \
                user root;\nevents { }\nhttp { access_log off; server { listen 127.0.0.1:$PORT; root $PWD; } }\nEND\n\
                exec nginx -p $PWD -c $PWD/conf",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "nginx-worker",
        programs: &["nginx", "curl"],
        start: "seq 20000 >index.html\ncat >conf <<END\ndaemon off; master_process off; pid $PWD/pid; \
                error_log $PWD/errors;\nevents { }\nhttp { access_log off; gzip on; gzip_types *; \
                server { listen 127.0.0.1:$PORT; root $PWD; } }\nEND\nexec nginx -p $PWD -c $PWD/conf",
        probe: HTTP_PROBE,
        load: "for i in 1 2 3 4; do curl -s --compressed -o page http://127.0.0.1:$PORT/; done",
    },
    HealthyProgram {
        name: "sqlite3",
        programs: &["sqlite3"],
        start: "mkfifo in\nexec sqlite3 base.db <>in >out",
        probe: "echo 'create table if not exists t (a integer primary key, b text);' >in",
        load: "echo \"begin; insert or replace into t select value, hex(randomblob(50)) from \
               generate_series(1, 5000); commit; select count(*) from t where b like '%AB%';\" >in",
    },
    HealthyProgram {
        name: "git",
        programs: &["git"],
        start: "git init -q repo && cd repo && seq 50000 >file && git add file && \
                git -c user.name=x -c user.email=x@x commit -qm x && mkfifo ../in\n\
                exec git cat-file --batch <>../in >/dev/null",
        probe: "test -p in",
        load: "for i in 1 2 3 4 5 6 7 8 9; do echo HEAD:file; done >in",
    },
    HealthyProgram {
        name: "python-http",
        programs: &["python3", "curl"],
        start: "seq 5000 >index.html\nexec python3 -m http.server $PORT --bind 127.0.0.1 2>log",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "perl",
        programs: &["perl"],
        start: "exec perl -e 'while (1) { my %h; $h{$_} = \"x\" x ($_ % 90) for 1..20000; \
                select undef, undef, undef, 0.2 }'",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "ruby",
        programs: &["ruby"],
        start: "exec ruby -e 'loop { a = (1..20000).map { |i| i.to_s * 3 }; a.sort!; sleep 0.2 }'",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "php",
        programs: &["php", "curl"],
        start: "echo '<?php echo md5(str_repeat(\"x\", 100000));' >index.php\n\
                exec php -S 127.0.0.1:$PORT 2>log",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "node",
        programs: &["node", "curl"],
        start: "exec node -e \"require('http').createServer((q, r) => { \
                const a = Array.from({length: 9000}, (_, i) => ({i, s: 'k' + i})); \
                r.end(JSON.stringify(a)); }).listen($PORT, '127.0.0.1')\"",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "java",
        programs: &["javac", "java", "curl"],
        start: "cat >Web.java <<END\nimport com.sun.net.httpserver.*; import java.net.*;\n\
                public class Web { public static void main(String[] a) throws Exception {\n\
                HttpServer s = HttpServer.create(new InetSocketAddress(\"127.0.0.1\", $PORT), 0);\n\
                s.createContext(\"/\", x -> { StringBuilder b = new StringBuilder();\n\
                for (int i = 0; i < 9000; i++) b.append(i); byte[] t = b.toString().getBytes();\n\
                x.sendResponseHeaders(200, t.length); x.getResponseBody().write(t); x.close(); });\n\
                s.start(); } }\nEND\njavac Web.java\nexec java -cp . Web",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "go",
        programs: &["go", "curl"],
        start: "cat >web.go <<END\npackage main\nimport (\"fmt\"; \"net/http\")\nfunc main() {\n\
                http.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) {\n\
                m := map[int]string{}; for i := 0; i < 9000; i++ { m[i] = fmt.Sprint(i) }\n\
                fmt.Fprint(w, len(m)) })\nhttp.ListenAndServe(\"127.0.0.1:$PORT\", nil) }\nEND\n\
                go build -o web web.go\nexec ./web",
        probe: HTTP_PROBE,
        load: HTTP_LOAD,
    },
    HealthyProgram {
        name: "chromium",
        programs: &["chromium"],
        start: "echo '<script>setInterval(() => { document.title = new Array(9999).join(Date.now()) \
                .length }, 50)</script>' >page.html\nexec chromium --headless --no-sandbox \
                --disable-gpu --user-data-dir=$PWD/profile --remote-debugging-port=$PORT \
                file://$PWD/page.html >log 2>&1",
        probe: "curl -sf -o page http://127.0.0.1:$PORT/json",
        load: "curl -s -o page http://127.0.0.1:$PORT/json",
    },
    HealthyProgram {
        name: "cc1plus",
        programs: &["g++"],
        start: "{ echo '#include <map>'; echo '#include <string>'; for i in $(seq 3000); do \
                echo \"int f$i(int n) { std::map<int, std::string> m; m[n] = std::to_string(n * $i); \
                return (int)m.size(); }\"; done; } >big.cpp\ng++ -E big.cpp >big.ii\n\
                exec $(g++ -print-prog-name=cc1plus) -quiet -fpreprocessed -O2 big.ii -o big.s",
        probe: "sleep 1",
        load: "",
    },
    HealthyProgram {
        name: "vim",
        programs: &["vim", "script"],
        // The undo history is off: it would grow with each change.
        start: "seq 100000 >text\nexec vim -es -u NONE -c 'set undolevels=-1' -c 'while 1 | %s/1/2/g | %s/2/1/g | \
                sleep 300m | endwhile' text",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "bash",
        programs: &["bash"],
        start: "exec bash -c 'while :; do a=(); for i in {1..3000}; do a+=(\"$i\"); done; sleep 0.2; done'",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "gawk",
        programs: &["gawk"],
        start: "exec gawk 'BEGIN { while (1) { for (i = 0; i < 20000; i++) a[i] = i \"x\"; delete a; \
                system(\"sleep 0.2\") } }'",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "lua",
        programs: &["lua"],
        start: "exec lua -e 'while true do local t = {} for i = 1, 20000 do t[i] = tostring(i) end \
                local e = os.clock() + 0.05 while os.clock() < e do end end'",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "tclsh",
        programs: &["tclsh"],
        start: "echo 'while 1 { set l {}; for {set i 0} {$i < 20000} {incr i} { lappend l $i }; \
                lsort $l; after 200 }' >loop.tcl\nexec tclsh loop.tcl",
        probe: "true",
        load: "",
    },
    HealthyProgram {
        name: "xz",
        programs: &["xz"],
        start: "mkfifo in\nexec xz -3 -c <>in >/dev/null",
        probe: "test -p in",
        load: "seq 50000 >in",
    },
    HealthyProgram {
        name: "zstd",
        programs: &["zstd"],
        start: "mkfifo in\nexec zstd -10 -q -c <>in >/dev/null",
        probe: "test -p in",
        load: "seq 50000 >in",
    },
    HealthyProgram {
        name: "jq",
        programs: &["jq"],
        start: "mkfifo in\nexec jq -c '.a | length' <>in >/dev/null",
        probe: "test -p in",
        load: "echo \"{\\\"a\\\": [$(seq -s, 20000)]}\" >in",
    },
    HealthyProgram {
        name: "gdb",
        programs: &["gdb"],
        start: "mkfifo in\nexec gdb -q -nx $(command -v bash) <>in >/dev/null 2>&1",
        probe: "test -p in",
        load: "echo 'info functions ^x' >in",
    },
    HealthyProgram {
        name: "tmux",
        programs: &["tmux"],
        start: "exec tmux -D -S $PWD/socket",
        probe: "tmux -S $PWD/socket new-session -d -s s || tmux -S $PWD/socket has-session -t s",
        load: "tmux -S $PWD/socket send-keys -t s 'seq 2000' Enter",
    },
];

/// The loads, and the sleep between two steps; an idle program gets no step.
const LOADS: &[(&str, Option<Duration>)] = &[
    ("idle", None),
    ("light", Some(Duration::from_millis(500))),
    ("heavy", Some(Duration::from_millis(10))),
];

/// Time limit for a program to become ready, and the sleep between two tries of the probe.
const MAX_PROBE_TIME: Duration = Duration::from_secs(90);
const PROBE_SLEEP: Duration = Duration::from_millis(300);

/// Time for which the load runs before the tool is started.
const WARM_UP: Duration = Duration::from_secs(2);

/// Examines every healthy program under every load. `only` has the names of the wanted programs;
/// empty for all.
pub(crate) fn diagnose_all(tool: &DiagnosingTool, only: &[String]) -> Result<Vec<JudgedRun>> {
    let mut runs = Vec::new();
    let is_chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    for program in PROGRAMS.iter().filter(|program| is_chosen(program.name)) {
        for (load, sleep) in LOADS {
            if program.load.is_empty() && *load != "heavy" {
                // The program computes by itself, so all loads would be the same: it runs only
                // once.
                continue;
            }
            let mut run = healthy_run(program.name, load);
            if let Err(error) = diagnose(program, *sleep, tool, &mut run) {
                run.verdict = Verdict::Skipped(format!("{error:#}"));
            }
            println!("{}", super::table::line(&run));
            runs.push(run);
        }
    }
    Ok(runs)
}

fn healthy_run(program: &str, load: &str) -> JudgedRun {
    JudgedRun {
        name: format!("{program} {load}"),
        subject: "healthy".to_owned(),
        is_sick: false,
        verdict: Verdict::NoAnswer(String::new()),
        answer: ToolAnswer::default(),
        wall: Duration::ZERO,
        cpu_ms: None,
    }
}

fn diagnose(
    program: &HealthyProgram,
    sleep: Option<Duration>,
    tool: &DiagnosingTool,
    run: &mut JudgedRun,
) -> Result<()> {
    if let Some(missing) = program.programs.iter().find(|name| !is_installed(name)) {
        anyhow::bail!("{missing} is not installed");
    }
    let environment =
        environment::prepare(&work_folder(), &[], false)?.map_err(anyhow::Error::msg)?;
    let folder = environment.folder.clone();
    let script = format!("{PRELUDE}{}", program.start);
    let line = vec!["sh".to_owned(), "-c".to_owned(), script];
    let mut running = Running::start(&line, &[], &[], environment)?;
    wait_for_probe(program, &folder, &mut running)?;
    let load = sleep.filter(|_| !program.load.is_empty());
    let load = load.map(|sleep| LoadDriver::start(program.load, &folder, sleep)).transpose()?;
    thread::sleep(WARM_UP);
    tool.examine(running.pid, run, load.is_none(), judge_healthy);
    drop(load);
    anyhow::ensure!(running.is_alive(), "the program ended meanwhile");
    Ok(())
}

fn wait_for_probe(
    program: &HealthyProgram,
    folder: &std::path::Path,
    running: &mut Running,
) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < MAX_PROBE_TIME {
        let script = format!("{WITH_PORT}{}", program.probe);
        let mut probe = Command::new("timeout");
        probe.args(["5", "sh", "-c", &script]).current_dir(folder);
        if probe.output().context("timeout")?.status.success() {
            return Ok(());
        }
        anyhow::ensure!(running.is_alive(), "the program ended before it was ready");
        thread::sleep(PROBE_SLEEP);
    }
    anyhow::bail!("the probe failed for {} s", MAX_PROBE_TIME.as_secs())
}

/// A process group that repeats the step of a load. The group is ended when this value is dropped.
struct LoadDriver {
    /// Dropping it kills the processes of the load.
    _running: Running,
}

impl LoadDriver {
    fn start(step: &str, folder: &std::path::Path, sleep: Duration) -> Result<LoadDriver> {
        let environment =
            environment::prepare(&work_folder(), &[], false)?.map_err(anyhow::Error::msg)?;
        let script = format!(
            "echo ready\ncd '{}'\n{WITH_PORT}export PORT\nwhile :; do\n{{ {step}\n}} >/dev/null 2>&1\nsleep {}\ndone",
            folder.display(),
            sleep.as_secs_f64(),
        );
        let line = vec!["sh".to_owned(), "-c".to_owned(), script];
        Ok(LoadDriver { _running: Running::start(&line, &[], &[], environment)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_25_programs_with_different_names() {
        let mut names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len());
        assert!(names.len() >= 25, "{}", names.len());
    }

    #[test]
    fn every_script_is_valid_for_the_shell() {
        for program in PROGRAMS {
            for script in [program.start, program.probe, program.load] {
                let status = Command::new("sh").args(["-n", "-c", script]).status().unwrap();
                assert!(status.success(), "{}: {script}", program.name);
            }
        }
    }
}
