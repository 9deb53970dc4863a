//! The command line, with nginx's rules: letters may be joined, and a value may follow its letter
//! directly.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// `-v`, and with `-V`, `-h` and `-?`: show the version.
    pub version: bool,
    /// `-V`: show the build options.
    pub configure: bool,
    /// `-h`, `-?`: show the options.
    pub help: bool,
    /// `-t`, `-T`: only check the configuration.
    pub test: bool,
    /// `-T`: print the configuration.
    pub dump: bool,
    /// `-q`: a check shows errors only.
    pub quiet: bool,
    /// `--demo`: serve the built-in configuration, even if there are configuration files.
    pub demo: bool,
    /// `-s`: the signal to a running master.
    pub signal: Option<Signal>,
    /// `-p`: the prefix of relative paths.
    pub prefix: Option<OsString>,
    /// `-c`: the configuration file.
    pub conf: Option<OsString>,
    /// `-e`: the error log until the configuration names one.
    pub error_log: Option<OsString>,
    /// `-g`: directives ahead of the configuration file.
    pub globals: Option<OsString>,
}

/// The signal of `-s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// TERM: close all connections and end.
    Stop,
    /// QUIT: finish the requests and end.
    Quit,
    /// USR1: reopen the log files.
    Reopen,
    /// HUP: read the configuration again.
    Reload,
}

impl Signal {
    fn parse(name: &OsStr) -> Option<Signal> {
        match name.as_bytes() {
            b"stop" => Some(Signal::Stop),
            b"quit" => Some(Signal::Quit),
            b"reopen" => Some(Signal::Reopen),
            b"reload" => Some(Signal::Reload),
            _ => None,
        }
    }
}

/// Why a command line is refused. [`fmt::Display`] gives nginx's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLineError {
    /// An unknown option: a word without a hyphen, or a letter.
    Option(String),
    /// `-s` with an unknown signal.
    Signal(OsString),
    /// An option without its value, which has this name.
    Missing(char, &'static str),
    /// `--demo` together with the name of a configuration.
    Demo,
}

impl fmt::Display for CommandLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandLineError::Option(text) => write!(f, "invalid option: \"{text}\""),
            CommandLineError::Signal(name) => {
                write!(f, "invalid option: \"-s {}\"", name.to_string_lossy())
            }
            CommandLineError::Missing(letter, what) => {
                write!(f, "option \"-{letter}\" requires {what}")
            }
            CommandLineError::Demo => f.write_str(
                "\"--demo\" serves the built-in configuration, it takes no -c and no -p",
            ),
        }
    }
}

impl std::error::Error for CommandLineError {}

/// Parses the arguments after the program's name.
pub fn parse(args: &[OsString]) -> Result<CommandLine, CommandLineError> {
    let mut options = CommandLine::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg == "--demo" {
            options.demo = true;
            continue;
        }
        let Some(letters) = arg.as_bytes().strip_prefix(b"-") else {
            return Err(CommandLineError::Option(arg.to_string_lossy().into_owned()));
        };
        options.word(letters, &mut rest)?;
    }
    if options.demo && options.names_a_file() {
        return Err(CommandLineError::Demo);
    }
    Ok(options)
}

impl CommandLine {
    /// Whether `-c` or `-p` names the configuration.
    pub fn names_a_file(&self) -> bool {
        self.conf.is_some() || self.prefix.is_some()
    }

