//! `weir manual` and `weir completions`, generated from the tables that also parse the command
//! line.

use std::io;

use clap::{Arg, ArgAction, Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use weir_server::{FLAGS, Flag};

use crate::tools;

/// Prints a page of the manual in the form that man(1) reads: weir manual | man -l -
#[derive(Debug, Parser)]
#[command(name = "weir manual", bin_name = "weir manual")]
pub struct Manual {
    /// The page of a tool [default: the server's]
    tool: Option<String>,
}

/// Prints what a shell needs to complete this command line: source <(weir completions bash)
#[derive(Debug, Parser)]
#[command(name = "weir completions", bin_name = "weir completions")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

const ABOUT: &str = "A web server, reverse proxy and cache that reads nginx.conf";

const LONG: &str = "weir takes nginx's place: the same configuration, command line and signals. Without -c or -p it serves \
    /etc/nginx/nginx.conf, or /etc/weir/nginx.conf where that is not there, or else a page of its own on 127.0.0.1:8080.

A word in place of options is a tool, each with a page of its own, as weir-manual(1).";

const SIGNALS: &str = "\
    TERM, INT: end at once.  QUIT: answer what is in progress, then end.  HUP: take the configuration anew.  USR1: open the \
    logs anew.  USR2: start the program anew on the same sockets.  WINCH: end the workers, keep the master.";

/// Sections in the format of man(1) that clap_mangen cannot generate.
const SECTIONS: &str = r#".SH FILES
.TP
/etc/nginx/nginx.conf
The configuration without \-c or \-p, with conf/nginx.conf under a prefix in its place.
.TP
/etc/weir/nginx.conf
The configuration of weir's own package, for machines without nginx.
.TP
/var/log/nginx/error.log, /var/log/nginx/access.log
The logs unless the configuration names others; logs/error.log and logs/access.log under a prefix.
.TP
/run/nginx.pid
The number of the master process, unless the configuration names another file.
.SH "EXIT STATUS"
0: the server has ended in order or is in the background, the configuration is right (\-t, \-T), or the signal was sent (\-s). 1: anything else; standard error and the error log say what.
"#;

/// Runs `weir manual`. Returns the exit status.
pub fn manual(options: Manual) -> i32 {
    let mut page = Vec::new();
    let rendered = match options.tool {
        None => server_page(&mut page),
        Some(name) => match tools::built().find(|(tool, _)| tool.name == name) {
            Some((_, built)) => {
                let command = (built.command)().name(format!("weir-{name}"));
                let command = command.bin_name(format!("weir {name}"));
                let usage = usage(&command, &format!("weir {name}"));
                Man::new(command.override_usage(usage)).render(&mut page)
            }
            None => {
                eprintln!("weir manual: there is no tool \"{name}\"; weir -h names them");
                return 2;
            }
        },
    };
    match rendered {
        Ok(()) => weir_print::ending("weir manual", page, 0),
        Err(e) => {
            eprintln!("weir manual: {e}");
            1
        }
    }
}

/// Runs `weir completions`. Returns the exit status.
pub fn completions(options: Completions) -> i32 {
    let mut command = server().subcommands(tools::built().map(|(tool, built)| {
        let all = (built.command)().name(tool.name).bin_name(format!("weir {}", tool.name));
        all.about(tool.about)
    }));
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, "weir", &mut text);
    weir_print::ending("weir completions", text, 0)
}

fn server_page(page: &mut Vec<u8>) -> io::Result<()> {
    let tools = tools::built();
    let tools = tools.map(|(tool, _)| format!("weir-{}(1): {}", tool.name, tool.about));
    let tools: Vec<String> = tools.collect();
    let command = server();
    let usage = usage(&command, "weir") + "\nweir TOOL ...";
    let command = command.override_usage(usage).after_long_help(format!(
        "Signals to the master process: {SIGNALS}\n\n{}",
        tools.join("\n\n")
    ));
    Man::new(command).section("8").render(page)?;
    page.extend_from_slice(SECTIONS.as_bytes());
    Ok(())
}

/// The SYNOPSIS of a command. The one of clap_mangen lacks values.
fn usage(command: &Command, name: &str) -> String {
    let options = command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set());
    let words = options.map(option).chain(command.get_positionals().map(positional));
    words.fold(name.to_owned(), |line, word| line + " " + &word)
}

/// `[-s stop|quit|reopen|reload]`, or `[-k|--insecure]`.
fn option(arg: &Arg) -> String {
    let names =
        [arg.get_short().map(|c| format!("-{c}")), arg.get_long().map(|l| format!("--{l}"))];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join("|");
    match arg.get_action() {
        ArgAction::Set | ArgAction::Append => format!("[{names} {}]{}", value(arg), repeated(arg)),
        _ => format!("[{names}]"),
    }
}

fn positional(arg: &Arg) -> String {
    let value = value(arg);
    let value = if arg.is_required_set() { value } else { format!("[{value}]") };
    value + repeated(arg)
}

fn repeated(arg: &Arg) -> &'static str {
    if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" }
}

/// The possible values of an argument, or the name of its value.
fn value(arg: &Arg) -> String {
    let words = arg.get_possible_values();
    let words: Vec<&str> = words.iter().map(|word| word.get_name()).collect();
    match arg.get_value_names() {
        _ if !words.is_empty() => words.join("|"),
        Some(names) => names.join(" "),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// A description of the server's command line, which `weir_server` parses.
fn server() -> Command {
    let command =
        Command::new("weir").about(ABOUT).long_about(LONG).version(env!("CARGO_PKG_VERSION"));
    let command = command.disable_help_flag(true).disable_version_flag(true);
    let demo = Arg::new("demo").long("demo").action(ArgAction::SetTrue);
    let demo = demo.help("serve the built-in configuration, with a live panel of its own");
    command.disable_help_subcommand(true).args(FLAGS.iter().map(arg)).arg(demo)
}

/// The default of an option.
fn default(letter: char) -> &'static str {
    match letter {
        'p' => " [default: /usr/share/nginx/]",
        'c' => " [default: /etc/nginx/nginx.conf, or conf/nginx.conf under a prefix]",
        'e' => " [default: /var/log/nginx/error.log, or logs/error.log under a prefix]",
        _ => "",
    }
}

fn arg(flag: &Flag) -> Arg {
    let last = flag.letters.last().copied().unwrap_or_default();
    let arg = Arg::new(last.to_string()).short(last).help(flag.about.to_owned() + default(last));
    match flag.value {
        Some(name) if flag.values.is_empty() => arg.value_name(name),
        Some(name) => arg.value_name(name).value_parser(flag.values.to_vec()),
        None => arg.action(ArgAction::SetTrue),
    }
}
