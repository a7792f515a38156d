//! The groups of commands in `pagewise --help`.

use std::fmt::Write;

use clap::CommandFactory;

use super::Cli;

/// Each group, by its heading, with its commands.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Look at memory", &["explain", "maps", "ps", "diff", "pages", "pools"]),
    ("Record", &["heap", "guard", "faults", "shootdowns", "syscalls", "watch", "stat"]),
    ("Fix", &["thp", "run"]),
    ("System", &["doctor", "fragmentation", "events"]),
    ("Learn", &["lab", "sim", "define"]),
    ("Shell", &["completions", "man", "help"]),
];

/// The command line, with its commands in groups.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let commands = listing(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{commands}\nOptions:\n{{options}}\n\n\
        `pagewise COMMAND --help` describes a command, with examples.\n"
    ))
}

fn listing(command: &clap::Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(text, "\n{heading}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about
                .map_or("Print this help, or the help of a command".into(), ToString::to_string);
            let _ = writeln!(text, "  {name:<14} {about}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group_on_one_line_of_80_columns() {
        let command = Cli::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let mut all: Vec<&str> = shown.map(clap::Command::get_name).chain(["help"]).collect();
        all.sort_unstable();
        assert_eq!(grouped, all);
        for line in listing(&command).lines() {
            assert!(line.len() <= 80 && !line.contains('{'), "{line}");
        }
    }
}
