//! Name and arguments of a process in few columns: the program and the script first, no folders.

use pagewise_model::Name;
use pagewise_model::sweep::ProcessIdentity;

/// Arguments are cut at this length: no terminal is wider.
const MAX_BYTES: usize = 400;

/// Programs that run a script, and their options that have a value in the next argument.
const INTERPRETERS: &[(&[u8], &[&[u8]])] = &[
    (b"python", &[b"-W", b"-X"]),
    (b"perl", &[b"-I", b"-M"]),
    (b"ruby", &[b"-I", b"-r"]),
    (b"node", &[b"-r", b"--require", b"--import"]),
    (b"php", &[b"-d", b"-c"]),
    (b"java", &[b"-cp", b"-classpath", b"--class-path", b"-p", b"--module-path", b"--add-opens"]),
    (b"bash", &[b"-O", b"-o"]),
    (b"dash", &[b"-o"]),
    (b"sh", &[b"-o"]),
    (b"zsh", &[b"-o"]),
    (b"lua", &[b"-l"]),
];

/// Options of interpreters after which no script follows, or whose value names it.
const NAMES_CODE: &[&[u8]] = &[b"-m", b"-c", b"-e", b"-jar", b"-lc"];

/// The name of a process for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramName {
    /// The program without its folder, or `comm` in brackets if the command line is unknown.
    pub name: Name,
    /// The arguments: paths without their folders, options of interpreters left out.
    pub arguments: Name,
}

impl ProgramName {
    /// The name and the arguments in one line.
    pub(crate) fn line(&self) -> Vec<u8> {
        match self.arguments.as_bytes() {
            [] => self.name.as_bytes().to_vec(),
            arguments => [self.name.as_bytes(), b" ", arguments].concat(),
        }
    }
}

/// The command line with all arguments, and the program without its folder; `comm` in brackets if
/// the command line is unknown.
pub(crate) fn whole_command(identity: &ProcessIdentity) -> Name {
    match identity.command.as_deref().unwrap_or_default() {
        [] => bracketed(&identity.name),
        [program, arguments @ ..] => {
            let arguments = arguments.iter().map(Name::as_bytes);
            let words: Vec<&[u8]> = std::iter::once(program.base()).chain(arguments).collect();
            Name::new(&words.join(&b' '))
        }
    }
}

/// The words of a command line with blanks between; `None` without words.
pub(crate) fn joined(words: &[Name]) -> Option<Name> {
    let words: Vec<&[u8]> = words.iter().map(Name::as_bytes).collect();
    (!words.is_empty()).then(|| Name::new(&words.join(&b' ')))
}

/// The name of a process whose command line is unknown.
pub(crate) fn bracketed(name: &Name) -> Name {
    Name::new(&[b"[", name.as_bytes(), b"]"].concat())
}

/// The name and the arguments of a process.
pub fn program_name(identity: &ProcessIdentity) -> ProgramName {
    of_command(&identity.name, identity.command.as_deref().unwrap_or_default())
}

/// The name and the arguments of a process with this `comm` and this command line.
pub(crate) fn of_command(comm: &Name, command: &[Name]) -> ProgramName {
    let words = words(command);
    let Some((first, arguments)) = words.split_first() else {
        return ProgramName { name: bracketed(comm), arguments: Name::default() };
    };
    let first = first.strip_prefix(b"-").unwrap_or(first);
    let name = last_component(first);
    let mut text = Vec::new();
    for argument in without_options(name, arguments) {
        if text.len() >= MAX_BYTES {
            break;
        }
        if !text.is_empty() {
            text.push(b' ');
        }
        push_short(&mut text, argument);
    }
    ProgramName { name: Name::new(name), arguments: Name::new(&text) }
}

/// The words of the command line. A program that writes a title there leaves one word with spaces.
fn words(command: &[Name]) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = command.iter().map(Name::as_bytes).collect();
    while words.last().is_some_and(|word| word.is_empty()) {
        words.pop();
    }
    match words.as_slice() {
        [title] if title.contains(&b' ') => {
            title.split(|&b| b == b' ').filter(|word| !word.is_empty()).collect()
        }
        _ => words,
    }
}

/// The part of a path behind its last folder.
fn last_component(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").filter(|rest| !rest.is_empty()).unwrap_or(path);
    path.rsplit(|&b| b == b'/').next().filter(|base| !base.is_empty()).unwrap_or(path)
}