    /// Parses the letters of an argument. A letter with a value takes the rest of the argument, or
    /// the next argument.
    fn word<'a>(
        &mut self,
        letters: &[u8],
        rest: &mut impl Iterator<Item = &'a OsString>,
    ) -> Result<(), CommandLineError> {
        let mut left = letters;
        while let Some((letter, after)) = left.split_first() {
            left = after;
            if self.plain(*letter) {
                continue;
            }
            let mut value = |what| {
                let here = (!after.is_empty()).then(|| OsString::from_vec(after.to_vec()));
                here.or_else(|| rest.next().cloned())
                    .ok_or(CommandLineError::Missing(char::from(*letter), what))
            };
            match letter {
                b'p' => self.prefix = Some(value("directory name")?),
                b'e' => self.error_log = Some(value("file name")?),
                b'c' => self.conf = Some(value("file name")?),
                b'g' => self.globals = Some(value("parameter")?),
                b's' => {
                    let name = value("parameter")?;
                    let signal = Signal::parse(&name);
                    self.signal = Some(signal.ok_or(CommandLineError::Signal(name))?);
                }
                other => return Err(CommandLineError::Option(char::from(*other).to_string())),
            }
            return Ok(());
        }
        Ok(())
    }

    /// Handles a letter without a value. False if the letter has one or is unknown.
    fn plain(&mut self, letter: u8) -> bool {
        match letter {
            b'?' | b'h' => (self.version, self.help) = (true, true),
            b'v' => self.version = true,
            b'V' => (self.version, self.configure) = (true, true),
            b't' => self.test = true,
            b'T' => (self.test, self.dump) = (true, true),
            b'q' => self.quiet = true,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_arguments_are_read_or_refused(args: Vec<Vec<u8>>) {
            let args: Vec<_> = args.into_iter().map(OsString::from_vec).collect();
            let _ = parse(&args);
        }

        #[test]
        fn letters_mean_the_same_joined_and_apart(letters in "[?hvVtTq]{0,8}") {
            let joined = read(&[&format!("-{letters}")]);
            let apart: Vec<_> = letters.chars().map(|letter| format!("-{letter}")).collect();
            let apart: Vec<_> = apart.iter().map(String::as_str).collect();
            proptest::prop_assert_eq!(joined, read(&apart));
        }
    }

    fn read(args: &[&str]) -> Result<CommandLine, CommandLineError> {
        parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_demo_needs_no_file_and_takes_none() {
        assert!(read(&["--demo", "-g", "worker_processes 2;"]).unwrap().demo);
        assert!(read(&["--demo", "-c", "x"]).is_err() && read(&["-p", "x", "--demo"]).is_err());
    }

    #[test]
    fn letters_may_be_joined() {
        let o = read(&["-tq"]).unwrap();
        assert!(o.test && o.quiet && !o.dump);
        let o = read(&["-Tp/dir", "-c", "x.conf"]).unwrap();
        assert!(o.test && o.dump);
        assert_eq!(o.prefix.unwrap(), "/dir");
        assert_eq!(o.conf.unwrap(), "x.conf");
    }

    #[test]
    fn values_follow_at_once_or_next() {
        let o = read(&["-gpid x;", "-e", "stderr", "-squit"]).unwrap();
        assert_eq!(o.globals.unwrap(), "pid x;");
        assert_eq!(o.error_log.unwrap(), "stderr");
        assert_eq!(o.signal, Some(Signal::Quit));
        assert_eq!(read(&["-s", "reload"]).unwrap().signal, Some(Signal::Reload));
        assert_eq!(read(&["-s", "stop"]).unwrap().signal, Some(Signal::Stop));
        assert_eq!(read(&["-s", "reopen"]).unwrap().signal, Some(Signal::Reopen));
    }

    #[test]
    fn a_value_may_look_like_an_option() {
        assert_eq!(read(&["-c", "-t"]).unwrap().conf.unwrap(), "-t");
    }

    #[test]
    fn the_last_one_counts() {
        assert_eq!(read(&["-ca", "-cb"]).unwrap().conf.unwrap(), "b");
    }

    #[test]
    fn help_and_version() {
        assert!(read(&["-?"]).unwrap().help && read(&["-h"]).unwrap().help);
        let o = read(&["-vV"]).unwrap();
        assert!(o.version && o.configure && !o.help);
        assert_eq!(read(&[]).unwrap(), CommandLine::default());
        assert_eq!(read(&["-"]).unwrap(), CommandLine::default());
    }

    #[test]
    fn wrong_ones_are_refused_in_nginx_words() {
        let refuse = |args: &[&str]| read(args).unwrap_err().to_string();
        assert_eq!(refuse(&["start"]), "invalid option: \"start\"");
        assert_eq!(refuse(&[""]), "invalid option: \"\"");
        assert_eq!(refuse(&["-tx"]), "invalid option: \"x\"");
        assert_eq!(refuse(&["-s", "kill"]), "invalid option: \"-s kill\"");
        assert_eq!(refuse(&["-s"]), "option \"-s\" requires parameter");
        assert_eq!(refuse(&["-g"]), "option \"-g\" requires parameter");
        assert_eq!(refuse(&["-c"]), "option \"-c\" requires file name");
        assert_eq!(refuse(&["-e"]), "option \"-e\" requires file name");
        assert_eq!(refuse(&["-p"]), "option \"-p\" requires directory name");
    }
}