/// The arguments from the script on, if the program is an interpreter.
fn without_options<'a>(program: &[u8], arguments: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
    let version = |suffix: &[u8]| suffix.iter().all(|b| b.is_ascii_digit() || *b == b'.');
    let interpreter =
        INTERPRETERS.iter().find(|(name, _)| program.strip_prefix(*name).is_some_and(version));
    let Some((_, with_value)) = interpreter else { return arguments };
    let mut at = 0;
    while let Some(argument) = arguments.get(at) {
        if NAMES_CODE.contains(argument) || !argument.starts_with(b"-") {
            return &arguments[at..];
        }
        at += if with_value.contains(argument) { 2 } else { 1 };
    }
    arguments
}

/// Appends an argument; an absolute path in it loses its folders, if its last part is a name:
/// `/dev/fd/3` stays.
fn push_short(text: &mut Vec<u8>, argument: &[u8]) {
    let start = match argument.iter().position(|&b| b == b'/') {
        Some(0) => 0,
        Some(at) if argument[at - 1] == b'=' => at,
        _ => argument.len(),
    };
    let (head, path) = argument.split_at(start);
    text.extend_from_slice(head);
    let base = last_component(path);
    let is_name = base.iter().any(|b| !b.is_ascii_digit());
    text.extend_from_slice(if is_name { base } else { path });
    text.truncate(MAX_BYTES);
}

#[cfg(test)]
mod tests {
    use pagewise_model::{Absent, Pid};

    use super::*;

    fn shown(command: &[&str]) -> (String, String) {
        let name = program_name(&ProcessIdentity {
            name: "comm".into(),
            parent: Pid(1),
            command: Ok(command.iter().map(|word| Name::from(*word)).collect()),
            exe: Err(Absent::Vanished),
            uid: Ok(0),
            user: None,
            cgroup: Err(Absent::Vanished),
            started_unix_ns: 0,
        });
        (name.name.escaped().into_owned(), name.arguments.escaped().into_owned())
    }

    fn assert_shown(command: &[&str], name: &str, arguments: &str) {
        assert_eq!(shown(command), (name.to_owned(), arguments.to_owned()), "{command:?}");
    }

    #[test]
    fn a_program_stands_without_its_folder() {
        let rustc = ["/opt/rust/bin/rustc", "--crate-name", "object", "/src/lib.rs"];
        assert_shown(&rustc, "rustc", "--crate-name object lib.rs");
        assert_shown(&["cc1", "--out=/tmp/a/b.o", "a/b.c"], "cc1", "--out=b.o a/b.c");
        assert_shown(&["-bash"], "bash", "");
        assert_shown(&["/"], "/", "");
        assert_shown(&["ls", "/"], "ls", "/");
        assert_shown(&["bash", "/dev/fd/3", "/srv/1"], "bash", "/dev/fd/3 /srv/1");
    }

    #[test]
    fn an_interpreter_is_followed_by_its_script() {
        assert_shown(
            &["/usr/bin/python3.11", "-u", "/srv/app.py", "-v"],
            "python3.11",
            "app.py -v",
        );
        assert_shown(&["python3", "-W", "all", "-m", "http.server"], "python3", "-m http.server");
        let java = ["java", "-Xmx2g", "-cp", "/a.jar:/b.jar", "org.example.Main", "x"];
        assert_shown(&java, "java", "org.example.Main x");
        assert_shown(&["java", "-Xmx1g", "-jar", "/opt/server.jar"], "java", "-jar server.jar");
        assert_shown(&["bash", "--login"], "bash", "--login");
    }

    #[test]
    fn a_title_is_split_at_its_spaces() {
        assert_shown(&["postgres: checkpointer "], "postgres:", "checkpointer");
        let nginx = "nginx: master process /usr/sbin/nginx -g daemon";
        assert_shown(&[nginx], "nginx:", "master process nginx -g daemon");
    }

    #[test]
    fn a_process_without_a_command_line_has_its_comm_in_brackets() {
        assert_shown(&[], "[comm]", "");
        assert_shown(&["", ""], "[comm]", "");
    }

    #[test]
    fn arguments_are_bounded() {
        let long = "x".repeat(100_000);
        assert_eq!(shown(&["a", &long, "b"]).1.len(), MAX_BYTES);
    }
}
